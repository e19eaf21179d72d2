"""Patience and the best model are functions of a run's rows: of what is committed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import raysim
from raysim.driver.rounds import commits
from raysim.driver.rounds.stopping import Stopping
from raysim.storage import checkpoints
from raysim.storage.column_names import OF_SCORES
from tests.faults.forked import Child
from tests.tasks import UNEQUAL, SmallNet, StopAfter, make_settings, make_task, model_of

NAN = float("nan")
WORSE = {"patience_metric": "test_loss", "patience_mode": "max"}
"""As the loss falls, the first evaluation stays the best."""
COLUMNS = {name: OF_SCORES[name] for name in ("test_loss", "test_accuracy")}
CURVES = {
    "equal is no improvement": ({"patience": 2}, [0.5, 0.6, 0.6, 0.6], (2, 4, "patience")),
    "late": ({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.7, 0.6], (5, 6, "rounds")),
    "not finite": ({"patience": 3}, [NAN, 0.5, NAN, float("inf"), NAN], (2, 5, "patience")),
    "never": ({"patience": 2}, [NAN, NAN, NAN], (0, 2, "patience")),
    "between": (
        {"patience": 3, "evaluation.every": 2, "rounds": 9},
        [None, 0.6, None, 0.5, None, 0.5],
        (2, 6, "patience"),
    ),
    "a loss": ({"patience": 2, "patience_metric": "test_loss"}, [2, 1, 3, 3], (2, 4, "patience")),
    "asked": ({"patience": 1, "patience_mode": "min"}, [0.5, 0.4, 0.4], (2, 3, "patience")),
    "target": ({"patience": 2, "target_accuracy": 0.5}, [0.4, 0.3, 0.5], (3, 3, "target_accuracy")),
    "end": ({"evaluation.every": 2, "rounds": 3}, [None, 0.6, 0.7], (3, 3, "rounds")),
    "old end": ({"evaluation.every": 4, "rounds": 9}, [*[None] * 2, 0.9, 0.5], (4, 4, None)),
}


def followed(values, **options):
    settings = make_settings(Path("run"), **{"rounds": 6} | options)
    metric = settings.patience_metric or "test_accuracy"
    stopping, number, reason = Stopping(settings, COLUMNS, settings.rounds), 0, None
    for number, value in enumerate(values, 1):
        stopping.add({"round": number, metric: value})
        if reason := stopping.reason(number):
            break
    return stopping.best, number, reason


@pytest.mark.parametrize("curve", CURVES)
def test_curves_by_hand(curve):
    options, values, expected = CURVES[curve]
    assert followed(values, **options) == expected


@given(st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3]), max_size=12), st.integers(1, 4))
def test_patience_is_the_distance_from_the_first_of_the_best(values, patience):
    """Against another formula: the first round whose whole window holds nothing better."""
    best, number, reason = followed(values, patience=patience, rounds=99)
    seen = {n: v for n, v in enumerate(values[:number], 1) if v is not None}
    firsts = [n for n, v in seen.items() if v == max(seen.values())]
    assert best == (firsts[0] if firsts else 0)
    assert (reason == "patience") is (bool(seen) and max(seen) - best >= patience)


def rows(run):
    times = ("seconds", "evaluation_seconds", "checkpoint_seconds")
    table = raysim.resume(run, make_task(UNEQUAL)).metrics
    return table.drop_columns(list(times)).to_pylist()


def run(path, **options):
    return raysim.run(make_settings(path, **options), make_task(UNEQUAL))


RISING = {"local.lr": 0.8, "rounds": 12, "checkpoint_every": 5, "patience": 3, "fraction": 0.4}


def test_the_best_model_is_the_model_of_a_run_that_ends_there(tmp_path):
    result = run(tmp_path / "run", **RISING)
    accuracies = result.metrics["test_accuracy"].to_pylist()
    best = accuracies.index(max(accuracies)) + 1
    assert result.summary["best_round"] == best < len(accuracies) == best + 3
    assert result.summary["stopped_by"] == "patience"
    ends = run(tmp_path / "ends", **RISING | {"rounds": best})
    assert (tmp_path / "run/model_best.safetensors").read_bytes() == model_of(ends.run_dir)
    assert model_of(tmp_path / "run") != model_of(ends.run_dir)
    network = raysim.load(tmp_path / "run", SmallNet, best=True)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, ends.params[name], rtol=0, atol=0)


@pytest.mark.parametrize("way", [{}, {"method.name": "scaffold"}, {"engine.backend": "ray"}])
@pytest.mark.usefixtures("resident_actors")
def test_an_interrupted_run_has_the_same_end_and_models(tmp_path, way):
    options = {**RISING, **way, "engine.actors": 2}
    whole = run(tmp_path / "whole", **options)
    for at in (2, 6):
        cut = tmp_path / f"cut after {at}"
        with pytest.raises(KeyboardInterrupt):
            raysim.run(make_settings(cut, **options), make_task(UNEQUAL), StopAfter(at))
        result = raysim.resume(cut, make_task(UNEQUAL))
        assert rows(cut) == rows(tmp_path / "whole")
        assert same_models(cut, tmp_path / "whole")
        for name in ("stopped_by", "best_round"):
            assert result.summary[name] == whole.summary[name]


def same_models(one, other):
    names = ("model.safetensors", "model_best.safetensors")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


POINTS = [(commits, "save_tensors", 4), (checkpoints, "write_sealed", 2), (commits, "summarise", 1)]
"""Functions that the process does not come back from, and the number of the call."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    run(path, **RISING | {"checkpoint_every": 2})
    return path


