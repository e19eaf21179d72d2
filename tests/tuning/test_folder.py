"""Study folders: schema versions, and studies of the version before."""

from __future__ import annotations

import json

import pytest

import raysim
from raysim.storage.schema import SCHEMA
from raysim.tuning.folder import StudyFolder
from tests.tuning.common import make_search


def started(folder):
    """Return a search with one trial, and its folder."""
    search = make_search(folder)
    out = StudyFolder(folder / "out")
    with out.use():
        out.match(search.study)
        search.claim()
        search.ask()
    return search, out


def about(out):
    return json.loads((out.path / "study.json").read_text())


def test_a_study_says_its_schema(tmp_path):
    _, out = started(tmp_path)
    assert about(out)["schema"] == SCHEMA == 1


def test_a_study_of_the_version_before_goes_on(tmp_path):
    search, out = started(tmp_path)
    values = about(out)
    del values["schema"]
    (out.path / "study.json").write_text(json.dumps(values))
    settings = dict(search.study.user_attrs["settings"])
    settings["profile"] = settings.pop("trace")
    settings["partition"] = {"name": "workloads.partitions.iid:Iid", "limit": None}
    del settings["on_client_error"]  # as if it had been added since
    search.study.set_user_attr("settings", settings)
    again = make_search(tmp_path)
    with out.use():
        out.match(again.study)
        again.claim()
        again.ask()
    assert len(again.study.get_trials()) == 2
    assert about(out) == values | {"schema": SCHEMA}


def test_other_settings_of_the_version_before_are_named(tmp_path):
    search, _ = started(tmp_path)
    settings = dict(search.study.user_attrs["settings"])
    settings["profile"] = settings.pop("trace")
    search.study.set_user_attr("settings", settings | {"rounds": 5})
    with pytest.raises(raysim.RunError, match=r"differs in settings .rounds: 5, here 4"):
        make_search(tmp_path).claim()
    search.study.set_user_attr("settings", settings | {"colour": "red"})
    with pytest.raises(raysim.RunError, match=r"differs in settings .colour: red, here None"):
        make_search(tmp_path).claim()


def test_a_study_of_a_newer_version_is_refused_in_one_line(tmp_path):
    search, out = started(tmp_path)
    text = json.dumps(about(out) | {"schema": SCHEMA + 1})
    (out.path / "study.json").write_text(text)
    with pytest.raises(raysim.RunError) as caught:
        out.match(search.study)
    assert str(caught.value).startswith(f"{out.path / 'study.json'}: schema=2 was written by a new")
    assert (out.path / "study.json").read_text() == text


@pytest.mark.parametrize("content", ["", "[1]", "{}", '"x"', "[" * 100_000])
def test_a_damaged_study_file_is_named(tmp_path, content):
    search, out = started(tmp_path)
    (out.path / "study.json").write_text(content)
    with pytest.raises(raysim.RunError, match=r"study.json: damaged file: .*; restore it"):
        out.match(search.study)


def test_half_written_files_are_deleted(tmp_path):
    _, out = started(tmp_path)
    half = out.path / ".best.json.node.4711.aside"
    half.touch()
    with out.use():
        assert not half.exists()
