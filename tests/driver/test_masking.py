"""Runs under masks: the bytes of those without, what arrives, what it costs, what is refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import raysim
from raysim.api.rules import Reduced
from raysim.api.withheld import Withheld
from raysim.channel.gaussian import Gaussian
from raysim.channel.masks import Masks
from raysim.driver.rounds import passes
from raysim.driver.rounds.hiding import as_seen
from raysim.methods.fedavg import FedAvg
from raysim.numbers.masking import words_of
from raysim.selection.uniform import Uniform
from raysim.testing.tasks import SmallNet
from tests.channel.test_downlink import EXPECTED
from tests.driver.privacy.test_refusals import HERE as REFUSING
from tests.tasks import Notes, StopAfter, make_settings, make_task, model_of

HERE = "tests.driver.test_masking"
SIZES = (2, 3, 160, 17, 40, 80)
FIXED = {"aggregation.weighting": "fixed"}
SHARED = {"randk": {"fraction": 0.1, "mask": "shared"}}
CLOCK = {"clock.name": "devices", "clock.spread": 0.0}
ACTORS = {"engine.backend": "ray", "engine.actors": 2}


class Normalised(SmallNet):
    """With BatchNorm: running moments, and a counter in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


class Huge(FedAvg):
    """Clients send values beyond the range of the engine's finest integers."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_huge)


def _huge(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": {n: t + 1e6 for n, t in view.params.items()}})


class Seeing(FedAvg):
    """Its server reads the samples of those that have arrived."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        return super().server_update(now, state, reduced) if len(reduced.samples) else state


class Counting(FedAvg):
    """Its server reads how many steps clients take."""

    def training_pass(self, now: Any, state: Any) -> Any:
        return replace(super().training_pass(now, state), lr=1 / now.steps(0))


class Trying(FedAvg):
    """It takes sizes for equal where it is refused them."""

    def round(self, round_: Any, state: Any) -> Any:
        try:
            sizes = list(round_.samples)
        except Exception:
            sizes = [1] * round_.clients
        assert sizes
        return super().round(round_, state)


class Tenacious(FedAvg):
    """It takes sizes for equal whatever happens."""

    def round(self, round_: Any, state: Any) -> Any:
        with suppress(BaseException):
            list(round_.samples)
        return super().round(round_, state)


class Durations(raysim.Selection):
    """The fastest clients."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        return [
            int(c)
            for c in np.argsort(sampling.seconds(np.arange(sampling.clients)))[: sampling.wanted]
        ]


class Weighing(raysim.Stage):
    """Its server part reads sizes."""

    what: str = "samples"

    def receive(self, now: Any, reduced: raysim.Reduced) -> raysim.Reduced:
        len(getattr(reduced, self.what))
        return reduced


class Looking(Weighing):
    """Its server part reads what single clients have sent."""

    what: str = "rows"


class Failing(FedAvg):
    """Client 2 fails in every round."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_fail)


