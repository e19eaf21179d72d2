"""The rehearsal of a run: what it refuses before anything starts, and that it leaves no trace."""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.driver.start import start
from raysim.methods.fedasync import FedAsync
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedma.method import FedMa
from raysim.testing.tasks import SmallNet
from raysim.training.update import Update
from tests.tasks import EQUAL, UNEQUAL, Notes, make_settings, make_task

SEEN: list[Any] = []
"""Numbers of the rounds that begin, or sizes of the batches of local steps."""


class Started(Notes):
    """Keeps whether a run has started."""

    has_started = False

    def started(self, run: Any) -> None:
        self.has_started = True


class Fails(FedAvg):
    """FedAvg whose clients of few samples fail at a step."""

    fewest: int = 10_000

    def rules(self) -> raysim.Rules:
        return raysim.Rules(penalties=(self._fail,))

    def _fail(self, view: Any, outputs: Any, batch: Any) -> Any:
        if len(batch.y) < self.fewest:
            raise ValueError("a bug in the penalty")
        return outputs.logits.sum() * 0


class Overlapping(Fails):
    """The same, in rounds that overlap."""

    def asynchrony(self, size: int) -> raysim.Asynchrony:
        return raysim.Asynchrony(buffer=2, concurrency=size)


class OneByOne(FedAsync):
    """FedAsync, whose versions take one update, with a bug behind that."""

    def metrics(self, state: Any) -> Any:
        raise ValueError("a bug in the metrics")


class Remembers(raysim.Stage):
    """Keeps something that it does not have at first."""

    def update(self, now: Any, reduced: Any) -> Any:
        return {"rounds": now.number + 1.0}, {}


class Timed(raysim.Temperature):
    """Temperature that keeps a column of the round."""

    column: str

    def choose(self, now: Any) -> float:
        return 1.0

    def update(self, now: Any, temperature: float, row: Any) -> Any:
        return {"kept": row[self.column]}


class Reports(raysim.Selection):
    """Selection that keeps a column of the clients."""

    column: str

    def select(self, now: Any) -> list[int]:
        return [*range(now.wanted)]

    def update(self, now: Any, selected: Any, results: Any) -> Any:
        return {"kept": results.reports[self.column]}, {}


class ByCohort(FedAvg):
    """FedAvg whose server takes the clients that arrived for those that were selected."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        assert [*zip(now.cohort, reduced.clients, strict=True)]
        return super().server_update(now, state, reduced)


class BySelected(raysim.Selection):
    """Selection that takes the clients of the results for those that it selected."""

    def select(self, now: Any) -> list[int]:
        return [*range(now.wanted)]

    def update(self, now: Any, selected: Any, results: Any) -> Any:
        assert [*zip(selected, results.losses, strict=True)]
        return {}, {}


class Compares(FedAvg):
    """FedAvg whose server compares clients, of which it needs two."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        if len(reduced.clients) < 2:
            raise ValueError("there is nothing to compare")
        return super().server_update(now, state, reduced)


class Counts(FedAvg):
    """FedAvg that counts its rounds."""

    def round(self, now: Any, state: Any) -> Any:
        SEEN.append(now.number)
        return (yield from super().round(now, state))


class Catches(FedMa):
    """Goes on where a pass fails, and so could hide a rule that it breaks."""

    def round(self, now: Any, state: Any) -> Any:
        try:
            return (yield from super().round(now, state))
        except Exception:
            return state, {}


