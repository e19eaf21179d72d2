"""Asynchronous rounds: same bits whatever is trained when and again, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.driver.asynchronous.draws import always
from raysim.driver.asynchronous.rounds import AsynchronousRounds
from raysim.execution.base import InlineExecutor
from raysim.methods.fedbuff import FedBuff
from raysim.methods.fedprox import proximal
from raysim.numbers.seeds import sample_cohort, stream
from raysim.selection.uniform import Uniform
from tests.driver.asynchronous.draws import uniform_draws
from tests.tasks import Notes, StopAfter, make_settings, make_task, model_of

SIZES = (3, 40, 17, 8, 25, 60, 5, 12, 30)
BUFFERED = {
    "method.name": "fedbuff",
    "method.buffer": 2,
    "method.concurrency": 6,
    "checkpoint_every": 1,
    "rounds": 8,
    "local.epochs": 1,
    "local.lr_decay": 0.9,
}
TIERED = {
    "method.name": "fedat",
    "method.tiers": 2,
    "method.concurrency": 7,
    "checkpoint_every": 1,
    "rounds": 8,
    "local.epochs": 1,
    "local.lr_decay": 0.9,
}
overlapping = pytest.mark.parametrize("method", [BUFFERED, TIERED], ids=["buffer", "tiers"])


def rows_of(folder: Any) -> list[dict[str, Any]]:
    rows = pq.read_table(folder / "clients.parquet").to_pylist()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Return the folder of a whole run of settings, which is run once."""
    folders: dict[str, Any] = {}

    def run(**options: Any) -> Any:
        if (key := str(options)) not in folders:
            folders[key] = tmp_path_factory.mktemp("straight")
            raysim.run(make_settings(folders[key], **options), make_task(SIZES))
        return folders[key]

    return run


@overlapping
@pytest.mark.parametrize(("stop", "stacked"), [(1, 0), (2, 3), (3, 0), (5, 3), (7, 0)])
def test_resumed_in_mid_queue(tmp_path, straight, method, stop, stacked):
    """Clients under way are trained again, alone or in the stacks that they were in."""
    options, task = {**method, "engine.vectorize": stacked}, make_task(SIZES)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **options), task, StopAfter(stop))
    about = tmp_path / f"broken/checkpoints/round_{stop:06d}/state.json"
    assert json.loads(about.read_text())["in_flight"]["queue"]["number"] == stop
    raysim.resume(tmp_path / "broken", task)
    assert model_of(tmp_path / "broken") == model_of(straight(**options))
    assert rows_of(tmp_path / "broken") == rows_of(straight(**options))


def test_a_damaged_queue_falls_back_to_the_checkpoint_before(tmp_path, straight):
    task = make_task(SIZES)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **BUFFERED), task, StopAfter(5))
    damaged = tmp_path / "broken/checkpoints/round_000005/in_flight.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4])
    listener = Notes()
    raysim.resume(tmp_path / "broken", task, listener)
    assert "in_flight.safetensors does not match its checksum" in listener.notes[0]
    assert model_of(tmp_path / "broken") == model_of(
        straight(**BUFFERED, **{"engine.vectorize": 0})
    )


class Choosing(InlineExecutor):
    """Executor that trains one item at a time, of those that it has been given, as it is told.

    Attributes:
        choose: Returns which one, by the places of all.
        given: Version and number of clients of each message.
        trained: Clients trained before each round ended.
    """

    def __init__(self, spec: Any, choose: Callable[[list[int]], int]) -> None:
        super().__init__(spec)
        self.choose = choose
        self.given: list[tuple[int, int]] = []
        self.trained = [0]
        self._line: list[tuple[int, Any, Any]] = []

    def submit(self, call, message, costs, failed_at=None, due=None):
        if call != "train":
            self.trained.append(self.trained[-1])
            super().submit(call, message, costs)
            return
        self.given.append((message.round_number, sum(map(len, costs))))
        self._line += [(due[item], item, message) for item in costs]

    def results(self, call, on_done=lambda done: None):
        while call == "train" and self._line:
            chosen = self.choose([place for place, *_ in self._line])
            _, item, message = self._line.pop(chosen)
            super().submit(call, message, {item: 1.0})
            self.trained[-1] += len(item)
            yield from super().results(call)
        if call != "train":
            yield from super().results(call)