def _fail(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    if view.client == 2:
        raise ValueError("no")
    return raysim.Upload(sums={"model": view.params})


class Reading(raysim.Selection):
    """Reads losses."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        chosen: list[int] = np.argsort(sampling.losses)[: sampling.wanted].tolist()
        return chosen


class Reporting(raysim.Selection):
    """Has clients report numbers."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        return [*range(sampling.wanted)]

    def report(self, view: raysim.View, trained: raysim.Trained) -> dict[str, float]:
        return {"told": 1.0}


class Later(Uniform):
    """Reads results after a round."""

    def update(self, now: Any, selected: Any, results: Any) -> Any:
        return {"largest": np.max(results.losses)}, {}


class Sized(FedAvg):
    """Its server reads how many samples clients have."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        return state if now.samples[0] else super().server_update(now, state, reduced)


class Pooled(FedAvg):
    """Trains on the samples of all clients."""

    pooled = True


class Warmest(raysim.Temperature):
    """T by the losses of clients."""

    def choose(self, now: Any) -> float:
        return 1.0 if np.isnan(now.history.losses).all() else 2.0


class Each(Gaussian):
    """Reads numbers one by one, of a base that reads their sum."""

    def update(self, now: Any, reduced: Any) -> Any:
        return {"first": reduced.scalars["within"][0]}, {}


class Both(raysim.Stage):
    """States a secure aggregation, too."""

    @property
    def secure_sum(self) -> Any:
        return Masks().secure_sum


class Hiding(raysim.Stage):
    """Hides single uploads without masks of the engine, as trusted hardware does."""

    def hides(self) -> list[raysim.Tells]:
        return [raysim.Tells.SINGLE]


class HidingNone(raysim.Stage):
    """Says nothing of what it hides."""

    def hides(self) -> Any:
        return None


class Telling(raysim.Stage):
    """Has clients send a number, which its server part may read one by one."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, scalars={"told": 1.0})


def run(path: Path, model: Any = SmallNet, *, listener: Any = None, **more: Any) -> raysim.Result:
    settings = make_settings(path, **{"rounds": 3, "fraction": 0.9, **more})
    return raysim.run(settings, make_task(SIZES, model), listener)


def masked(channel: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"channel": {**channel, "masks": given}}


SAME: dict[str, dict[str, Any]] = {
    "two groups, a graph": {"method.name": "scaffold", "masks": {"neighbours": 2}},
    "two passes": {"method.name": "fsvrg"},
    "buffers": {"model": Normalised, "weighting": "uniform"},
    "sparse and private": {
        "channel": {**SHARED, "gaussian": {"clip": 0.5, "noise": 0.1, "quantile": 0.5}},
        **{"method.name": "fedavg", "fraction": 1.0, **FIXED},
    },
    "clients that are kept out of training": {
        **{"evaluation.new_clients": 0.3, "evaluation.local_test": 0.5, "rounds": 1}
    },
    "clients that drop out": {
        **{**CLOCK, "clock.dropout": 0.3, "rounds": 4, "fraction": 1.0},
        "masks": {"threshold": 0.2},
    },
    "clients that drop out of a pass that sends nothing": {
        **{**CLOCK, "clock.dropout": 0.4, "rounds": 1, "fraction": 1.0, "seed": 1},
        "method.name": "ditto",
    },
    "clients that fail": {
        **{"method.name": f"{HERE}:Failing", "on_client_error": "drop", "fraction": 1.0}
    },
}


@pytest.mark.parametrize("case", SAME)
def test_masks_change_no_bit(tmp_path, case, monkeypatch):
    """In a driver that sees of the weights and values that arrive nothing but noise."""
    arrived: list[tuple[int, int]] = []
    largest: list[float] = []
    merge = passes.merge_sums

    def merge_sums(total: Any, others: Any) -> None:
        for other in filter(lambda other: other.sum, others.values()):
            arrived.append((len(other.clients), other.weight))
            largest.extend(np.abs(words / 2**46).max() for words in words_of(other.sum))
        merge(total, others)

    monkeypatch.setattr(passes, "merge_sums", merge_sums)
    given = dict(SAME[case])
    masks, channel = given.pop("masks", {}), given.pop("channel", {})
    plain = run(tmp_path / "plain", channel=channel, **given)
    assert max(weight for _, weight in arrived) <= sum(SIZES)
    assert max(largest) < 2**14
    arrived.clear()
    largest.clear()
    result = run(tmp_path / "masked", **{**given, **masked(channel, **masks)})
    assert min(weight for _, weight in arrived) > 2**40
    assert min(largest) > 2**15
    assert model_of(result.run_dir) == model_of(plain.run_dir)
    for name in {"train_loss", "clients", "clients_dropped"} & {*plain.metrics.column_names}:
        assert result.metrics[name].to_pylist() == plain.metrics[name].to_pylist()
    if case.startswith("clients"):
        assert min(count for count, _ in arrived) < len(SIZES)


@pytest.mark.usefixtures("resident_actors")
def test_on_actors_and_after_an_interruption_they_change_no_bit_either(tmp_path):
    """With drop-outs, too."""
    given = {**CLOCK, "clock.dropout": 0.3, "fraction": 1.0, "method.name": "scaffold"}
    plain = run(tmp_path / "plain", **given)
    hidden = {**given, **masked({}, neighbours=2, threshold=0.2)}
    run(tmp_path / "actors", **hidden, **ACTORS)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", listener=StopAfter(2), **hidden)
    raysim.resume(tmp_path / "cut", make_task(SIZES))
    for other in ("actors", "cut"):
        assert model_of(tmp_path / other) == model_of(plain.run_dir)


def test_a_round_that_cannot_be_unmasked_is_lost(tmp_path):
    """Its bytes are counted; the model stays."""
    notes, lost = Notes(), {**CLOCK, "clock.dropout": 0.5, "fraction": 1.0, "rounds": 1}
    result = run(tmp_path / "run", listener=notes, **lost, **masked({}))
    assert notes.notes == [
        "round 1: 3 of 6 clients are left, too few to unmask their sum (channel.masks.threshold)"
    ]
    assert result.metrics["clients"].to_pylist() == [0]
    once = 4 * sum(tensor.numel() for tensor in result.params.values())
    assert 3 * once < result.metrics["bytes_up"][0].as_py() < 6 * (once + 1000)
    start = run(tmp_path / "start", **{**lost, "clock.dropout": 0.999999})
    assert model_of(result.run_dir) == model_of(start.run_dir)


BYTES: dict[str, tuple[dict[str, Any], Any]] = {
    "dense": ({}, lambda n: n),
    "on shared places": (SHARED, lambda n: -(-n // 10)),
    "on shared places, quantised": ({**SHARED, "int8": {}}, lambda n: -(-n // 10)),
    "top-k saves nothing": ({"topk": {"fraction": 0.1}}, lambda n: n),
    "nor do places of its own": ({"randk": {"fraction": 0.1}}, lambda n: n),
    "nor signs": ({"sign": {}}, lambda n: n),
    "nor factors": ({"low_rank": {"rank": 1}}, lambda n: n),
    "a number more": (
        {"gaussian": {"noise": 0.0, "quantile": 0.5, "quantile_rate": 0.1}},
        lambda n: n + 1,
    ),
}


@pytest.mark.parametrize("case", BYTES)
@pytest.mark.parametrize(("k", "bits"), [(None, 32), (2, 24)])
def test_bytes_and_trips_are_counted_and_take_time(tmp_path, case, k, bits):
    """Devices compute in no time, send and receive a byte a second, and are 1000 seconds away.

    A selection expects as much.
    """
    rows = [f"{client},1e18,1,1,1000" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    clock = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    channel, sent = BYTES[case]
    more = masked(channel, bits=bits, **({"neighbours": k} if k else {}))
    clock["selection.name"] = "tests.channel.test_downlink:Noting"
    result = run(tmp_path / "run", rounds=1, fraction=0.7, **clock, **FIXED, **more)
    n, near = sum(tensor.numel() for tensor in result.params.values()), k or 3  # four clients
    up = bits // 8 * (sent(n) + 1) + 2 * 32 + (3 * near + 1) * 32
    row = result.metrics.to_pylist()[-1]
    assert row["bytes_up"] == 4 * up
    assert row["bytes_down"] == 4 * (4 * n + near * 4 * 32)
    assert row["virtual_seconds"] == pytest.approx(4000 + up + row["bytes_down"] / 4, abs=0.01)
    assert EXPECTED[-1] == pytest.approx(row["virtual_seconds"], abs=0.01)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"aggregation.name": "median"}, "with aggregation.name=median, which sees updates one by one"),
    ({"selection.name": "power_of_choice"}, "which reads the sizes of clients (Sampling.samples);"),
    ({"selection.name": "weighted"}, "selection.name=weighted, which reads the sizes of clients"),
    ({"selection.name": f"{HERE}:Durations"}, "Durations, which reads the durations of clients"),
    ({"selection.name": f"{HERE}:Reporting"}, "Reporting, to which single clients report; choose"),
    ({"selection.name": f"{HERE}:Reading"}, "which reads the losses of single clients"),
    ({"selection.name": f"{HERE}:Later"}, "Later, which reads the losses of single clients"),
    ({"temperature.name": f"{HERE}:Warmest"}, "Warmest, which reads the losses of single clients"),
    ({"temperature.name": "stragglers"}, "stragglers, which reads the durations of clients (Temp"),
    ({"method.name": f"{HERE}:Sized"}, "Sized, which reads the sizes of clients (Round.samples)"),
    ({"method.name": f"{HERE}:Trying"}, "Trying, which reads the sizes of clients (Round.samples)"),
    ({"method.name": f"{HERE}:Tenacious"}, "Tenacious, which reads the sizes of clients (Round."),
    (
        {"method.name": f"{HERE}:Seeing"},
        "Seeing, which reads the sizes of clients (Reduced.samples)",
    ),
    ({"method.name": f"{HERE}:Counting"}, "Counting, which reads the local steps of clients (Rou"),
    ({"before": f"{HERE}:Weighing"}, "Weighing, which reads the sizes of clients (Reduced.sample"),
    ({"before": f"{HERE}:Looking"}, "Looking, which reads what single clients send (Reduced.rows)"),
    ({"method.name": "mifl"}, "with method.name=mifl, whose server reads 'mi' of single clients"),
    ({"method.name": "afl", "fraction": 1.0}, "with method.name=afl, whose server reads 'start_l"),
    (
        {"method.name": "drfa"},
        "with method.name=drfa, which reads the sizes of clients",
    ),
    ({"method.name": "term"}, "does not go with method.name=term, whose server reads 'start_loss"),
    (
        {"method.name": "chain", "method.methods": {"fedprox": {}, f"{REFUSING}:Scalars": {}}},
        f"does not go with method.name={REFUSING}:Scalars, whose server reads 'loss' of single",
    ),
    (
        {"method.name": "chain", "method.methods": {"fedprox": {}, f"{HERE}:Sized": {}}},
        f"does not go with method.name={HERE}:Sized, which reads the sizes of clients",
    ),
    ({"method.name": "fedma"}, "does not go with method.name=fedma, whose server reads 'layer'"),
    ({"method.name": "centralized"}, "with method.name=centralized, which reads the local steps"),
    ({"method.name": f"{HERE}:Pooled"}, "Pooled, whose clients' samples are in one place"),
    ({"fraction": 0.2}, "a round has one client, whose sum is its own; raise fraction"),
    ({"channel.masks.neighbours": 3}, "channel.masks.neighbours=3: must be even, from 2 on"),
    ({"before": f"{HERE}:Each"}, "leave it out: it changes 'update' of Gaussian, which 'sums_num"),
    ({"before": f"{HERE}:Telling"}, f"with channel.{HERE}:Telling, which reads numbers of single"),
    ({"method.name": f"{REFUSING}:Scalars"}, "whose server reads 'loss' of single clients"),
    ({"method.name": f"{REFUSING}:Rows"}, "whose server reads 'own' of single clients"),
    ({"before": f"{HERE}:HidingNone"}, "hides returned None; must return a list of Tells"),
    ({"method.name": f"{HERE}:Huge"}, "values beyond 130000, the largest that masks add"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_needs_single_uploads_is_refused(tmp_path, given, message):
    """In one line, before the start: where components do not state it, the rehearsal shows it."""
    more = dict(given)
    stages = [more.pop("before", None), "masks", more.pop("behind", None)]
    each = {"noise": 0, "quantile": 0.5}
    more["channel"] = {n: each if "Each" in n else {} for n in filter(None, stages)}
    if neighbours := more.pop("channel.masks.neighbours", None):
        more["channel"] = {"masks": {"neighbours": neighbours}}
    with pytest.raises(raysim.RaysimError) as caught:
        run(tmp_path / "run", **more)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


HIDDEN = [
    ({"aggregation.name": "median"}, "aggregation.name=median, which sees updates one by one"),
    ({"attack.name": "alie"}, "attack.name=alie, whose clients know the updates of others"),
    ({"selection.name": f"{HERE}:Reporting"}, "Reporting, to which single clients report"),
    ({"method.name": "fedma"}, "method.name=fedma, whose server reads 'layer' of single clients"),
]


@pytest.mark.parametrize(("given", "message"), HIDDEN)
def test_any_stage_that_hides_single_uploads_is_believed(tmp_path, given, message):
    """What it does not go with is refused by what it says, not by its having masks."""
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", channel={f"{HERE}:Hiding": {}}, **given)
    assert f"channel.{HERE}:Hiding" in str(caught.value) and message in str(caught.value)


def test_a_stage_of_one_s_own_that_states_a_secure_sum_needs_no_more(tmp_path):
    """What clients exchange for it is counted, and what the server cannot see is withheld."""
    settings = make_settings(tmp_path, channel={f"{HERE}:Both": {}})
    seen = as_seen(settings, settings.method, Reduced((0,), {}, {0: {}}, {}))
    assert isinstance(seen.rows, Withheld) and seen.clients == (0,)
    assert Both().beside(9) == Masks().beside(9) != raysim.Stage().beside(9)


@pytest.mark.parametrize("reader", ["selection", "temperature"])
def test_durations_that_a_clock_shows_are_no_secret(tmp_path, reader):
    names = {"selection": f"{HERE}:Durations", "temperature": "stragglers"}
    given = {**CLOCK, **masked({}), f"{reader}.name": names[reader]}
    assert len(run(tmp_path / "run", rounds=1, **given).metrics) == 1


@pytest.mark.parametrize(("method", "rounds"), [("fedavg", 2), ("powersgd", 1)])
def test_what_is_sent_in_the_clear_is_said(tmp_path, method, rounds):
    """Once, whatever the bases of a method's groups; all else is masked, which no note denies."""
    notes = Notes()
    given = {"method.name": method, "rounds": rounds}
    run(tmp_path, Normalised, listener=notes, **masked({}), **given)
    assert notes.notes == [
        "channel.masks: clients send 'hidden.1.num_batches_tracked' in the clear: the server takes"
        " the maximum of whole numbers"
    ]


@pytest.mark.parametrize("method", ["fedproto", "fsvrg", "powersgd", "scaffold"])
def test_values_that_stages_pass_by_are_words_too(tmp_path, method):
    """Twice the bits are twice the bytes of all but the keys and shares, counted and charged."""
    rows = [f"{client},1e18,1,1e18,0" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    clock = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    given = {"rounds": 1, "method.name": method, "fraction": 1.0, **clock}
    runs = {
        bits: run(tmp_path / f"{bits}", **given, **masked({}, bits=bits)).metrics.to_pylist()[-1]
        for bits in (32, 64)
    }
    plain = run(tmp_path / "plain", **given).metrics.to_pylist()[-1]
    more = runs[64]["bytes_up"] - runs[32]["bytes_up"]
    passes = 2 if method in ("fsvrg", "powersgd") else 1
    assert more == plain["bytes_up"] + passes * 4 * len(SIZES)
    later = runs[64]["virtual_seconds"] - runs[32]["virtual_seconds"]
    assert later == pytest.approx(more / len(SIZES), abs=0.01)