@pytest.mark.parametrize(("module", "name", "call"), POINTS, ids=[name for _, name, _ in POINTS])
def test_a_killed_run_goes_on_to_the_same_models(
    tmp_path, undisturbed, monkeypatch, module, name, call
):
    inner, calls = getattr(module, name), iter(range(1, call))

    def dying(*given, **named):
        next(calls, None) or os._exit(9)
        return inner(*given, **named)

    chosen = make_settings(tmp_path, **RISING | {"checkpoint_every": 2})
    with monkeypatch.context() as patch:
        patch.setattr(module, name, dying)
        assert Child(lambda: raysim.run(chosen, make_task(UNEQUAL))).wait().code == 9
    raysim.resume(tmp_path, make_task(UNEQUAL))
    assert same_models(tmp_path, undisturbed)
    assert rows(tmp_path) == rows(undisturbed)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_grown_run_has_the_best_model_and_the_end_of_a_whole_one(tmp_path, mode):
    """The evaluation at its former end, the best until then of a falling loss, does not count."""
    options = {"patience_metric": "test_loss", "patience_mode": mode, "evaluation.every": 2}
    options |= {"patience": 5, "checkpoint_every": 4}
    whole = run(tmp_path / "whole", rounds=10, **options)
    former = run(tmp_path / "grown", rounds=3, **options)
    assert former.summary["best_round"] == (3 if mode == "min" else 2)
    assert former.summary["stopped_by"] == "rounds"
    result = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 10})
    assert result.summary["stopped_by"] == ("rounds" if mode == "min" else "patience")
    figures = [name for name in whole.summary if "seconds" not in name]
    assert {n: result.summary[n] for n in figures} == {n: whole.summary[n] for n in figures}
    assert same_models(tmp_path / "grown", tmp_path / "whole")


def test_the_best_model_before_a_former_end_is_kept(tmp_path):
    """Round 3, the former end, is better than 2, and no later one is."""
    options = {"local.lr": 3.0, "seed": 6, "fraction": 0.4, "evaluation.every": 2}
    options["local.epochs"] = 2
    whole = run(tmp_path / "whole", rounds=10, **options)
    assert run(tmp_path / "grown", rounds=3, **options).summary["best_round"] == 3
    result = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 10})
    assert result.summary["best_round"] == whole.summary["best_round"] == 2
    assert same_models(tmp_path / "grown", tmp_path / "whole")


def test_a_target_that_the_former_end_alone_reaches_is_not_reached(tmp_path):
    options = {"evaluation.every": 4}
    run(tmp_path / "grown", rounds=3, **options)
    reached = run(tmp_path / "first", rounds=3, **options).summary["final_accuracy"]
    options["target_accuracy"] = reached
    first = run(tmp_path / "target", rounds=3, **options)
    assert (first.summary["rounds_to_target"], first.summary["stopped_by"]) == (
        3,
        "target_accuracy",
    )
    whole = run(tmp_path / "whole", rounds=8, **options)
    grown = raysim.resume(tmp_path / "target", make_task(UNEQUAL), overrides={"rounds": 8})
    for name in ("rounds_to_target", "stopped_by", "best_accuracy", "rounds"):
        assert grown.summary[name] == whole.summary[name]
    assert grown.metrics["test_accuracy"].to_pylist()[2] == reached


def test_one_that_patience_ended_stays_ended_with_more_rounds(tmp_path):
    first = run(tmp_path, **RISING)
    again = raysim.resume(tmp_path, make_task(UNEQUAL), overrides={"rounds": 50})
    assert again.summary == first.summary and len(again.metrics) < 12


def test_a_damaged_best_model_is_written_anew(tmp_path):
    run(tmp_path, **RISING)
    path = tmp_path / "model_best.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    network = raysim.load(tmp_path, SmallNet, best=True)
    raysim.resume(tmp_path, make_task(UNEQUAL))
    assert path.read_bytes() == content
    tensors = load_file(path)
    assert all(t.equal(tensors[name]) for name, t in network.state_dict().items())


ERRORS = {
    "metric": (
        {"patience_metric": "test_acuracy"},
        "^patience_metric=test_acuracy: not a column of this run's rounds; did you mean"
        " 'test_accuracy'",
    ),
    "costs": ({"patience_metric": "seconds"}, "^patience_metric=seconds: not a column of this"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_metric_that_is_not_evaluated_is_refused_before_the_start(tmp_path, case):
    options, message = ERRORS[case]
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", patience=3, **options)
    assert not (tmp_path / "run").exists()


def test_patience_is_at_least_the_interval_of_evaluations(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"^patience=3: must be at least evaluation\.e"):
        make_settings(tmp_path, **{"patience": 3, "evaluation.every": 5})


def test_a_task_without_evaluation_has_neither(tmp_path):
    task = raysim.Task(model=SmallNet, clients=make_task(UNEQUAL).clients)
    with pytest.raises(raysim.SettingsError, match=r"^patience=2: nothing is evaluated"):
        raysim.run(make_settings(tmp_path / "run", patience=2), task)
    result = raysim.run(make_settings(tmp_path / "run"), task)
    assert result.summary["best_round"] is None
    assert not (tmp_path / "run/model_best.safetensors").exists()
