"""Temperatures by round, client and sample, against NumPy and against `local.temperature`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim.api.selection import History
from raysim.storage.rows.parted import read_table
from raysim.temperature.plateau import Plateau
from raysim.temperature.schedule import Schedule
from raysim.testing import ComponentContract
from raysim.training.stacked.cuda_graphs import GraphRecorder
from tests.driver.test_local_tests import logits_of
from tests.methods.test_oracle import LR, assert_close, gradient, start_of
from tests.tasks import UNEQUAL, Notes, make_settings, make_task, model_of
from tests.training.stacked.test_cuda_graphs import Tape

SIZES = (3, 40, 17, 8)
ROUNDS, EPOCHS = 3, 2
BASE = 2.0  # local.temperature


class ByLoss(raysim.Temperature):
    """A user's own: T from the clients' last losses, and what it has seen in its state."""

    def init(self, clients):
        return {"rounds": np.zeros(clients)}

    def choose(self, now):
        losses = now.history.losses
        seen = now.state["rounds"][0]
        return now.temperature if np.isnan(losses).all() else np.nanmean(losses) / (1 + seen)

    def update(self, now, temperature, row):
        assert row["temperature"] == temperature and row["train_loss"] > 0
        return {"rounds": now.state["rounds"] + 1}


class Wrong(raysim.Temperature):
    """One that returns what is no temperature."""

    value: float = 0.0

    def choose(self, now):
        return self.value


class WrongByClient(Wrong):
    """One that gives a client what is no temperature."""

    value: float = 1.0

    def by_client(self, now, temperature, clients):
        return {clients[0]: -1.0}


class Branching(raysim.Temperature):
    """One that looks at a tensor's value, as rules must not."""

    def choose(self, now):
        return now.temperature

    def of_samples(self, view, outputs, batch):
        hard = bool((outputs.logits.argmax(1) != batch.y).any())
        return torch.full((len(batch.y),), 0.5 if hard else 1.0)


OWN = f"{__name__}:ByLoss"
SCHEDULE = {"temperature.name": "schedule", "temperature.rounds": [2, 3]}
SCHEDULE |= {"temperature.values": [0.5, 1.0]}
CASES: dict[str, dict[str, Any]] = {
    "schedule": SCHEDULE,
    "plateau": {"temperature.name": "plateau", "temperature.threshold": 0.9}
    | {"temperature.patience": 0, "temperature.factor": 0.25},
    "stragglers": {"temperature.name": "stragglers", "temperature.slowest": 0.5},
    "hard samples": {"temperature.name": "hard_samples", "temperature.hard_temperature": 0.25},
    "own": {"temperature.name": OWN},
}


def logits(w, x):
    return np.maximum(x @ w[0].T + w[1], 0) @ w[2].T + w[3]


def losses_of(w, x, y):
    z = logits(w, x)
    return np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[range(len(y)), y]


class Oracle:
    """Full-batch FedAvg with T by round, client and sample."""

    def __init__(self, case: str) -> None:
        self.case, self.losses, self.temperatures = case, np.array([]), [BASE]

    def of_round(self, number: int) -> float:
        if self.case == "schedule":
            return (BASE, 0.5, 1.0)[number]
        if self.case == "plateau":  # the first value is the best; no later one is 90% below
            return (BASE, BASE, BASE / 4)[number]
        if self.case == "own" and number:
            return float(self.losses.mean()) / (1 + number)
        return BASE

    def of_samples(self, t: float, k: int, w: Any, x: Any, y: Any) -> Any:
        if self.case == "stragglers":
            return 0.25 if k in (1, 2) else t
        if self.case == "hard samples":
            return np.where(logits(w, x).argmax(1) != y, 0.25, t)[:, None]
        return t

    def run(self, w: Any, clients: Any, mu: float) -> Any:
        total, self.temperatures = sum(len(y) for _, y in clients), []
        for number in range(ROUNDS):
            t = self.of_round(number)
            self.temperatures.append(t)
            mean, losses = [np.zeros_like(p) for p in w], []
            for k, (x, y) in enumerate(clients):
                local, own = [p.copy() for p in w], []
                for _ in range(EPOCHS):
                    own.append(losses_of(local, x, y).mean())
                    g = gradient(local, x, y, self.of_samples(t, k, local, x, y))
                    local = [
                        p - LR * (d + mu * (p - q)) for p, d, q in zip(local, g, w, strict=True)
                    ]
                losses.append(np.mean(own))
                mean = [m + len(y) / total * p for m, p in zip(mean, local, strict=True)]
            w, self.losses = mean, np.array(losses)
        return w


