"""Analyses change no bit of a run, and their rows do not depend on where and when it ran."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
import raysim.methods
from raysim.analysis import ANALYSES
from raysim.analysis.activations import KlActivations
from raysim.analysis.base import MeasuredRound
from raysim.core.components import Component
from raysim.core.method import METHODS
from raysim.core.rules import Trained, Upload, View
from raysim.driver.analyses import riding
from raysim.storage.tables import parted
from tests.driver.test_lost_files import StopAfter
from tests.tasks import Notes, make_settings, make_task, model_of

QUICK = ("activations", "kl_activations", "weight_divergence")
SIZES = (40, 1, 17, 30, 9, 24, 40, 12)
EVERYTHING = {"evaluation.clients": True, "evaluation.every": 2, "checkpoint_every": 2}
FIELDS = {
    "chain": {"method.methods": {"fedprox": {}, "scaffold": {}}},
    "fedfusion": {"method.operator": "single"},
    "fsvrg": {"fraction": 1.0},
}


def tables(run: Path) -> dict[str, Any]:
    """Return the rows of all analyses of a run."""
    found = (run / "analysis").glob("*.parquet")
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted(found)}


def figures(run: Path) -> list[Any]:
    rows = pq.read_table(run / "metrics.parquet").to_pylist()
    return [{name: row[name] for name in row if "seconds" not in name} for row in rows]


def states(run: Path) -> list[str]:
    """Return the names of the clients' states."""
    return sorted(str(p.relative_to(run)) for p in (run / "clients").rglob("*") if p.is_file())


