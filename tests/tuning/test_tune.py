"""Studies from Python, and the study file of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.tuning.tune import study_of
from tests.notebook.cell import pretended
from tests.test_readme import METHOD
from tests.tuning.common import PRESET, SPACE, make_study

PAGE = (Path(__file__).parents[2] / "docs/own-method.md").read_text(encoding="utf-8")


def test_trials_as_a_table_and_the_best_settings(tmp_path, local_slots):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json")
    table = {"space": SPACE, "sampler": "random", "first": [{"method.mu": 0.1}], "trials": 2}
    result = raysim.tune(settings, table, out=tmp_path / "out")
    rows = result.trials.to_pylist()
    assert [row["trial"] for row in rows] == [0, 1] and rows[0]["method.mu"] == 0.1
    best = max(rows, key=lambda row: row["accuracy"])
    assert [found.local.lr for found in result.best] == [best["local.lr"]]
    assert repr(result) == f"StudyTrials(2 trials: 2 complete; best: trial {best['trial']})"
    values = (f"{best[name]:.4g}" for name in ("accuracy", "local.lr", "method.mu"))
    html = result._repr_html_()
    assert html.count("<tr>") == 3 and all(f"<strong>{value}</strong>" in html for value in values)


def test_a_study_in_a_notebook_shows_its_trials_and_the_best_so_far(
    tmp_path, local_slots, monkeypatch
):
    make_study(tmp_path)
    cell = pretended(monkeypatch)
    table = {"space": SPACE, "sampler": "random", "trials": 2}
    raysim.tune(tmp_path / "blobs.json", table, out=tmp_path / "out")
    assert cell.displays == 1 and "<progress" not in cell.html
    assert any('<progress value="0.5000"' in bundle["text/html"] for bundle in cell.bundles)
    done, begun, *trials = cell.lines
    assert done == "2 of 2 done" and begun == "blobs: 2 trials, 1 slots"
    assert [line.split(":")[0] for line in trials] == ["trial 0 complete", "trial 1 complete"]
    assert 'aria-label="best accuracy so far by completed trial: ' in cell.html


def test_the_folder_of_a_table_is_refused_before_a_study_is_made_in_it(tmp_path, local_slots):
    make_study(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "table.json").write_text('{"schema": 1, "table": "mifl-3"}')
    settings = raysim.load_config(tmp_path / "blobs.json")
    with pytest.raises(raysim.RunError, match=r"out: holds table mifl-3; choose another --out$"):
        raysim.tune(settings, {"space": SPACE, "trials": 1}, out=out)
    assert [path.name for path in out.iterdir()] == ["table.json"]


PAIR = {"local.momentum": [0.0, 0.9], "local.nesterov": [False, True]}


def test_a_refused_study_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    before = {*tmp_path.rglob("*")}
    with pytest.raises(raysim.SettingsError, match=r"^RAY_TMPDIR=.*: must be a folder with a path"):
        raysim.tune("fedmax-beta", trials=1)
    assert {*tmp_path.rglob("*")} == before


def test_values_that_the_settings_refuse_together(tmp_path, local_slots):
    """Each is allowed beside the settings' own value of the other."""
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json", {"local.momentum": 0.9})
    refused = {"local.momentum": 0.0, "local.nesterov": True}
    with pytest.raises(raysim.SettingsError, match=r"first\.0: local.nesterov=true: needs"):
        raysim.tune(settings, {"space": PAIR, "first": [refused]}, out=tmp_path / "out")
    result = raysim.tune(settings, {"space": PAIR, "sampler": "grid"}, out=tmp_path / "out")
    states = {
        (row["local.momentum"], row["local.nesterov"]): row["state"]
        for row in result.trials.to_pylist()
    }
    assert states.pop((0.0, True)) == "fail" and [*states.values()] == ["complete"] * 3


@pytest.mark.parametrize(
    ("key", "choices", "column"),
    [
        ("local.batch_size", [5, "full"], ["5", "full"]),
        ("method.mu", [0, 0.5], [0.0, 0.5]),
        ("partition.limit", ["none", 5], [None, 5]),
    ],
)
def test_choices_of_several_types(tmp_path, local_slots, key, choices, column):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json")
    table = {"space": {key: choices}, "sampler": "grid"}
    result = raysim.tune(settings, table, out=tmp_path / "out")
    assert result.trials[key].to_pylist() == column
    assert set(result.trials["state"].to_pylist()) == {"complete"}