def run_choosing(settings: Any, task: Any, choose: Callable[[list[int]], int]) -> Choosing:
    made: list[Choosing] = []

    def make(spec: Any, *_: Any) -> Choosing:
        made.append(Choosing(spec, choose))
        return made[-1]

    with mock.patch("raysim.driver.start.start.open_executor", make):
        raysim.run(settings, task)
    return made[0]


def first(places: list[int]) -> int:
    return places.index(min(places))


def test_a_version_is_trained_from_as_soon_as_it_exists(tmp_path):
    """Equal clients, K=2, M=6: six start from every third version, and nobody from the others."""
    options = {**BUFFERED, "method.staleness": "constant", "rounds": 9}
    found = run_choosing(make_settings(tmp_path, **options), make_task((20,) * 9), first)
    assert found.given == [(0, 6), (3, 6), (6, 6)]


@pytest.mark.parametrize("stacked", [0, 3])
def test_a_round_ends_as_soon_as_its_updates_are_there(tmp_path, straight, stacked):
    """What is wanted first is trained first: each round trains its two clients and nobody else."""
    options = {**BUFFERED, "engine.vectorize": stacked}
    found = run_choosing(make_settings(tmp_path / "a", **options), make_task(SIZES), first)
    trained = found.trained[:-1]  # after the last evaluation nothing is trained
    if stacked:
        assert trained[-1] >= 16 and trained[0] < 6
    else:
        assert trained == [2 * number for number in range(1, 9)]
    assert model_of(tmp_path / "a") == model_of(straight(**options))


@pytest.mark.parametrize("stacked", [0, 3])
def test_clients_are_due_with_the_updates_of_all_rounds_until_theirs(
    tmp_path, monkeypatch, stacked
):
    """A stack is due with the first of its clients; an update counts as one of a mean client."""
    submit, found = Choosing.submit, list[tuple[float, float]]()

    def submitted(executor, call, message, costs, *others):
        submit(executor, call, message, costs, *others)
        if call == "train":
            for stack in costs:
                rounds = [message.entries[c].round_number for c in stack if c in message.entries]
                found.append((others[1][stack], min(rounds) + 1))

    monkeypatch.setattr(Choosing, "submit", submitted)
    options = {**BUFFERED, "engine.vectorize": stacked, "local.epochs": 3}
    run_choosing(make_settings(tmp_path, **options), make_task(SIZES), first)
    mean = 3 * sum(SIZES) / len(SIZES)
    assert len({number for _, number in found}) > 4
    assert [due for due, _ in found] == pytest.approx([mean * 2 * n for _, n in found])


@overlapping
@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_in_any_order(tmp_path, straight, method, seed):
    chance = Random(seed)
    run_choosing(
        make_settings(tmp_path, **method), make_task(SIZES), lambda p: chance.randrange(len(p))
    )
    whole = straight(**method, **{"engine.vectorize": 0})
    assert model_of(tmp_path) == model_of(whole)
    assert rows_of(tmp_path) == rows_of(whole)


def test_what_arrives_after_the_last_round_or_too_late_is_not_trained(tmp_path):
    options = {**BUFFERED, "method.max_staleness": 1}
    found = run_choosing(make_settings(tmp_path, **options), make_task(SIZES), first)
    assert sum(clients for _, clients in found.given) == 2 * 8 == len(rows_of(tmp_path))
    dropped = pq.read_table(tmp_path / "metrics.parquet")["updates_dropped"]
    assert sum(dropped.to_pylist()) > 0


