"""The schema of what a run and a table write: files of other versions are refused."""

from __future__ import annotations

import json
import shutil

import pytest

import raysim
from raysim.results.runs import read_run
from raysim.storage.schema import GRIDS, OTHER, SCHEMA, check_claim, table_of
from tests.tasks import make_settings, make_task

SIZES = (40,) * 4


class Stop(raysim.Listener):
    def round_done(self, row):
        if row["round"] == 2:
            raise KeyboardInterrupt


def stopped_run(path, **overrides):
    """Leave a run behind that stopped after two of five rounds."""
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(path, **overrides), make_task(SIZES), Stop())


def write_config(path, change):
    config = path / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(change(values)))


def test_a_run_directory_says_its_schema(tmp_path):
    stopped_run(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["schema"] == SCHEMA == 1


def test_settings_that_no_version_knows_are_refused_in_one_line(tmp_path):
    stopped_run(tmp_path)
    write_config(tmp_path, lambda values: values | {"colour": "red"})
    shutil.rmtree(tmp_path / "checkpoints")  # which seal the settings
    with pytest.raises(raysim.RunError) as caught:
        raysim.run(make_settings(tmp_path), make_task(SIZES))
    assert str(caught.value).startswith(f"out={tmp_path}: holds a run with other settings (colour")


def without(*keys):
    """Return a change that takes a key out of values."""

    def change(values):
        for key in keys[:-1]:
            values = values[key]
        del values[keys[-1]]

    return change


OF_OTHERS = {
    "newer": (lambda values: values.update(schema=SCHEMA + 1), "schema=2 is not 1"),
    "words": (lambda values: values.update(schema="1"), "schema='1' is not 1"),
    "a truth": (lambda values: values.update(schema=True), "schema=True is not 1"),
    "none": (without("schema"), "schema=None is not 1"),
    "lacks a setting": (without("patience"), "lacks patience"),
    "lacks a component": (without("selection"), "lacks selection"),
    "lacks a setting of a group": (without("evaluation", "clients"), "lacks evaluation.clients"),
}
DO = {
    "resume": lambda path: raysim.resume(path, make_task(SIZES)),
    "run": lambda path: raysim.run(make_settings(path), make_task(SIZES)),
    "compare": read_run,
}


@pytest.mark.parametrize("do", DO)
@pytest.mark.parametrize("other", OF_OTHERS)
def test_a_run_of_another_version_is_refused_in_one_line(written, do, other):
    change, says = OF_OTHERS[other]
    config = written / "config.json"
    before = config.read_text()
    values = json.loads(before)
    change(values)
    config.write_text(json.dumps(values))
    with pytest.raises(raysim.RunError) as caught:
        DO[do](written)
    assert str(caught.value) == f"{config}: {says}: {OTHER}"
    config.write_text(before)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run that stopped after two of five rounds."""
    path = tmp_path_factory.mktemp("written")
    stopped_run(path)
    return path


def test_the_config_of_another_version_is_no_settings(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(raysim.RunError, match=r"config.json: schema=2 is not 1: it is"):
        raysim.load_config(path)


def test_the_config_of_a_run_is_read_as_settings(tmp_path):
    settings = raysim.load_config("mnist-fedavg", {"clients": 7})
    path = tmp_path / "config.json"
    for own in ({"schema": SCHEMA}, {}):
        path.write_text(json.dumps({**own, **settings.to_dict(), "own_task": False}))
        assert raysim.load_config(path) == settings


def claimed(folder, kind, name):
    """Have a folder be that of a table, a figure or a study."""
    folder.mkdir(exist_ok=True)
    key = "name" if kind == "study" else kind
    (folder / GRIDS[kind]).write_text(json.dumps({"schema": SCHEMA, key: name}))
    return folder


@pytest.mark.parametrize("held", GRIDS)
@pytest.mark.parametrize("wanted", GRIDS)
def test_a_folder_is_claimed_by_one_kind_under_one_name(tmp_path, held, wanted):
    check_claim(tmp_path / "new", wanted, "mifl-3")
    folder, name = claimed(tmp_path / "old", held, "mifl-3"), "" if wanted == "study" else "mifl-3"
    named = "a study" if held == "study" else f"{held} mifl-3"
    refusal = f"old: holds {named}; choose another --out$"
    if held == wanted:
        check_claim(folder, wanted, name)
    else:
        with pytest.raises(raysim.RunError, match=refusal):
            check_claim(folder, wanted, name)
    if wanted != "study":
        with pytest.raises(raysim.RunError, match=refusal):
            check_claim(folder, wanted, "mifl-6a")


def test_a_run_is_of_the_table_in_whose_folder_it_lies_unless_another_is_nearer(tmp_path):
    table = claimed(tmp_path / "t", "table", "mifl-6a")
    assert table_of(table / "runs/fa/seed-0") == "mifl-6a"
    for kind in ("figure", "study"):
        inner = claimed(table / kind, kind, "mifl-3")
        assert table_of(inner / "iid") == ""
    assert table_of(claimed(table / "runs", "table", "mifl-2b") / "fa") == "mifl-2b"