@pytest.mark.parametrize("stack", [0, 4])
@pytest.mark.parametrize("case", [*CASES])
def test_rounds_against_numpy(tmp_path, case, stack):
    mu = 0.7 if stack else 0.0
    method = {"method.name": "fedprox", "method.mu": mu} if mu else {"method.name": "fedavg"}
    options = {"rounds": ROUNDS, "fraction": 1.0, "local.epochs": EPOCHS, "local.lr": LR}
    options |= {"local.batch_size": "full", "local.temperature": BASE, "engine.vectorize": stack}
    task, oracle = make_task(SIZES), Oracle(case)
    w, clients = start_of(task), [(x.astype(np.float64), y) for x, y in task.clients]
    settings = make_settings(tmp_path, **{**options, **method, **CASES[case]})
    result = raysim.run(settings, task)
    expected = oracle.run(w, clients, mu)
    assert_close(result.params, expected)
    rows = result.metrics.to_pylist()
    assert [r["temperature"] for r in rows] == pytest.approx(oracle.temperatures, rel=1e-5)
    for at, t in (("", 1), ("_at_temperature", rows[-1]["temperature"])):  # that of its round
        z = logits_of(result.params, task.test[0]).double() / t
        loss = nn.functional.cross_entropy(z, torch.as_tensor(task.test[1]))
        assert rows[-1][f"test_loss{at}"] == pytest.approx(float(loss), rel=1e-5)
    own = pq.read_table(tmp_path / "clients.parquet")
    assert ("temperature" in own.column_names) == (case == "stragglers")
    if case == "stragglers":
        assert own["temperature"].to_pylist() == ROUNDS * [BASE, 0.25, 0.25, BASE]


@pytest.mark.parametrize(
    "method",
    [
        {"method.name": "fedavg", "analysis": "temperature"},
        *({"method.name": name} for name in ("scaffold", "fsvrg", "mifl", "fedma", "fedbuff")),
        {"method.name": "ditto", "evaluation.clients": True, "engine.vectorize": 3},
    ],
    ids=lambda method: method["method.name"],
)
def test_a_chosen_temperature_is_that_of_the_setting(tmp_path, method):
    """In passes of each kind, deployments, evaluations and analyses."""
    task, runs = make_task(UNEQUAL), {}
    first = {"temperature.name": "schedule", "temperature.rounds": [1], "temperature.values": [0.5]}
    for name, options in (("chosen", first), ("set", {"local.temperature": 0.5})):
        given = {"fraction": 1.0, "rounds": 2, **method, **options}
        runs[name] = raysim.run(make_settings(tmp_path / name, **given), task)
    assert model_of(tmp_path / "chosen") == model_of(tmp_path / "set")
    rows = [
        [{k: v for k, v in row.items() if "seconds" not in k} for row in run.metrics.to_pylist()]
        for run in runs.values()
    ]
    assert rows[0] == [{**row, "temperature": 0.5} for row in rows[1]]
    tables = [path.relative_to(tmp_path / "set") for path in (tmp_path / "set").glob("analysis/*")]
    assert bool(tables) == ("analysis" in method)
    for table in tables:
        assert read_table(tmp_path / "set" / table).equals(read_table(tmp_path / "chosen" / table))