def test_a_checkpoint_has_the_versions_of_clients_under_way_alone(tmp_path):
    raysim.run(make_settings(tmp_path, **BUFFERED), make_task(SIZES))
    for number in (7, 8):
        body = json.loads((tmp_path / f"checkpoints/round_{number:06d}/state.json").read_text())
        under_way = body["in_flight"]
        flights = under_way["queue"]["flights"]
        versions = {str(version) for _, _, version, *_ in flights}
        assert len(flights) <= 6 and under_way["versions"].keys() <= versions
        assert bool(under_way["versions"]) == (number < 8)  # nothing arrives after the last round


class Failing(FedBuff):
    """FedBuff in which a client's update is not finite, from one version on."""

    client: int = 4

    def rules(self):
        plain = super().rules()

        def finish(view, trained):
            upload = plain.finish(view, trained)
            if len(trained.data.y) == SIZES[self.client]:
                upload.sums["change"]["head.bias"].fill_(torch.inf)
            return upload

        return raysim.Rules(finish=finish)


@pytest.mark.parametrize("stacked", [0, 3])
def test_a_client_that_fails_is_dropped_and_the_mean_is_over_the_others(tmp_path, stacked):
    options = {**BUFFERED, "method.name": f"{__name__}:Failing", "on_client_error": "drop"}
    options |= {"method.buffer": 3, "engine.vectorize": stacked}
    listener = Notes()
    result = raysim.run(make_settings(tmp_path / "drop", **options), make_task(SIZES), listener)
    rows = [(row["round"], row["client"]) for row in rows_of(tmp_path / "drop")]
    assert len({*rows}) == len(rows)  # those beside it in a stack are trained again, counted once
    assert 4 not in {client for _, client in rows}
    assert result.metrics["clients"].to_pylist().count(2) > 0
    assert any("client 4 was dropped" in note for note in listener.notes)
    stops = {**options, "on_client_error": "stop"}
    with pytest.raises(raysim.RunError, match="client 4: failed twice in round"):
        raysim.run(make_settings(tmp_path / "stop", **stops), make_task(SIZES))


def test_a_round_whose_only_client_fails_leaves_the_model_as_it_is(tmp_path):
    options = {**BUFFERED, "method.name": f"{__name__}:Failing", "on_client_error": "drop"}
    options |= {"method.buffer": 1, "rounds": 20, "clock.name": "devices"}
    listener = Notes()
    result = raysim.run(make_settings(tmp_path / "drop", **options), make_task(SIZES), listener)
    rows = result.metrics.to_pylist()
    lost = next(row for row in rows if not row["clients"])
    assert f"round {lost['round']}: no client's update arrives" in listener.notes
    before = next(row for row in rows if row["round"] == lost["round"] - 1)
    assert lost["test_loss"] == before["test_loss"] and lost["virtual_seconds"] > 0


class WithState(FedBuff):
    """FedBuff whose clients keep something."""

    def client_init(self, state):
        return {"own": {"n": torch.zeros(1)}}