def test_constraints_decide_which_trial_is_best(tmp_path, local_slots):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json", {"rounds": 1})
    table = {"space": {"rounds": [1, 3]}, "sampler": "grid", "objectives": ["accuracy", "bytes"]}
    free = raysim.tune(settings, table, out=tmp_path / "free")
    sent = {row["rounds"]: row["bytes"] for row in free.trials.to_pylist()}
    assert "feasible" not in free.trials.column_names
    table |= {"objectives": ["accuracy"], "pruner": "none"}
    exact = {**table, "constraints": {"bytes": sent[3]}}
    found = raysim.tune(settings, exact, out=tmp_path / "exact")
    assert found.best[0].rounds == 3 and found.trials["feasible"].to_pylist() == [True, True]
    table["constraints"] = {"bytes": sent[3] - 1}
    bounded = raysim.tune(settings, table, out=tmp_path / "bounded")
    feasible = {row["rounds"]: row["feasible"] for row in bounded.trials.to_pylist()}
    assert feasible == {1: True, 3: False} and [best.rounds for best in bounded.best] == [1]
    table["constraints"]["bytes"] = sent[3]
    with pytest.raises(raysim.RunError, match=r"differs in constraints \(bytes: "):
        raysim.tune(settings, table, out=tmp_path / "bounded", trials=2)
    table["constraints"] = {"seconds": 1e-9}
    assert raysim.tune(settings, table, out=tmp_path / "none").best == ()


def test_a_pruned_trial_has_its_last_accuracy_and_is_neither_feasible_nor_not(
    tmp_path, local_slots
):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json", {"rounds": 3})
    table = {"space": {"local.lr": [0.3, 0.001]}, "sampler": "grid", "constraints": {"bytes": 1}}
    table["pruner"] = {"name": "median", "n_startup_trials": 1, "n_warmup_steps": 1}
    result = raysim.tune(settings, table, out=tmp_path / "out", jobs=1)
    done, pruned = result.trials.to_pylist()
    assert (done["state"], done["feasible"]) == ("complete", False)
    assert (pruned["state"], pruned["feasible"]) == ("pruned", None)
    metrics = pq.read_table(tmp_path / "out/trials/0001/metrics.parquet")
    assert pruned["accuracy"] == metrics["holdout_accuracy"].to_pylist()[-1]


def test_trials_whose_clients_deploy_their_own_models_are_judged_by_these(tmp_path, local_slots):
    """Ditto's: the global model is the same whatever lam is."""
    make_study(tmp_path)
    more = {"rounds": 3, "method.name": "ditto", "fraction": 1.0, "partition.limit": 40}
    more |= {"evaluation.local_test": 0.25}
    settings = raysim.load_config(tmp_path / "blobs.json", more)
    table = {"space": {"method.lam": [0.0, 30.0]}, "sampler": "grid", "pruner": "none"}
    result = raysim.tune(settings, table, out=tmp_path / "out", jobs=1)
    runs = [
        pq.read_table(tmp_path / f"out/trials/000{n}/metrics.parquet").to_pylist()[-1]
        for n in (0, 1)
    ]
    found = [trial["accuracy"] for trial in result.trials.to_pylist()]
    assert found == [run["personal_holdout_accuracy"] for run in runs]
    reported = "personal_local_test_accuracy"  # on samples that have not chosen
    assert result.trials[reported].to_pylist() == [run[reported] for run in runs]
    assert "test_accuracy" not in result.trials.column_names
    assert runs[0]["holdout_accuracy"] == runs[1]["holdout_accuracy"] and found[0] != found[1]


def test_virtual_time_and_energy_are_objectives(tmp_path, local_slots):
    make_study(tmp_path)
    table = {"space": {"rounds": [1, 2]}, "sampler": "grid", "trials": 2}
    table["objectives"] = ["virtual_seconds", "virtual_joules"]
    settings = raysim.load_config(tmp_path / "blobs.json", {"clock.name": "devices"})
    result = raysim.tune(settings, table, out=tmp_path / "out")
    for row in result.trials.to_pylist():
        metrics = pq.read_table(tmp_path / f"out/trials/{row['trial']:04d}/metrics.parquet")
        for name in table["objectives"]:
            assert row[name] == pytest.approx(sum(metrics[name].to_pylist())) and row[name] > 0
    assert [best.rounds for best in result.best] == [1]
    untimed = raysim.load_config(tmp_path / "blobs.json")
    with pytest.raises(raysim.SettingsError, match=r"virtual_seconds: needs clock\.name=devices"):
        raysim.tune(untimed, table, out=tmp_path / "untimed")


def test_callbacks_see_each_trial_and_can_stop_the_study(tmp_path, local_slots):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json", {"rounds": 1})
    seen = []

    def stop_after_two(study, trial):
        seen.append((trial.number, trial.state.name, trial.params == study.trials[-1].params))
        if trial.number == 1:
            study.stop()

    table = {"space": SPACE, "trials": 4}
    result = raysim.tune(settings, table, out=tmp_path / "out", callbacks=[stop_after_two])
    assert seen == [(0, "COMPLETE", True), (1, "COMPLETE", True)]
    assert result.trials.num_rows == 2 and len(result.best) == 1
    assert raysim.tune(settings, table, out=tmp_path / "out").trials.num_rows == 4


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "5", True])
def test_wrong_timeouts(tmp_path, timeout):
    with pytest.raises(raysim.SettingsError, match=f"timeout={timeout}: must be a number above 0"):
        raysim.tune("fedavg-lr", out=tmp_path / "out", timeout=timeout)