def settings(path: Path, reference: Path, **overrides: Any) -> raysim.Settings:
    chosen = {"analysis": [*ANALYSES], "reference": str(reference)}
    return make_settings(path, **EVERYTHING | chosen | overrides)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run without analyses and the same with all of them."""
    folder = tmp_path_factory.mktemp("runs")
    plain, analysed = folder / "plain", folder / "analysed"
    task = make_task(SIZES)
    raysim.run(make_settings(plain, **EVERYTHING, fraction=0.5), task)
    raysim.run(settings(analysed, plain, fraction=0.5), task)
    return plain, analysed


def test_no_bit_of_the_model_and_no_figure_differs(runs):
    plain, analysed = runs
    assert model_of(analysed) == model_of(plain)
    assert figures(analysed) == figures(plain)
    assert not (plain / "analysis").exists()
    assert {*tables(analysed)} == {*ANALYSES}


def test_only_evaluated_rounds_have_rows(runs):
    found = tables(runs[1])
    rounds = {name: sorted({row["round"] for row in rows}) for name, rows in found.items()}
    assert rounds.pop("label_heat_map") == [2]
    assert rounds.pop("new_client")[0] == 2
    assert set(map(tuple, rounds.values())) == {(2, 4, 5)}


def test_rows_are_the_same_after_an_interruption(runs, tmp_path):
    plain, analysed = runs
    task = make_task(SIZES)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(tmp_path, plain, fraction=0.5), task, StopAfter(3))
    raysim.resume(tmp_path, task)
    assert model_of(tmp_path) == model_of(plain)
    assert tables(tmp_path) == tables(analysed)


def test_rows_of_rounds_after_the_checkpoint_are_rolled_back(runs, tmp_path, monkeypatch):
    """Part files are closed at once; a driver that is killed seals nothing."""
    monkeypatch.setattr(parted, "FILE_ROWS", 1)
    monkeypatch.setattr("raysim.driver.run.Run._save_committed", lambda run: None)
    plain, task = runs[0], make_task(SIZES)
    every = {"evaluation.every": 1, "checkpoint_every": 2, "analysis": QUICK}
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    raysim.run(settings(undisturbed, plain, **every), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(killed, plain, **every), task, StopAfter(3))
    raysim.resume(killed, task)
    assert tables(killed) == tables(undisturbed)


def test_a_damaged_part_goes_back_to_the_checkpoint_before_it(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(parted, "FILE_ROWS", 1)
    plain, analysed = runs
    task = make_task(SIZES)
    quick = {"analysis": QUICK, "fraction": 0.5}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(tmp_path, plain, **quick), task, StopAfter(4))
    sorted((tmp_path / "analysis/kl_activations.parquet").iterdir())[-1].write_bytes(b"")
    raysim.resume(tmp_path, task)
    assert tables(tmp_path) == {name: tables(analysed)[name] for name in QUICK}


@pytest.mark.parametrize("outcome", ["drop", "stop"])
def test_a_part_that_fails_costs_rows_and_no_client(tmp_path, monkeypatch, outcome):
    def failing(view: View, trained: Trained) -> Any:
        raise ValueError("a bug")

    options = {"on_client_error": outcome, "rounds": 2}
    plain = raysim.run(make_settings(tmp_path / "plain", **options), make_task(SIZES))
    monkeypatch.setattr(KlActivations, "client_part", lambda self, network: failing)
    options["analysis"] = "kl_activations"
    result = raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES))
    assert model_of(tmp_path / "run") == model_of(tmp_path / "plain")
    assert result.metrics["clients"] == plain.metrics["clients"]


def test_a_client_that_fails_in_a_pass_of_an_analysis_costs_its_rows(tmp_path, monkeypatch):
    def rows(self: KlActivations, found: MeasuredRound) -> Any:
        raise raysim.RunError("client 3: failed twice in round 1: bad (traceback in errors.log)")

    raysim.run(make_settings(tmp_path / "plain", rounds=1), make_task(SIZES))
    monkeypatch.setattr(KlActivations, "rows", rows)
    options, notes = {"analysis": "kl_activations", "rounds": 1}, Notes()
    raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES), notes)
    assert notes.notes == [
        "analysis=kl_activations: no rows: client 3: failed twice in round 1: bad"
    ]
    assert model_of(tmp_path / "run") == model_of(tmp_path / "plain")


def test_a_client_that_joins_has_no_state_of_the_training_before(tmp_path, monkeypatch):
    norms: list[float] = []
    finish = riding._finish

    def noting(own: Any, parts: Any, view: View, trained: Trained) -> Upload:
        norms.append(sum(float(t.norm()) for g in view.state.values() for t in g.values()))
        return finish(own, parts, view, trained)

    monkeypatch.setattr(riding, "_finish", noting)
    scaffold = {"method.name": "scaffold", "evaluation.clients": True, "fraction": 0.3, "rounds": 1}
    options = scaffold | {"analysis": "new_client"}
    raysim.run(make_settings(tmp_path, **options), make_task((20,) * 6))
    assert len(norms) > 10 and not any(norms)


def test_clients_that_join_leave_no_state_behind(tmp_path):
    scaffold = {"method.name": "scaffold", "evaluation.clients": True, "fraction": 0.3, "rounds": 2}
    task = make_task((20,) * 6)
    raysim.run(make_settings(tmp_path / "plain", **scaffold), task)
    raysim.run(make_settings(tmp_path / "joined", analysis="new_client", **scaffold), task)
    assert tables(tmp_path / "joined")["new_client"]
    assert states(tmp_path / "joined") == states(tmp_path / "plain") != []
    assert model_of(tmp_path / "joined") == model_of(tmp_path / "plain")


def test_stacked_clients_keep_their_bits(tmp_path):
    """Own test samples of unequal number must not change which clients are stacked."""
    stacked = {"engine.vectorize": 3, "rounds": 2, "fraction": 0.7}
    task = make_task((24,) * 8)
    raysim.run(make_settings(tmp_path / "plain", **EVERYTHING | stacked), task)
    raysim.run(settings(tmp_path / "analysed", tmp_path / "plain", **stacked), task)
    assert model_of(tmp_path / "analysed") == model_of(tmp_path / "plain")
    assert {*tables(tmp_path / "analysed")} >= {"kl_activations", "aggregation_drop"}


@pytest.mark.full
@pytest.mark.parametrize("method", [*METHODS])
def test_every_method_keeps_its_bits(method, tmp_path):
    overrides = {"method.name": method, "rounds": 2, **FIELDS.get(method, {})}
    task = make_task((20,) * 7)
    raysim.run(make_settings(tmp_path / "plain", **EVERYTHING | overrides), task)
    raysim.run(settings(tmp_path / "analysed", tmp_path / "plain", **overrides), task)
    assert model_of(tmp_path / "analysed") == model_of(tmp_path / "plain")
    assert figures(tmp_path / "analysed") == figures(tmp_path / "plain")
    assert states(tmp_path / "analysed") == states(tmp_path / "plain")


@pytest.mark.full
@pytest.mark.parametrize("actors", [1, 2])
def test_rows_are_the_same_on_actors(actors, runs, tmp_path, resident_actors):
    plain, analysed = runs
    engine = {"engine.backend": "ray", "engine.actors": actors, "fraction": 0.5}
    raysim.run(settings(tmp_path, plain, **engine), make_task(SIZES))
    assert model_of(tmp_path) == model_of(plain)
    assert tables(tmp_path) == tables(analysed)


def test_figures_that_are_not_finite_leave_the_client_in_the_round(runs, tmp_path, monkeypatch):
    def infinite(view: Any, trained: Any) -> dict[str, torch.Tensor]:
        return {"mean": torch.full((16,), 1e999 if len(trained.data.y) == 1 else 0.0)}

    monkeypatch.setattr("raysim.analysis.activations._mean_activations", infinite)
    overrides = {"analysis": "kl_activations", "reference": None, "fraction": 1.0, "rounds": 2}
    task = make_task(SIZES)
    raysim.run(make_settings(tmp_path / "a", **EVERYTHING | {**overrides, "analysis": []}), task)
    raysim.run(make_settings(tmp_path / "b", **EVERYTHING | overrides), task)
    assert model_of(tmp_path / "a") == model_of(tmp_path / "b")
    [found] = tables(tmp_path / "b").values()
    assert [row["client"] for row in found] == [0, 2, 3, 4, 5, 6, 7]


def test_mean_activations_by_hand(tmp_path):
    """With one client in a round its model is the global one, and its KL to the mean is 0."""
    task = make_task((30,))
    names = ["activations", "kl_activations", "weight_divergence", "label_information"]
    raysim.run(make_settings(tmp_path, rounds=1, analysis=names), task)
    found, model = tables(tmp_path), load_file(tmp_path / "model.safetensors")
    assert [row["kl_mean_client"] for row in found["kl_activations"]] == [0]
    x, y = task.clients[0]
    hidden = np.maximum(x @ model["hidden.0.weight"].numpy().T + model["hidden.0.bias"].numpy(), 0)
    shown = found["activations"]
    assert len(shown) == 20
    for row, n in ((shown[0], 0), (shown[-1], 29)):
        assert row["label"] == y[n]
        assert row["activations"] == pytest.approx(hidden[n], abs=1e-5)
    assert [row["divergence"] > 0 for row in found["weight_divergence"]] == [True, True]


def test_accuracies_before_and_after_are_those_of_the_evaluation(runs):
    plain, analysed = runs
    evaluated = pq.read_table(plain / "client_accuracy.parquet").to_pylist()
    rows = [row for row in tables(analysed)["aggregation_drop"] if row["round"] == 5]
    after = {row["client"]: row["accuracy_after"] for row in rows}
    assert after == {row["client"]: row["accuracy"] for row in evaluated}
    assert sum(row["participant"] for row in rows) == 4
    earlier = {r["client"]: r for r in tables(analysed)["aggregation_drop"] if r["round"] == 4}
    for row in rows:
        if not row["participant"]:
            assert row["accuracy_before"] == earlier[row["client"]]["accuracy_after"]


@pytest.mark.parametrize(("lr", "sizes"), [(0.1, (40,)), (1e-12, SIZES)])
def test_accuracy_before_is_that_of_the_model_that_was_trained(lr, sizes, tmp_path):
    """Of one client, and of steps of no length, the trained model is the next global one."""
    names = {"analysis": "aggregation_drop", "evaluation.clients": True, "local.lr": lr}
    raysim.run(make_settings(tmp_path, rounds=2, fraction=1.0, **names), make_task(sizes))
    [rows] = tables(tmp_path).values()
    assert len(rows) == 2 * len(sizes) and all(row["participant"] for row in rows)
    assert all(row["accuracy_before"] == row["accuracy_after"] for row in rows)
    assert len({row["accuracy_after"] for row in rows}) > 1


def test_similarity_with_the_reference_is_1_where_it_is_the_same_model(runs):
    last = [row for row in tables(runs[1])["cka"] if row["round"] == 5]
    same = [row["cka"] for row in last if {row["first"], row["second"]} == {"after", "reference"}]
    assert same == pytest.approx([1, 1], abs=1e-12)
    others = [row["cka"] for row in last if row["first"] == "client 0" != row["second"]]
    assert all(0 < value < 1 for value in others)


def test_new_clients_never_took_part(runs):
    plain, analysed = runs
    trained = pq.read_table(plain / "clients.parquet").to_pylist()
    for row in tables(analysed)["new_client"]:
        before = {each["client"] for each in trained if each["round"] <= row["round"]}
        assert row["client"] not in before
    assert {row["epochs"] for row in tables(analysed)["new_client"]} == {0, 1, 2, 4, 8, 16}


class Plain(torch.nn.Module):
    """A network without stages."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize("name", ["kl_activations", "activations", "cka", "weight_divergence"])