class Twice(FedBuff):
    """FedBuff with two passes a round."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        return (yield from super().round(now, state))


class OthersToo(FedBuff):
    """FedBuff that has more clients train than start."""

    def training_pass(self, now, state):

        return replace(super().training_pass(now, state), clients=range(now.clients))


class EpochsByClient(FedBuff):
    """FedBuff with unequal work."""

    def training_pass(self, now, state):

        epochs = dict.fromkeys(now.cohort, 2)
        return replace(super().training_pass(now, state), epochs=epochs)


class MoreAndMore(FedBuff):
    """FedBuff whose local epochs grow."""

    def training_pass(self, now, state):

        return replace(super().training_pass(now, state), epochs=1 + now.number // 5)


class OtherRules(FedBuff):
    """FedBuff with the proximal term in the last round."""

    def training_pass(self, now, state):

        work = super().training_pass(now, state)
        transforms = (proximal(0.1 if now.number == 7 else 0.2),)
        return replace(work, rules=replace(work.rules, transforms=transforms))


class ByItsState(FedBuff):
    """FedBuff whose weighting changes as the model moves."""

    def init(self, network):
        state = super().init(network)
        zero = {"head.bias": torch.zeros_like(state.groups["model"]["head.bias"])}
        return state.replace(model={**state.groups["model"], **zero})

    def training_pass(self, now, state):

        moved = bool(state.groups["model"]["head.bias"].any())
        weighting = "examples" if moved else "uniform"
        return replace(super().training_pass(now, state), weighting=weighting)


class NoPass(FedBuff):
    """FedBuff that trains nobody."""

    def round(self, now, state):
        yield from ()
        return state, {}


class Reporting(Uniform):
    """Has clients report what they have done."""

    plans_ahead: ClassVar[bool] = True

    def report(self, view, trained):
        return {"taken": float(trained.steps)}


def test_clients_under_way_report_to_the_selection(tmp_path):
    own = {"selection.name": f"{__name__}:Reporting"}
    raysim.run(make_settings(tmp_path, **BUFFERED, **own), make_task(SIZES))
    rows = rows_of(tmp_path)
    assert [row["taken"] for row in rows] == [row["steps"] for row in rows]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"method.concurrency": 10},
            "method.concurrency=10: must be from 1 to the number of clients, 9",
        ),
        ({"method.buffer": 7}, "method.buffer=7: must be from 1 to the concurrency, 6"),
        ({"method.name": "WithState"}, "asynchronous rounds need clients without state"),
        *(
            ({"method.name": name, **clock}, message)
            for clock in ({}, {"clock.name": "devices"})
            for name, message in (
                ("EpochsByClient", "epochs, rates, weights or groups by client do not go"),
                ("OthersToo", "must run its pass over the cohort"),
                ("MoreAndMore", "the epochs of its pass must be alike in all rounds.* 1 and 8"),
                ("OtherRules", "the rules of its pass must be alike in all rounds.* 1 and 8"),
                ("NoPass", "asynchronous rounds have one pass; it runs none"),
            )
        ),
    ],
)
def test_refused_before_anything_starts(tmp_path, overrides, message):
    options = {**BUFFERED, **overrides}
    if "method.name" in overrides:
        options["method.name"] = f"{__name__}:{overrides['method.name']}"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.tiers": 8}, "method.tiers=8: must be from 1 to the concurrency, 7"),
        (
            {"method.concurrency": 10},
            "method.concurrency=10: must be from 1 to the number of clients, 9",
        ),
        (
            {"method.concurrency": None, "fraction": 0.1},
            "method.tiers=2: must be from 1 to the concurrency, 1",
        ),
    ],
)
def test_numbers_of_tiers_are_refused_before_anything_starts(tmp_path, overrides, message):
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "run", **TIERED | overrides), make_task(SIZES))
    assert not (tmp_path / "run").exists()


def test_a_second_pass_is_refused(tmp_path):
    options = {**BUFFERED, "method.name": f"{__name__}:Twice"}
    with pytest.raises(raysim.SettingsError, match="have one pass; it runs several"):
        raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES))


def test_a_pass_that_changes_with_the_state_is_refused_as_it_does_also_after_a_resumption(tmp_path):
    options = {**BUFFERED, "method.name": f"{__name__}:ByItsState"}
    settings = make_settings(tmp_path, **options)
    message = "the weighting of its pass must be alike in all rounds"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(settings, make_task(SIZES))
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.resume(tmp_path, make_task(SIZES))


def test_analyses_of_the_model_alone_are_measured(tmp_path, straight):
    names = ["weight_divergence", "label_heat_map", "temperature", "label_information"]
    options = {**BUFFERED, "analysis": names, "on_client_error": "stop"}
    raysim.run(make_settings(tmp_path / "with", **options), make_task(SIZES))
    whole = straight(**BUFFERED, **{"engine.vectorize": 0})
    assert model_of(tmp_path / "with") == model_of(whole)
    assert rows_of(tmp_path / "with") == rows_of(whole)
    for name in ("weight_divergence", "temperature", "label_information"):
        rows = pq.read_table(tmp_path / f"with/analysis/{name}.parquet")
        assert {*rows["round"].to_pylist()} == {*range(1, 9)}


def test_clients_that_join_are_measured(tmp_path):
    """Their passes train, from the model of a round that is evaluated."""
    plain = {**BUFFERED, "evaluation.clients": True, "rounds": 3}
    options = {**plain, "analysis": "new_client"}
    raysim.run(make_settings(tmp_path / "with", **options), make_task(SIZES))
    raysim.run(make_settings(tmp_path / "without", **plain), make_task(SIZES))
    assert model_of(tmp_path / "with") == model_of(tmp_path / "without")
    assert rows_of(tmp_path / "with") == rows_of(tmp_path / "without")
    rows = pq.read_table(tmp_path / "with/analysis/new_client.parquet")
    assert {1, 2} <= {*rows["round"].to_pylist()}


def test_a_client_that_fails_before_an_analysis_stops_the_run(tmp_path):
    """It is one of the run's, not of a pass of the analysis, whose failures cost rows alone."""
    options = {**BUFFERED, "method.name": f"{__name__}:Failing", "analysis": "label_information"}
    with pytest.raises(raysim.RunError, match="client 4: failed twice in round"):
        raysim.run(make_settings(tmp_path, **options), make_task(SIZES))