MEDIAN = {"aggregation.name": "median", "fraction": 1.0}
KNOWING = {"attack.name": "min_max", "attack.fraction": 0.4, "fraction": 1.0}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "median fedma": ({"method.name": "fedma", **MEDIAN}, "whose clients send 'layer' without"),
    "a method that goes on": (
        {"method.name": f"{__name__}:Catches", **MEDIAN},
        "whose clients send 'layer' without a base",
    ),
    "median fsvrg": ({"method.name": "fsvrg", **MEDIAN}, "whose clients send 'gradient' without"),
    "median fedproto": ({"method.name": "fedproto", **MEDIAN}, "clients send 'prototypes' without"),
    "median pooled": ({"method.name": "centralized", **MEDIAN}, "whose clients send 'model'"),
    "attack fedma": ({"method.name": "fedma", **KNOWING}, "whose clients send 'layer' without"),
    "attack fsvrg": ({"method.name": "fsvrg", **KNOWING}, "whose clients send 'gradient' without"),
    "one column": (
        {"channel": {"clip": {}}, "aggregation.name": "norm_bound"},
        "'update_norm' has the name of a number that clients report",
    ),
    "two claims": (
        {"method.name": "dp_ftrl", "channel": {"gaussian": {}}, "aggregation.weighting": "fixed"},
        "does not go with method.name=dp_ftrl, which claims privacy, too",
    ),
    "root": (
        {"method.name": "mifl", "aggregation.name": "fltrust", "aggregation.root": 10},
        "whose clients send what they have trained in an earlier pass",
    ),
    "penalty": ({"method.name": f"{__name__}:Fails"}, "ValueError: a bug in the penalty (test_re"),
    "overlap": ({"method.name": f"{__name__}:Overlapping"}, "ValueError: a bug in the penalty"),
    "kept": (
        {"method.name": "fedbuff", "channel": {f"{__name__}:Remembers": {}}},
        ":Remembers: does not go with method.name=fedbuff, whose rounds overlap: their order would",
    ),
    "version": ({"method.name": f"{__name__}:OneByOne"}, "ValueError: a bug in the metrics"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_fails_in_the_first_round_is_refused_before_it(tmp_path, case):
    own, said = REFUSED[case]
    listener = Started()
    with pytest.raises(raysim.RaysimError) as caught:
        raysim.run(make_settings(tmp_path / "run", **own), make_task(UNEQUAL), listener)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not listener.has_started and not (tmp_path / "run").exists()


def test_a_check_rehearses(tmp_path):
    settings = make_settings(tmp_path / "run", **{"method.name": f"{__name__}:Fails"})
    with pytest.raises(raysim.SettingsError, match="a bug in the penalty"):
        raysim.check(settings, make_task(UNEQUAL))


def test_what_clients_cannot_do_on_a_cpu_they_may_do_on_a_gpu(tmp_path):
    own = {"method.name": f"{__name__}:Fails", "engine.gpus_per_actor": 1}
    with pytest.raises(raysim.RaysimError) as caught:
        raysim.run(make_settings(tmp_path / "run", **own), make_task(UNEQUAL))
    assert "rehearsal" not in str(caught.value)


def of_column(kind: str, column: str) -> dict[str, Any]:
    """Return the settings of a component that needs a column."""
    component = {"temperature": "Timed", "selection": "Reports"}[kind]
    return {f"{kind}.name": f"{__name__}:{component}", f"{kind}.column": column}


WORKS: dict[str, dict[str, Any]] = {
    **{
        f"{kind}'s {column}": {"clock.name": "devices", **of_column(kind, column)}
        for kind, column in (
            ("temperature", "virtual_joules"),
            ("temperature", "lost_clients"),
            ("selection", "virtual_start"),
            ("selection", "virtual_seconds"),
        )
    },
    "staleness": {"method.name": "fedbuff", **of_column("temperature", "staleness_max")},
    "new clients": {
        "evaluation.local_test": 0.25,
        "evaluation.new_clients": 0.3,
        "analysis": "label_information",
    },
    "own models": {"method.name": "local", **MEDIAN},
    "several clients": {"method.name": f"{__name__}:Compares"},
    "a client that fails": {
        "method.name": f"{__name__}:Fails",
        "method.fewest": 2,
        "fraction": 1.0,
        "on_client_error": "drop",
    },
    "nobody selected": {"selection.name": "poisson", "fraction": 0.02},
}


@pytest.mark.parametrize(
    "own", [{"method.name": f"{__name__}:ByCohort"}, {"selection.name": f"{__name__}:BySelected"}]
)
def test_a_large_cohort_is_taken_to_be_the_clients_of_the_rehearsal(tmp_path, own):
    settings = make_settings(tmp_path / "run", rounds=1, fraction=1.0, **own)
    assert raysim.run(settings, make_task((3,) * 25)).summary["rounds"] == 1


@pytest.mark.parametrize("case", WORKS)
def test_what_a_cohort_can_do_runs(tmp_path, case):
    settings = make_settings(tmp_path / "run", rounds=1, **WORKS[case])
    assert raysim.run(settings, make_task((1, *EQUAL))).summary["rounds"] == 1


class _SeenError(Exception):
    """The rehearsal is over."""


def rehearse(folder: Path, monkeypatch: Any, **own: Any) -> None:
    """Start a run, and stop it when it has been rehearsed."""

    def stop(*_: object) -> None:
        raise _SeenError

    monkeypatch.setattr(start, "open_executor", stop)
    with pytest.raises(_SeenError):
        raysim.run(make_settings(folder, **own), make_task(UNEQUAL, Sized))


class Sized(SmallNet):
    """Network that notes the batches it is trained on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            SEEN.append(len(x))
        return super().forward(x)


@pytest.mark.parametrize(
    ("own", "clients"),
    [
        ({}, 1),
        ({"method.name": "fedbuff"}, 1),
        ({"attack.name": "min_max", "attack.per_round": 1}, 2),
        ({"aggregation.name": "krum", "aggregation.byzantine": 1, "fraction": 1.0}, 6),
    ],
    ids=["one", "asynchronous", "attack", "krum"],
)
def test_a_client_takes_one_step_on_few_samples(tmp_path, monkeypatch, own, clients):
    """Krum needs 2f + 3 updates; of two and four, the next trial takes as many again."""
    steps: list[object] = []
    move = Update.move
    monkeypatch.setattr(Update, "move", lambda *given: (steps.append(0), move(*given))[1])
    SEEN.clear()
    more = {"local.epochs": 3, "local.batch_size": "full"}
    rehearse(tmp_path / "run", monkeypatch, **own, **more)
    assert len(steps) == clients and len(SEEN) == clients and max(SEEN) <= 8


class Draws(FedAvg):
    """FedAvg whose server draws from the generators of the process, and warns."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        warnings.warn(f"{torch.rand(1)} {np.random.rand()} {random.random()}", stacklevel=1)
        return super().server_update(now, state, reduced)


def test_a_rehearsal_leaves_no_trace(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    own = {"method.name": f"{__name__}:Draws", "channel": {"error_feedback": {}, "topk": {}}}
    own |= {"evaluation.clients": True, "analysis": "activations", "keep_clients": True}

    def states() -> list[Any]:
        numpy = np.random.get_state()[1].tolist()
        return [torch.random.get_rng_state().tolist(), numpy, random.getstate()]

    before, threads = states(), torch.get_num_threads()
    rehearse(tmp_path / "run", monkeypatch, **own)
    assert states() == before and torch.get_num_threads() == threads
    assert [*folder.iterdir()] == [] and not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


class Changes(FedAvg):
    """FedAvg whose server changes the network that it is given, as it must not."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        SEEN.append(float(next(now.network.parameters()).detach().sum()))
        with torch.no_grad():
            for weights in now.network.parameters():
                weights.add_(1)
        return super().server_update(now, state, reduced)


def test_a_rehearsal_has_a_network_of_its_own(tmp_path):
    SEEN.clear()
    settings = make_settings(tmp_path, rounds=1, **{"method.name": f"{__name__}:Changes"})
    raysim.run(settings, make_task(UNEQUAL))
    rehearsed, run = SEEN
    assert rehearsed == run


def test_a_run_that_is_resumed_is_not_rehearsed(tmp_path):
    own = {"method.name": f"{__name__}:Counts", "rounds": 2}
    settings, task = make_settings(tmp_path / "run", **own), make_task(UNEQUAL)
    rounds = raysim.rounds(settings, task)
    SEEN.clear()
    next(rounds)
    assert SEEN == [0, 0]  # the rehearsal, and the first round
    rounds.close()
    SEEN.clear()
    raysim.resume(tmp_path / "run", task)
    assert SEEN == [1]
