"""A run that is trained further has what a run of that many rounds has."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial

import pytest
import torch

import raysim
from raysim.driver.rounds.commits import Commits
from raysim.driver.rounds.run import Run
from raysim.storage.client_states import ClientStates
from tests.faults.forked import Child
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task, model_of

OTHER = (2, *UNEQUAL[1:])
CPU = torch.device("cpu")
TIMES = ("seconds", "evaluation_seconds", "checkpoint_seconds")
WAYS = {
    "fedavg": {},
    "scaffold": {"method.name": "scaffold", "local.momentum": 0.5},
    "fedadam": {"method.name": "fedadam", "selection.name": "round_robin"},
    "ditto": {"method.name": "ditto", "evaluation.holdout": 0.2},
    "clock": {"clock.name": "devices", "checkpoint_every": 4},
    "oort": {"selection.name": "oort", "clock.name": "devices"},
    "decay": {"local.lr_decay": 0.9, "channel": {"clip": {"norm": 0.5}}},
}


def rows(result, *without):
    names = [n for n in result.metrics.column_names if n not in (*TIMES, *without)]
    return result.metrics.select(names).to_pylist()


def newest(run):
    states = ClientStates(run / "clients")
    found = {}
    for client in range(len(UNEQUAL)):
        if versions := states.versions(client):
            groups = states.read(client, max(versions), CPU)
            found[client] = {g: {n: t.tolist() for n, t in of.items()} for g, of in groups.items()}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_rounds_of_a_finished_run_grow(tmp_path, way):
    options = {"fraction": 0.5, **WAYS[way]}
    whole = raysim.run(make_settings(tmp_path / "whole", rounds=7, **options), make_task(UNEQUAL))
    raysim.run(make_settings(tmp_path / "grown", rounds=3, **options), make_task(UNEQUAL))
    grown = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 7})
    assert model_of(tmp_path / "grown") == model_of(tmp_path / "whole")
    assert newest(tmp_path / "grown") == newest(tmp_path / "whole")
    assert rows(grown) == rows(whole)
    timed = [name for name in whole.summary if "seconds" not in name]
    assert {n: grown.summary[n] for n in timed} == {n: whole.summary[n] for n in timed}


PLATEAU = {
    **{"temperature.name": "plateau", "temperature.metric": "holdout_accuracy"},
    **{"temperature.patience": 0, "temperature.threshold": 0.9, "evaluation.holdout": 0.2},
}


@pytest.mark.parametrize("more", [{}, PLATEAU], ids=["plain", "plateau"])
def test_rows_differ_in_the_evaluation_at_the_old_end_alone(tmp_path, more):
    """A temperature that follows evaluations does not follow that one."""
    options = {"evaluation.every": 4, **more}
    whole = raysim.run(make_settings(tmp_path / "whole", rounds=8, **options), make_task(UNEQUAL))
    raysim.run(make_settings(tmp_path / "grown", rounds=3, **options), make_task(UNEQUAL))
    grown = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 8})
    both = zip(rows(grown), rows(whole), strict=True)
    assert [one["round"] for one, other in both if one != other] == [3]
    assert model_of(tmp_path / "grown") == model_of(tmp_path / "whole")


def test_one_that_is_interrupted_goes_on_by_itself(tmp_path):
    """Its new number of rounds is sealed before the first new one; twice grown, too."""
    settings = make_settings(tmp_path / "grown", rounds=2, checkpoint_every=2)
    raysim.run(settings, make_task(UNEQUAL))
    with pytest.raises(KeyboardInterrupt):
        raysim.resume(tmp_path / "grown", make_task(UNEQUAL), StopAfter(3), overrides={"rounds": 5})
    assert not (tmp_path / "grown" / "summary.json").exists()
    assert json.loads((tmp_path / "grown" / "config.json").read_text())["rounds"] == 5
    result = raysim.resume(tmp_path / "grown", make_task(UNEQUAL))
    assert result.metrics["round"].to_pylist() == [1, 2, 3, 4, 5]
    result = raysim.resume(tmp_path / "grown", make_task(UNEQUAL), overrides={"rounds": 6})
    whole = raysim.run(make_settings(tmp_path / "whole", rounds=6), make_task(UNEQUAL))
    assert rows(result) == rows(whole)
    assert model_of(tmp_path / "grown") == model_of(tmp_path / "whole")


def test_a_run_that_was_ended_early_goes_on(tmp_path):
    settings = make_settings(tmp_path / "ended", rounds=5)
    with raysim.rounds(settings, make_task(UNEQUAL)) as rounds:
        next(rounds)
        rounds.finish()
    assert len(raysim.resume(tmp_path / "ended", make_task(UNEQUAL)).metrics) == 1
    result = raysim.resume(tmp_path / "ended", make_task(UNEQUAL), overrides={"rounds": 6})
    assert len(result.metrics) == 6


def test_one_that_other_data_refuses_keeps_its_rounds(tmp_path):
    result = raysim.run(make_settings(tmp_path, rounds=2), make_task(UNEQUAL))
    with pytest.raises(raysim.RunError, match="would not give the same bits: training samples"):
        raysim.resume(tmp_path, make_task(OTHER), overrides={"rounds": 4})
    assert json.loads((tmp_path / "config.json").read_text())["rounds"] == 2
    again = raysim.resume(tmp_path, make_task(UNEQUAL))
    assert again.summary == result.summary and (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("every", [1, 2])
def test_one_whose_checkpoints_are_gone_stays(tmp_path, every):
    options = {"rounds": 3, "evaluation.every": every}
    raysim.run(make_settings(tmp_path, **options), make_task(UNEQUAL))
    shutil.rmtree(tmp_path / "checkpoints")
    rows_before = (tmp_path / "metrics.parquet").read_bytes()
    with pytest.raises(raysim.RunError, match="has no checkpoints left to go on from"):
        raysim.resume(tmp_path, make_task(UNEQUAL), overrides={"rounds": 4})
    assert (tmp_path / "metrics.parquet").read_bytes() == rows_before


@pytest.mark.parametrize(("kind", "name"), [(Run, "done_round"), (Commits, "save")])
def test_a_killed_one_goes_on(tmp_path, monkeypatch, kind, name):
    """Before its first new round, and before the first new checkpoint."""
    raysim.run(make_settings(tmp_path / "grown", rounds=2), make_task(UNEQUAL))
    whole = raysim.run(make_settings(tmp_path / "whole", rounds=4), make_task(UNEQUAL))
    given = (tmp_path / "grown", make_task(UNEQUAL))
    with monkeypatch.context() as patch:
        patch.setattr(kind, name, lambda *given: os._exit(9))
        assert Child(partial(raysim.resume, *given, overrides={"rounds": 4})).wait().code == 9
    result = raysim.resume(*given)
    assert rows(result) == rows(whole) and model_of(result.run_dir) == model_of(whole.run_dir)


@pytest.mark.parametrize(
    ("options", "rounds", "message"),
    [
        ({}, 2, "^rounds=2: must be at least 3, as in .*; a run cannot be shortened$"),
        (
            {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 3},
            4,
            "^rounds=4: must be 3 with method.name=fedbuff: its rounds overlap, and the end",
        ),
    ],
    ids=["fewer", "overlapping"],
)
def test_what_cannot_grow_is_one_line_and_stays(tmp_path, options, rounds, message):
    raysim.run(make_settings(tmp_path / "run", rounds=3, **options), make_task(UNEQUAL))
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(raysim.RunError, match=message):
        raysim.resume(tmp_path / "run", make_task(UNEQUAL), overrides={"rounds": rounds})
    assert files == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