def test_a_version_that_clients_train_from_is_kept_once(tmp_path, monkeypatch):
    """What a checkpoint takes of it lies in the message to the clients."""
    kept, sent = list[Any](), list[Any]()
    commit, submit = AsynchronousRounds.commit, Choosing.submit

    def committed(rounds, number):
        kept.append(commit(rounds, number))
        return kept[-1]

    def submitted(executor, call, message, *others):
        sent.extend([message] if call == "train" else [])
        submit(executor, call, message, *others)

    monkeypatch.setattr(AsynchronousRounds, "commit", committed)
    monkeypatch.setattr(Choosing, "submit", submitted)
    run_choosing(make_settings(tmp_path, **BUFFERED), make_task(SIZES), first)
    assert any(under_way.versions for under_way in kept)
    for number, started in [item for found in kept for item in found.versions.items()]:
        (message,) = (each for each in sent if each.round_number == number)
        (array,) = message.broadcast.groups["model"].arrays.values()
        tensors = [*started.groups["model"].values()]
        assert all(np.shares_memory(array, tensor.numpy()) for tensor in tensors)


@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_draws_are_of_those_that_are_free(seed, clients, data):
    busy = data.draw(st.sets(st.integers(0, clients - 1)))
    off = data.draw(st.sets(st.integers(0, clients - 1)))
    count = data.draw(st.integers(1, clients))
    members = data.draw(st.sets(st.integers(0, clients - 1), min_size=1))
    tier = np.array(sorted(members))
    draws = uniform_draws(seed, tier, lambda some, tick: np.array([c not in off for c in some]))
    found = draws(3, 1, count, busy, 0)
    free = members - busy - off
    assert {*found} <= free and len({*found}) == len(found) == min(count, len(free))
    everyone = uniform_draws(seed, np.arange(clients), always)
    expected = sample_cohort(stream(seed, "cohort", 3), clients, count)
    assert everyone(3, 0, count, (), 0) == expected  # FedAvg's cohort of the round


def test_draws_are_uniform():
    """Client 2 is busy and half of the others are off: each of the others is drawn as often."""
    off = {0, 5, 6, 7}
    counts = np.zeros(9)
    for number in range(2000):
        draws = uniform_draws(
            0, np.arange(9), lambda some, tick: np.array([c not in off for c in some])
        )
        counts[draws(number, 0, 2, [2], 0)] += 1
    assert counts[[0, 2, 5, 6, 7]].sum() == 0
    assert np.abs(counts[[1, 3, 4, 8]] / 1000 - 1).max() < 0.07  # 2.9 deviations
