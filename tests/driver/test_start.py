"""Start of a run: the process of the driver, and what a refusal leaves."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.driver.start import start
from raysim.methods.fedavg import FedAvg
from tests.tasks import UNEQUAL, make_settings, make_task


def test_the_driver_of_actors_computes_with_their_threads(tmp_path, monkeypatch):
    """As inline, where driver and worker are one process."""
    before, found = torch.get_num_threads(), []

    def stop(*_: object) -> None:
        found.append(torch.get_num_threads())
        raise raysim.RunError("seen")

    monkeypatch.setattr(start, "ray_runtime", lambda _: nullcontext(lambda resume: None))
    monkeypatch.setattr(start, "open_executor", stop)
    settings = make_settings(
        tmp_path, **{"engine.backend": "ray", "engine.threads_per_actor": before + 2}
    )
    with pytest.raises(raysim.RunError, match="seen"):
        raysim.run(settings, make_task((4, 6)))
    assert found == [before + 2] and torch.get_num_threads() == before


class Late(FedAvg):
    """Reports a metric with a name of the engine's from a round on."""

    bad_from: int = 1

    def metrics(self, state: raysim.ServerState) -> dict[str, float]:
        return {"clients" if state.info.get("rounds", 0) >= self.bad_from else "own": 1.0}

    def server_update(self, now: Any, state: Any, reduced: Any) -> raysim.ServerState:
        after = super().server_update(now, state, reduced)
        return raysim.ServerState(after.groups, {"rounds": now.number + 1})


@pytest.mark.parametrize("out", [None, "runs/own/deep", "existing"])
def test_a_run_that_is_refused_before_its_first_commit_leaves_no_folder(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    Path("existing").mkdir()
    given = {"method.name": f"{__name__}:Late", "rounds": 2}
    settings = make_settings(tmp_path, **given).override({"out": out})
    with pytest.raises(raysim.SettingsError, match="clients"):
        raysim.run(settings, make_task(UNEQUAL))
    assert [*tmp_path.rglob("*")] == [tmp_path / "existing"] * (out != "existing")


def test_a_run_that_is_refused_later_keeps_its_rounds(tmp_path):
    given = {"method.name": f"{__name__}:Late", "method.bad_from": 2, "checkpoint_every": 5}
    with pytest.raises(raysim.SettingsError, match="clients"):
        raysim.run(make_settings(tmp_path / "run", **given), make_task(UNEQUAL))
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["round_000001"]


ASKED: list[str] = []


class Counted(FedAvg):
    """Counts what it is asked before any client trains."""

    def round(self, now: Any, state: Any) -> Any:
        ASKED.append("round")
        return (yield from super().round(now, state))


def test_the_checks_of_a_start_ask_a_method_for_its_first_pass_once(tmp_path, monkeypatch):
    """Attack, aggregation, stages, down-link, weights and notes all read it."""

    def stop(*_: object) -> None:
        raise raysim.RunError("seen")

    monkeypatch.setattr(start, "open_executor", stop)
    ASKED.clear()
    parts = {
        "attack.name": "sign_flip",
        "attack.fraction": 0.5,
        "aggregation.name": "median",
        "channel": {"int8": {}},
        "downlink": {"topk": {"fraction": 0.5}},
        "selection.name": "weighted",
        "method.name": f"{__name__}:Counted",
    }
    with pytest.raises(raysim.RunError, match="seen"):
        raysim.run(make_settings(tmp_path / "run", **parts), make_task(UNEQUAL))
    assert ASKED == ["round"] * 3  # then by the rehearsal: with a down-link it has two rounds


class Overlapping(FedAvg):
    """States the overlap of its rounds by a number alone."""

    def asynchrony(self, size: int) -> Any:
        return size


def test_an_overlap_of_another_type_is_refused_in_one_line(tmp_path):
    said = r"^method.name=.*Overlapping: asynchrony returned 4; must return a raysim.Asynchrony, or"
    settings = make_settings(tmp_path / "run", **{"method.name": f"{__name__}:Overlapping"})
    with pytest.raises(raysim.SettingsError, match=said):
        raysim.run(settings, make_task(UNEQUAL))
    assert not (tmp_path / "run").exists()
