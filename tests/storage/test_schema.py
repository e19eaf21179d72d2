"""Schema versions: runs and studies of the version before go on, newer ones are refused."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file

import raysim
from raysim.storage.schema import GRIDS, SCHEMA, check_claim, current_settings, renamed, table_of
from tests.tasks import make_settings, make_task, model_of

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


def as_version_0(values):
    """Return a `config.json` as the version before wrote it."""
    del values["schema"]
    values["profile"] = values.pop("trace")
    values["dataset"] = {"name": "workloads.datasets.synthetic:Synthetic"}
    return values


def newer(values):
    return values | {"schema": SCHEMA + 1}


def test_a_run_directory_says_its_schema(tmp_path):
    stopped_run(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["schema"] == SCHEMA == 1


@pytest.mark.parametrize("again", ["resume", "run"])
def test_a_run_of_the_version_before_goes_on_to_the_same_bytes(tmp_path, again):
    """Also where a setting has been added since, which then has its default."""
    straight = raysim.run(make_settings(tmp_path / "straight"), make_task(SIZES))
    path = tmp_path / "run"
    synthetic = {"dataset.name": "synthetic"}
    stopped_run(path, **synthetic)

    def change(values):
        del values["evaluation"]["clients"]
        return as_version_0(values)

    write_config(path, change)
    if again == "resume":
        result = raysim.resume(path, make_task(SIZES))
    else:
        result = raysim.run(make_settings(path, **synthetic), make_task(SIZES))
    assert result.metrics["round"].to_pylist() == [1, 2, 3, 4, 5]
    assert model_of(path) == model_of(straight.run_dir)
    assert load_file(path / "model.safetensors").keys() == result.params.keys()
    values = json.loads((path / "config.json").read_text())
    assert values["schema"] == SCHEMA and values["trace"] is False and "profile" not in values
    assert values["dataset"]["name"] == "synthetic"


def test_the_trace_of_the_version_before_goes_on(tmp_path):
    stopped_run(tmp_path, trace=True)
    write_config(tmp_path, as_version_0)
    rows = raysim.resume(tmp_path, make_task(SIZES)).metrics.to_pylist()
    assert all(row["worker_training_seconds"] > 0 for row in rows)


def test_a_difference_to_a_run_of_the_version_before_is_named(tmp_path):
    stopped_run(tmp_path, **{"dataset.name": "synthetic"})
    write_config(tmp_path, as_version_0)
    with pytest.raises(raysim.RunError, match=r"local.lr=0.1 \(here 0.5\); choose"):
        settings = make_settings(tmp_path, **{"dataset.name": "synthetic", "local.lr": 0.5})
        raysim.run(settings, make_task(SIZES))


def test_settings_that_no_version_knows_are_refused_in_one_line(tmp_path):
    stopped_run(tmp_path)
    write_config(tmp_path, lambda values: values | {"colour": "red"})
    shutil.rmtree(tmp_path / "checkpoints")  # which seal the settings
    with pytest.raises(raysim.RunError) as caught:
        raysim.run(make_settings(tmp_path), make_task(SIZES))
    assert str(caught.value).startswith(f"out={tmp_path}: holds a run with other settings (colour")


@pytest.mark.parametrize("do", ["resume", "run", "load_config"])
def test_a_newer_schema_is_refused_in_one_line(tmp_path, do):
    stopped_run(tmp_path)
    write_config(tmp_path, newer)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(raysim.RunError) as caught:
        if do == "resume":
            raysim.resume(tmp_path, make_task(SIZES))
        elif do == "run":
            raysim.run(make_settings(tmp_path), make_task(SIZES))
        else:
            raysim.load_config(tmp_path / "config.json")
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}: schema=2 was written by a newer raysim, this one reads up"
        " to 1; use the newer one"
    )
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize("schema", ["1", -1, True, None, 1.5])
def test_a_schema_that_is_no_version_is_refused(tmp_path, schema):
    with pytest.raises(raysim.RunError, match="is no version; restore the file"):
        current_settings(tmp_path, {"schema": schema})


OLD_TOML = """
clients = 7
profile = true
dataset = {name = "workloads.datasets.synthetic:Synthetic"}
partition = {name = "workloads.partitions.iid:Iid"}
model = {name = "synthetic-mlp"}
method = {name = "fedprox", mu = 0.5}
"""


def test_a_file_of_the_version_before_is_read(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text(OLD_TOML)
    settings = raysim.load_config(path)
    assert settings.trace and settings.dataset.title == "synthetic"
    assert settings.partition.title == "iid" and settings.method.settings()["mu"] == 0.5


def test_the_config_of_a_run_is_read_as_settings(tmp_path):
    settings = raysim.load_config("mnist-fedavg", {"clients": 7})
    path = tmp_path / "config.json"
    for own in ({"schema": SCHEMA}, {}):
        path.write_text(json.dumps({**own, **settings.to_dict(), "own_task": False}))
        assert raysim.load_config(path) == settings


def test_a_users_own_workloads_folder_keeps_its_name():
    for name in ("workloads.mine:Net", "workloads.mine.deep:Net", "workloads:Net", "mine:Net"):
        assert renamed({"model": {"name": name}}) == {"model": {"name": name}}


def test_both_names_of_a_setting_are_one_too_many(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text("trace = false\n" + OLD_TOML)
    with pytest.raises(raysim.SettingsError, match="profile: no such setting; it is called"):
        raysim.load_config(path)


def test_an_override_of_the_version_before_says_what_to_type():
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.load_config("mnist-fedavg", {"profile": True})
    assert str(caught.value) == "profile: no such setting; it is called 'trace' now"


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