@pytest.mark.parametrize("given", [{"trials": 0}, {"trials": 1.5}, {"jobs": 0}, {"jobs": True}])
def test_wrong_numbers(tmp_path, given):
    (name,) = given
    with pytest.raises(raysim.SettingsError, match=f"{name}=.*: must be an integer from 1 to 10"):
        raysim.tune("fedavg-lr", out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"out": 3}, "out=3: must be text"),
        ({"storage": 3}, "storage=3: must be text"),
        ({"name": 3}, "name=3: must be text"),
        ({"callbacks": 3}, "callbacks=3: must be a list of functions"),
        ({"callbacks": ["f"]}, r"callbacks=\['f'\]: must be a list of functions"),
        ({"retry_failed": "no"}, "retry_failed=no: must be True or False"),
    ],
)
def test_arguments_of_wrong_types(tmp_path, given, message):
    with pytest.raises(raysim.SettingsError, match=f"^{message}"):
        raysim.tune("fedavg-lr", **{"out": tmp_path / "out", **given})
    assert not (tmp_path / "out").exists()


def test_a_table_beside_a_file_keeps_what_the_file_gives(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('preset = "mnist-noniid"\ntarget_accuracy = 0.5\n')
    study = study_of(path, {"space": {"local.lr": [0.1, 0.2]}})
    assert study.resolve({}).settings.target_accuracy == 0.5
    preset = study_of("mnist-noniid", {"space": {"local.lr": [0.1, 0.2]}})
    assert preset.resolve({}).settings.target_accuracy is None
    assert preset.resolve({"target_accuracy": 0.9}).settings.target_accuracy == 0.9


def test_the_study_of_the_page_searches_a_method_of_ones_own(tmp_path, local_slots, monkeypatch):
    written = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert METHOD and written and written[1].count("\n") <= 12
    (tmp_path / "my_method.py").write_text(METHOD[1])
    (tmp_path / "my_study.toml").write_text(written[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blobs = {f"{part}.name": PRESET[part]["name"] for part in ("dataset", "partition", "model")}
    quick = {"rounds": 1, "local.epochs": 1, "clients": 20, **blobs}
    result = raysim.tune("my_study.toml", overrides=quick, trials=1)
    (row,) = result.trials.to_pylist()
    assert row["state"] == "complete" and row["method.beta"] == 0.9


def test_a_regression_is_judged_by_its_held_out_loss(tmp_path, local_slots, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    parts = {"dataset.name": "tests.driver.test_regression:Slopes", "clients": 9, "fraction": 0.5}
    parts |= {"model.name": "tests.driver.test_regression:Affine", "method.name": "fedavg"}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(PRESET))
    settings = raysim.load_config(path, {**parts, "rounds": 2, "local.lr": 0.01})
    table = {"space": {"local.lr": [0.0001, 0.01, 0.001]}, "sampler": "grid", "pruner": "none"}
    with pytest.raises(raysim.SettingsError, match=r"objectives=accuracy: .* has none; use loss"):
        raysim.tune(settings, table, out=tmp_path / "a")
    found = raysim.tune(settings, {**table, "objectives": ["loss"]}, out=tmp_path / "b", jobs=1)
    rows = found.trials.to_pylist()
    for row in rows:
        summary = json.loads((Path(row["run_dir"]) / "summary.json").read_text())
        assert row["loss"] == summary["final_holdout_loss"]
    assert found.best[0].local.lr == min(rows, key=lambda row: row["loss"])["local.lr"]
    assert len({row["loss"] for row in rows}) == 3


def test_ranges_of_the_command_line_are_a_study(raysim_command, tmp_path, local_slots, monkeypatch):
    """Of a settings file or a preset; two types of ranges, in a sweep's words."""
    monkeypatch.chdir(tmp_path)
    Path("plain.json").write_text(json.dumps(PRESET))
    ranges = ["--tune", "local.lr=0.01..0.5:log", "--tune", "method.mu=0,0.1"]
    code, _, _ = raysim_command("tune", "plain.json", *ranges, "--trials", "2", "rounds=2")
    trials = [*Path("runs/plain-tuned/trials").iterdir()]
    assert code == 0 and len(trials) == 2
    for trial in trials:
        settings = raysim.load_config(trial / "config.json")
        assert 0.01 <= settings.local.lr <= 0.5 and settings.method.mu in (0, 0.1)
        assert settings.rounds == 2
    assert Path("runs/plain-tuned/best.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["mnist-fedavg"],
            "mnist-fedavg: is a preset; say what to search, as in raysim tune mnist",
        ),
        (["mnist-fedavg", "--tune", "local.lr"], "--tune=local.lr: is written KEY=LOW..HIGH"),
        (["mnist-fedavg", "--tune", "local.lrr=1..2"], "local.lrr"),
        (["mnist-fedavg", "--tune", "local.lr=2..1"], "local.lr"),
        (["fedmax-betaa"], "fedmax-betaa: no such study; did you mean 'fedmax-beta'?"),
    ],
)
def test_what_is_no_study_is_refused_in_one_line(
    raysim_command, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    code, _, err = raysim_command("tune", *words)
    assert code == 2 and said in err and err.count("\n") == 1 and not Path("runs").exists()