def test_steps_that_repeat_are_not_those_of_the_temperature_before(tmp_path):
    """After 100 equal steps they are recorded; a second run goes on at the second T alone."""
    task = make_task((40,))
    options = {"clients": 1, "fraction": 1.0, "local.epochs": 1, "local.steps": 130}
    options |= {"local.batch_size": "full", "local.lr": 0.05}
    both = {"rounds": 2, "temperature.rounds": [2], "temperature.values": [0.5]}
    both |= {"temperature.name": "schedule"}
    raysim.run(make_settings(tmp_path / "both", **options, **both), task)
    raysim.run(make_settings(tmp_path / "first", **options, rounds=1), task)
    second = {"rounds": 1, "local.temperature": 0.5, "start_from": str(tmp_path / "first")}
    raysim.run(make_settings(tmp_path / "second", **options, **second), task)
    assert model_of(tmp_path / "both") == model_of(tmp_path / "second")


def test_steps_of_stacks_that_are_kept_are_those_of_one_temperature(tmp_path, monkeypatch):
    """As on a GPU, with tapes in place of its graphs."""
    task, options = make_task((40,) * 4), {"engine.vectorize": 4, "fraction": 1.0, **SCHEDULE}
    plain = raysim.run(make_settings(tmp_path / "plain", rounds=3, **options), task)
    recorder = "raysim.training.stacked.trainer.recorder_on"
    monkeypatch.setattr(recorder, lambda device, note: GraphRecorder(Tape, note))
    monkeypatch.setattr(Tape, "played", 0)
    kept = raysim.run(make_settings(tmp_path / "kept", rounds=3, **options), task)
    for name, tensor in plain.params.items():
        assert torch.equal(tensor, kept.params[name]), name


def test_temperatures_of_samples_that_cannot_be_stacked_are_noted(tmp_path):
    listener, models = Notes(), set()
    for stack in (0, 3):
        options = {"temperature.name": f"{__name__}:Branching", "engine.vectorize": stack}
        settings = make_settings(tmp_path / str(stack), rounds=1, **options)
        raysim.run(settings, make_task(SIZES), listener)
        models.add(model_of(tmp_path / str(stack)))
    (note,) = listener.notes
    assert note.startswith("engine.vectorize=3: clients are trained one at a time: vmap: ")
    assert len(models) == 1


@pytest.mark.parametrize("case", ["hard samples", "stragglers", "schedule"])
def test_mifl_with_temperatures_is_the_same_stacked(tmp_path, case):
    """Its criterion reads the temperature itself."""
    params = []
    for stack in (0, 3):
        options = {"method.name": "mifl", "rounds": 2, "engine.vectorize": stack, **CASES[case]}
        options |= {"local.lr": 0.02, "local.temperature": 1.5}
        settings = make_settings(tmp_path / str(stack), **options)
        params.append(raysim.run(settings, make_task(UNEQUAL)).params)
    for name, tensor in params[0].items():
        assert np.allclose(tensor, params[1][name], rtol=0, atol=2e-6), name


@pytest.mark.parametrize("case", ["stragglers", "schedule"])
def test_asynchronous_rounds_that_do_not_overlap_are_those_of_fedavg(tmp_path, case):
    """A client trains at the T of the version from which it starts."""
    options = {"fraction": 0.5, "rounds": 3, "local.temperature": 0.7, **CASES[case]}
    for name, more in (("fedavg", {}), ("fedbuff", {"method.buffer": 4})):
        settings = make_settings(tmp_path / name, **{"method.name": name}, **more, **options)
        raysim.run(settings, make_task((24,) * 8))
    assert model_of(tmp_path / "fedavg") == model_of(tmp_path / "fedbuff")


@pytest.mark.parametrize("case", ["own", "stragglers"])
def test_clients_under_way_keep_their_temperature_in_a_resumed_run(tmp_path, case):
    class Overlapping(ComponentContract):
        method, settings = "fedbuff", {**CASES[case], "method.buffer": 2, "method.concurrency": 5}

    Overlapping().assert_resumes(tmp_path, "mlp", {"local.temperature": 1.5, "rounds": 5})


