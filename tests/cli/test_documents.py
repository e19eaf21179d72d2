"""`--json`: one document, with the fields that are written down; and names that are never cut."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

import raysim
from raysim.cli.app import KINDS
from raysim.cli.pages import names_of
from tests.cli.test_app import QUICK, one_line_error, raysim_command  # noqa: F401 - a fixture
from tests.results.conftest import make_rows, write_run  # noqa: F401 - a fixture


@pytest.fixture
def document(raysim_command):  # noqa: F811
    """Return the document that a command prints, which is all that it prints."""

    def ask(*arguments):
        code, out, err = raysim_command(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out, parse_constant=pytest.fail)

    return ask


@pytest.mark.parametrize("kind", KINDS[: KINDS.index("settings")])
def test_lists_have_the_names_in_order_and_pages_have_one(document, kind):
    listed = document("list", kind)
    assert [*listed] == [kind] and [entry["name"] for entry in listed[kind]] == names_of(kind)
    assert all("description" in entry for entry in listed[kind])
    assert document("list")[kind] == names_of(kind)
    entry = document("list", kind, names_of(kind)[-1])
    assert entry["name"] == names_of(kind)[-1] and len(entry) > 1


def test_a_component_has_its_settings_as_they_are_typed(document):
    (mu, reduction) = document("list", "methods", "fedprox")["settings"]
    assert mu == {
        "setting": "method.mu",
        "required": False,
        "default": 0.01,
        "range": ">= 0",
        "description": mu["description"],
    }
    assert reduction["setting"] == "method.reduction"
    preset = document("list", "presets", "mnist-fedavg")
    assert preset["settings"] == raysim.load_config("mnist-fedavg").to_dict()
    assert preset["published"] == {"rounds_to_target": 47}


def test_runs_and_their_comparison(document, write_run, tmp_path):  # noqa: F811
    """A loss that is not finite is null; the values are those measured."""
    runs = [write_run(f"r{seed}", make_rows([0.25, 0.5 + seed / 8]), seed=seed) for seed in (0, 1)]
    runs.append(write_run("half", make_rows([0.5]), finished=False))
    runs.append(write_run("nan", make_rows([0.5], test_loss=[float("nan")]), seed=7))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/config.json").write_text("{}")
    listed = {run.pop("run"): run for run in document("list", "runs", str(tmp_path))["runs"]}
    assert listed[str(runs[1])] == {
        **{
            "method": "fedavg",
            "dataset": "mnist",
            "path": None,
            "seed": 1,
            "cell": "",
            "rounds": 2,
            "of": 5,
        },
        "state": "finished",
        **{"accuracy": 0.625, "loss": 0.375, "error": None},
    }
    assert listed[str(runs[2])]["state"] == "interrupted"
    assert listed[str(runs[3])]["loss"] is None
    assert "holds no run" in listed[str(tmp_path / "bad")]["error"]
    compared = document("compare", *map(str, runs))
    first, *_ = compared["groups"]
    assert [run["run"] for run in first["runs"]] == [str(runs[0]), str(runs[1]), str(runs[3])]
    assert {name: first["runs"][1][name] for name in ("seed", "state", "rounds", "of")} == {
        **{"seed": 1, "state": "finished", "rounds": 2, "of": 5},
    }
    final = first["metrics"]["final accuracy"]
    values = [{"seed": 0, "value": 0.5}, {"seed": 1, "value": 0.625}]
    assert final["values"] == values and final["metric"] == "final(test_accuracy)"
    assert (final["mean"], final["n"], final["seeds"]) == (0.5625, 2, 3)
    assert any("interrupted" in note for note in compared["notes"])


def test_long_paths_of_runs_leave_room_for_what_is_told(raysim_command, write_run, monkeypatch):  # noqa: F811
    from raysim.cli import app

    monkeypatch.setattr(app.console, "width", 80)
    path = write_run("an-experiment-with-a-name-" * 5, make_rows([0.5] * 5))
    _, out, _ = raysim_command("list", "runs", str(path.parent))
    _, _, listed = out.partition(" run ")  # a long folder's title may take several lines
    header, first, *rest = listed.splitlines()
    assert header.split()[-2:] == ["state", "score"]
    assert "50.00%" in first and max(map(len, (first, *rest))) <= 80
    assert first.split()[0] + "".join("".join(line.split()) for line in rest) == str(path)


def test_settings_are_listed_by_group(raysim_command, document):  # noqa: F811
    values = raysim.load_config("mnist-fedavg").to_dict()
    groups = ("local", "evaluation", "engine")
    named = {k: f"{k}.name" for k, v in values.items() if isinstance(v, dict) and "name" in v}
    keys = [named.get(key, key) for key in values if key not in groups]
    keys += [f"{group}.{key}" for group in groups for key in values[group]]
    listed = document("list", "settings")["settings"]
    assert sorted(each["setting"] for each in listed) == sorted(keys)
    assert all(each["description"] for each in listed)
    assert document("list", "settings", "engine")["settings"] == listed[-11:]
    (rate,) = document("list", "settings", "local.lr")["settings"]
    assert (rate["default"], rate["range"]) == ("0.1", "> 0")
    assert "did you mean 'local'?" in one_line_error(raysim_command("list", "settings", "loca"))


def test_errors_are_a_line_on_stderr(raysim_command):  # noqa: F811
    assert "nosuch" in one_line_error(raysim_command("list", "methods", "nosuch", "--json"))
    assert "nosuch" in one_line_error(raysim_command("compare", "nosuch", "--json"))


@pytest.mark.parametrize("width", [80, 120])
def test_names_are_whole_at_any_width(raysim_command, document, monkeypatch, width):  # noqa: F811
    from raysim.cli import app

    monkeypatch.setattr(app.console, "width", width)
    for kind in KINDS[:-1]:
        _, out, _ = raysim_command("list", kind)
        assert {*names_of(kind)} <= {*out.split()} or kind in ("rules", "settings")
        assert "…" not in out and max(map(len, out.splitlines())) <= width
        entries = document("list", kind)[kind]
        last = [word for entry in entries for word in [*entry.values()][-1].split()]
        assert {*last} <= {*out.split()} or width == 80  # the last column is not pushed out
        assert out.splitlines()[1].split()[-1] == [*entries[0]][-1].split("_")[-1]
    _, out, _ = raysim_command("list", "clocks", "devices")
    settings = {each["setting"] for each in document("list", "clocks", "devices")["settings"]}
    assert "clock.dropout" in settings and settings <= {*out.split()} and "…" not in out


def test_the_version(raysim_command):  # noqa: F811
    assert raysim_command("--version") == (0, f"raysim {raysim.__version__}\n", "")
    assert raysim.__version__ == importlib.metadata.version("raysim-fl")


def test_runs_of_own_data_are_told_apart_by_their_files(raysim_command, document, write_run):  # noqa: F811
    own = {"dataset.name": "files", "partition.name": "iid"}
    for name in ("iris", "wine"):
        write_run(name, **own, **{"dataset.path": f"/data/{name}.csv"})
    _, out, _ = raysim_command("list", "runs", ".")
    assert "files iris.csv" in " ".join(out.split()) and "files wine.csv" in " ".join(out.split())
    listed = document("list", "runs", ".")["runs"]
    assert {run["path"] for run in listed} == {"/data/iris.csv", "/data/wine.csv"}