def test_a_model_without_stages_is_refused(name, tmp_path):
    with pytest.raises(raysim.SettingsError, match=f"analysis={name}: needs a model with the st"):
        raysim.run(make_settings(tmp_path / "a", analysis=name), make_task((9, 9), Plain))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["aggregation_drop", "new_client"])
def test_client_accuracies_are_needed(name, tmp_path):
    with pytest.raises(raysim.SettingsError, match=f"analysis={name}: needs evaluation.clients=t"):
        raysim.run(make_settings(tmp_path / "a", analysis=name), make_task((9, 9)))


def test_a_reference_must_be_a_run_of_the_same_network(runs, tmp_path):
    cases = {
        ("cka", str(tmp_path / "none")): "has no model that can be read",
        ("cka", str(runs[0])): "is a run of another network",
        ("kl_activations", str(runs[0])): "no analysis of this run compares with it",
    }
    for (name, reference), says in cases.items():
        given = make_settings(tmp_path / "a", analysis=name, reference=reference)
        with pytest.raises(raysim.SettingsError, match=says) as caught:
            raysim.run(given, make_task((9, 9), lambda: raysim.testing.tasks.SmallNet(width=5)))
        assert str(caught.value).startswith(f"reference={reference}: ")


def test_a_reference_is_the_same_however_it_is_spelled(runs, tmp_path, monkeypatch):
    plain = runs[0]
    monkeypatch.chdir(plain.parent)
    monkeypatch.setenv("HOME", str(plain.parent))
    spelled = ("plain", "plain/", "./plain", "~/plain", str(plain))
    found = {make_settings(tmp_path, reference=text).reference for text in spelled}
    assert found == {str(plain)}


def test_a_run_goes_on_with_its_reference_wherever_that_lies(runs, tmp_path):
    task, run = make_task(SIZES), tmp_path / "run"
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(runs[0], before)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(run, before, analysis="cka", fraction=0.5), task, StopAfter(3))
    before.rename(after)
    with pytest.raises(raysim.SettingsError, match=r"has no model that can be read .* new pl"):
        raysim.resume(run, task)
    other = raysim.run(make_settings(tmp_path / "other", rounds=1), task).run_dir
    moved = {"reference": str(other)}
    with pytest.raises(raysim.RunError, match=r"model of the reference was \w+ \(here \w+\)"):
        raysim.resume(run, task, overrides=moved)
    raysim.resume(run, task, overrides={"reference": str(after)})
    assert tables(run)["cka"] == tables(runs[1])["cka"]


def test_every_analysis_is_a_component():
    assert all(issubclass(ANALYSES.get(name), Component) for name in ANALYSES)