@given(
    st.dictionaries(st.integers(1, 40), st.floats(0.05, 4), max_size=4),
    st.sampled_from(["hold", "linear", "geometric"]),
    st.integers(0, 50),
)
def test_schedule_by_its_formula(points, between, number):
    rounds = sorted(points)
    schedule = Schedule(
        rounds=tuple(rounds), values=tuple(points[r] for r in rounds), between=between
    )
    known = {1: BASE} | points
    before = max(r for r in known if r <= number + 1)
    after = min((r for r in known if r > number + 1), default=None)
    expected = known[before]
    if between != "hold" and after is not None:
        share = (number + 1 - before) / (after - before)
        if between == "linear":
            expected += share * (known[after] - expected)
        else:
            expected *= (known[after] / expected) ** share
    assert schedule.choose(input_of(number)) == pytest.approx(expected, rel=1e-9)


def input_of(number: int, state: Any = None) -> raysim.TemperatureRound:
    """Return the input of a temperature after some rounds."""
    one, draws = np.ones(1, dtype=np.int64), np.random.default_rng
    return raysim.TemperatureRound(number, BASE, one, History.empty(1), len, draws, state or {})


@pytest.mark.parametrize(
    ("fields", "values", "expected"),
    [
        # The second bad round in a row is beyond a patience of 1; a None is passed over.
        ({"patience": 1}, [1.0, 1.0, None, 0.99995, 0.9, 0.9, 0.9], [2, 2, 2, 2, 1, 1, 1]),
        ({"patience": 0, "factor": 0.1, "least": 0.5}, [1.0, 1.0, 1.0, 1.0], [2, 2, 0.5, 0.5]),
        ({"patience": 0, "factor": 2.0, "most": 3.0}, [1.0, 2.0, 2.0, 2.0], [2, 2, 3, 3]),
        ({"patience": 0, "factor": 0.5, "least": 3.0}, [1.0, 1.0, 1.0], [2, 2, 2]),
        ({"metric": "holdout_accuracy", "patience": 0}, [0.1, 0.2, 0.2, 0.1], [2, 2, 2, 1]),
        ({"patience": 0}, [float("nan"), 1.0, 0.5], [2, 2, 2]),
    ],
)
def test_plateau_by_hand(fields, values, expected):
    plateau, state, found = Plateau(**fields), {}, []
    for number, value in enumerate(values):
        now = input_of(number, state)
        found.append(plateau.choose(now))
        state = plateau.update(now, found[-1], {plateau.metric: value})
    assert found == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature.name": f"{__name__}:Wrong"},
            "choose returned 0.0; must return",
        ),
        ({"temperature.name": f"{__name__}:WrongByClient"}, "by_client returned {0: -1.0}"),
        ({**SCHEDULE, "temperature.values": [0.5]}, "values=[0.5]: must be one for each of rounds"),
        ({"temperature": 0.5}, "did you mean local.temperature=0.5?"),
        ({"temperature": True}, "temperature=true: temperature.name must be the name of a temp"),
        ({**SCHEDULE, "temperature.rounds": [3, 2]}, "rounds=[3, 2]: must be ascending"),
        ({"temperature.name": "plateau", "temperature.least": 5.0}, "least=5.0: must be at most"),
        (
            {"temperature.name": "plateau", "temperature.metric": "holdout_loss"},
            "temperature.metric=holdout_loss: needs evaluation.holdout above 0",
        ),
    ],
)
def test_refused(tmp_path, options, message):
    with pytest.raises(raysim.SettingsError) as refused:
        raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES))
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert "=True?" not in str(refused.value)  # which is no number
    assert not (tmp_path / "run").exists()


def test_a_task_that_is_no_classification_is_refused(tmp_path):
    task = raysim.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 1)),
        clients=[(np.ones((4, 12), np.float32), np.ones(4, np.float32))] * 3,
        test=(np.ones((4, 12), np.float32), np.ones(4, np.float32)),
        scoring=raysim.REGRESSION,
    )
    settings = make_settings(Path(tmp_path / "run"), **SCHEDULE)
    with pytest.raises(raysim.SettingsError, match="the task is no classification"):
        raysim.run(settings, task)
