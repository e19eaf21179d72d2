"""Study folders: their schema, and damaged files."""

from __future__ import annotations

import json

import pytest

import raysim
from raysim.storage.schema import OTHER, SCHEMA
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


def test_another_record_than_of_this_study_is_named(tmp_path):
    search, _ = started(tmp_path)
    settings = dict(search.study.user_attrs["settings"])
    search.study.set_user_attr("settings", settings | {"rounds": 5})
    with pytest.raises(raysim.RunError, match=r"differs in settings .rounds: 5, here 4"):
        make_search(tmp_path).claim()
    search.study.set_user_attr("settings", settings | {"colour": "red"})
    with pytest.raises(raysim.RunError, match=r"differs in settings .colour: red, here nothing"):
        make_search(tmp_path).claim()
    del settings["patience_metric"]
    search.study.set_user_attr("settings", settings)
    with pytest.raises(raysim.RunError, match=r"settings .patience_metric: nothing, here None"):
        make_search(tmp_path).claim()


@pytest.mark.parametrize("schema", [SCHEMA + 1, None])
def test_a_study_of_another_version_is_refused_in_one_line(tmp_path, schema):
    search, out = started(tmp_path)
    text = json.dumps(about(out) | {"schema": schema})
    (out.path / "study.json").write_text(text)
    with pytest.raises(raysim.RunError) as caught:
        out.match(search.study)
    assert str(caught.value) == f"{out.path / 'study.json'}: schema={schema} is not 1: {OTHER}"
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
