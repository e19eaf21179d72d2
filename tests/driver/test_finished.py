"""Finished runs: started again they are left as they are; their models are checked where read."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.api.scoring import cross_entropies
from raysim.errors import DataError
from raysim.results.compare import comparison, group_runs
from raysim.results.runs import read_run
from raysim.workloads.models.resnet import load_weights
from tests.tasks import Notes, SmallNet, make_settings, make_task, model_of

SIZES = (12, 9)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a finished run."""
    path = tmp_path / "run"
    raysim.run(make_settings(path, rounds=2, **{"local.epochs": 1}), make_task(SIZES))
    return path


def _flip(model: Path) -> None:
    content = bytearray(model.read_bytes())
    content[-5] ^= 6
    model.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "cut": lambda model: model.write_bytes(model.read_bytes()[:-9]),
    "empty": lambda model: model.write_bytes(b""),
    "gone": Path.unlink,
}


def analysed(reference: Path, out: Path, listener: raysim.Listener | None = None) -> list[object]:
    """Return the rows of an analysis that compares with a reference."""
    settings = make_settings(out, rounds=1, analysis="cka", reference=str(reference))
    raysim.run(settings, make_task(SIZES), listener)
    rows: list[object] = pq.read_table(out / "analysis/cka.parquet").to_pylist()
    return rows


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_replaces_a_damaged_model_of_a_reference(run, tmp_path, damage):
    expected, notes = analysed(run, tmp_path / "whole"), Notes()
    DAMAGES[damage](run / "model.safetensors")
    assert analysed(run, tmp_path / "damaged", notes) == expected
    (line,) = [text for text in notes.notes if "model.safetensors" in text]
    advice = f"call: raysim.resume({str(run)!r}, task)"
    assert f"{advice}; meanwhile taking the model of {run}/checkpoints" in line


def test_a_damaged_model_that_no_checkpoint_has_is_refused(run, tmp_path):
    _flip(run / "model.safetensors")
    for state in run.glob("checkpoints/*/state.safetensors"):
        state.write_bytes(state.read_bytes()[:-20])
    with pytest.raises(raysim.SettingsError, match=r"model.safetensors: does not match its check"):
        analysed(run, tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists()


def test_a_run_without_checkpoints_is_read_unchecked(run, tmp_path):
    expected = analysed(run, tmp_path / "whole")
    shutil.rmtree(run / "checkpoints")
    assert analysed(run, tmp_path / "without") == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_finished_run_that_is_started_again_has_its_damaged_model_written_anew(run, damage):
    before, notes = model_of(run), Notes()
    DAMAGES[damage](run / "model.safetensors")
    result = raysim.resume(run, make_task(SIZES), notes)
    assert model_of(run) == before and result.summary["rounds"] == 2
    assert f"{run}/model.safetensors: is damaged; it is written again from the checkpoint" in (
        notes.notes
    )


def test_compare_says_that_a_model_is_damaged_and_pretrained_refuses_it(run):
    group = group_runs([read_run(run)])
    assert not [note for note in comparison(group, ()).notes if "model" in note]
    _flip(run / "model.safetensors")
    (line,) = [note for note in comparison(group, ()).notes if "model.safetensors" in note]
    assert line.startswith(f"{run}/model.safetensors: does not match its checksum")
    with pytest.raises(DataError, match=r"model.pretrained=.*: does not match its checksum"):
        load_weights(torch.nn.Linear(2, 2), str(run / "model.safetensors"), "head")


def test_the_same_call_returns_the_finished_run(run):
    settings = make_settings(run, rounds=2, **{"local.epochs": 1})
    first, notes = _files(run), Notes()
    with raysim.rounds(settings, make_task(SIZES), notes) as rounds:
        assert [*rounds] == []
    assert rounds.result.metrics.equals(pq.read_table(run / "metrics.parquet"))
    assert rounds.result.params.keys() == make_task(SIZES).model().state_dict().keys()
    assert notes.notes == [
        f"{run}: the run is finished (2 of at most 2 rounds); nothing is left to do"
    ]
    assert first == _files(run)


def _files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_finished_run_whose_checkpoints_are_gone_stays_as_it_is(run):
    shutil.rmtree(run / "checkpoints")
    before, notes = _files(run), Notes()
    raysim.resume(run, make_task(SIZES), notes)
    assert notes.notes == [
        f"{run}: the run is finished (2 of at most 2 rounds); nothing is left to do"
    ]
    assert _files(run) == before


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_finished_run_without_evaluation_stays_as_it_is(tmp_path, checkpoints):
    settings, notes = make_settings(tmp_path, rounds=1, **{"evaluation.test": False}), Notes()
    raysim.run(settings, make_task(SIZES))
    if not checkpoints:
        shutil.rmtree(tmp_path / "checkpoints")
    before = _files(tmp_path)
    raysim.run(settings, make_task(SIZES), notes)
    assert [note for note in notes.notes if "finished (1 of at most 1 rounds)" in note]
    assert not [note for note in notes.notes if "damaged" in note]
    assert _files(tmp_path) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_best_model_of_a_finished_run_is_written_anew(run, damage):
    best = run / "model_best.safetensors"
    before, notes = best.read_bytes(), Notes()
    DAMAGES[damage](best)
    raysim.resume(run, make_task(SIZES), notes)
    assert best.read_bytes() == before
    assert f"{best}: is damaged; it is written again from the checkpoint" in notes.notes


def test_a_finished_run_whose_file_has_changed_says_so(tmp_path):
    """The same samples in a file of another time do not; nor do those of a file that is gone."""
    data, settings = tmp_path / "own.csv", {"rounds": 1, "clients": 2, "fraction": 1.0}
    settings |= {"dataset.name": "files", "dataset.path": str(data), "model.name": "2nn"}
    settings |= {"target_accuracy": None, "engine.backend": "inline", "partition.name": "iid"}
    settings |= {"out": str(tmp_path / "run")}

    def again(text):
        data.write_text(f"x,y\n{text}")
        notes = Notes()
        raysim.run(raysim.load_config("mnist-fedavg", settings), None, notes)
        return [note for note in notes.notes if "changed" in note]

    rows = [f"{value},{value % 2}\n" for value in range(40)]
    assert again("".join(rows)) == [] and again("".join(rows)) == []
    (line,) = again("".join(rows[:-1]))
    assert line.startswith(f"{tmp_path}/run: the data has changed since the run (training samples ")
    assert line.endswith("; for a run on the present data, choose another `out`")
    data.unlink()
    notes = Notes()
    raysim.run(raysim.load_config("mnist-fedavg", settings), None, notes)
    assert not [note for note in notes.notes if "changed" in note]


class Tanh(SmallNet):
    def forward(self, x):
        return torch.tanh(super().forward(x))


def halved(outputs, targets):
    return cross_entropies(outputs, targets) / 2


def zeros() -> SmallNet:
    network = SmallNet()
    for tensor in network.parameters():
        tensor.data.zero_()
    return network


def dropping(rate: float) -> SmallNet:
    network = SmallNet()
    network.hidden.append(torch.nn.Dropout(rate))
    return network


def scoring_with(metric: Callable[..., float]) -> raysim.Scoring:
    return replace(raysim.CLASSIFICATION, metrics={"accuracy": metric})


def at_most(limit: float) -> Callable[..., float]:
    return lambda predicted, targets: min(limit, float((predicted == targets).mean()))


OTHERS = {
    "class": ("code of the model", {"model": Tanh}),
    "argument": ("code of the model", {"model": lambda: dropping(0.5)}),
    "loss": ("code of the scoring", {"scoring": replace(raysim.CLASSIFICATION, losses=halved)}),
    "metric": ("code of the scoring", {"scoring": scoring_with(at_most(0.5))}),
    "weights": ("initial model", {"model": zeros}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_finished_run_is_not_returned_for_other_code_or_another_model(run, other):
    """Samples and shapes are the same; nothing but the finished run's own task has its result."""
    settings = make_settings(run, rounds=2, **{"local.epochs": 1})
    part, given = OTHERS[other]
    task = replace(make_task(SIZES), **given)
    with pytest.raises(raysim.RunError, match=rf"finished run of another task \({part} was"):
        raysim.run(settings, task)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_with_code_that_cannot_be_compared_goes_on_by_force_alone(tmp_path, rounds):
    lock, notes = threading.Lock(), Notes()

    def metric(predicted, targets):
        with lock:
            return 0.5

    task = replace(make_task(SIZES), scoring=scoring_with(metric))
    settings = make_settings(tmp_path / "run", rounds=2)
    with raysim.rounds(settings, task, notes) as running:
        for _ in range(rounds):
            next(running)
        if rounds == 2:
            assert not [*running]
    reason = "code of the scoring cannot be compared (the scoring, metrics, accuracy, variable lock"
    reason += " is a _thread.lock)"
    assert f"{reason}: if this run is interrupted, it resumes only with force=True" in notes.notes
    refused = "going on after round 1 might not give" if rounds == 1 else "that may be another one"
    with pytest.raises(raysim.RunError, match=rf"{refused}.*{re.escape(reason)}"):
        raysim.run(settings, task)
    if rounds == 1:
        raysim.run(settings, task, force=True)
        assert (tmp_path / "run/summary.json").exists()


CELL = """
import raysim
from raysim.methods.fedavg import FedAvg

class Mine(FedAvg):
    def rules(self):
        penalty = lambda view, outputs, batch: outputs.logits.square().mean() * FACTOR
        return raysim.Rules(penalties=(penalty,))
"""


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("own_task", [True, False])
def test_a_method_edited_in_a_cell_does_not_go_on_with_the_run_of_the_one_before(
    tmp_path, monkeypatch, rounds, own_task
):
    def begin(factor: float) -> raysim.Settings:
        space = {"__name__": "__main__"}
        exec(CELL.replace("FACTOR", str(factor)), space)  # noqa: S102
        monkeypatch.setattr(sys.modules["__main__"], "Mine", space["Mine"], raising=False)
        overrides = {"method.name": "__main__:Mine", "rounds": 2, "clients": 2, "fraction": 1.0}
        if not own_task:
            overrides |= {"dataset.name": "plane", "model.name": "linear"}
        return make_settings(tmp_path / "run", **overrides)

    task = make_task(SIZES) if own_task else None
    with raysim.rounds(begin(0.5), task) as running:
        for _ in range(rounds):
            next(running)
        if rounds == 2:
            assert not [*running]
    with pytest.raises(raysim.RunError, match=r"code of components was \w+ \(here \w+\)"):
        raysim.run(begin(0.7), task)
    raysim.run(begin(0.5), task)


def test_an_unfinished_run_goes_on_from_its_own_model_with_the_same_code_alone(tmp_path):
    task, settings = make_task(SIZES), make_settings(tmp_path / "run", rounds=2)
    with raysim.rounds(settings, task) as rounds:
        next(rounds)
    with pytest.raises(
        raysim.RunError, match="would not give the same bits: code of the model was"
    ):
        raysim.resume(tmp_path / "run", replace(task, model=Tanh))
    raysim.resume(tmp_path / "run", replace(task, model=zeros))
    raysim.run(settings.model_copy(update={"out": str(tmp_path / "whole")}), task)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "whole")


def test_a_finished_run_of_another_task_is_not_returned(run):
    settings = make_settings(run, rounds=2, **{"local.epochs": 1})
    expected = rf"out={run}: holds a finished run of another task \(training samples was "
    with pytest.raises(raysim.RunError, match=expected):
        raysim.run(settings, make_task((12, 8)))
