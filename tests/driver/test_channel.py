"""Stages of the channel in runs: against NumPy, without effect, in order, and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.channel import Received
from raysim.methods.fedavg import FedAvg
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout
from raysim.testing.tasks import SmallNet
from tests.tasks import Fresh, Notes, StopAfter, make_settings, make_task, model_of

HERE = "tests.driver.test_channel"
SIZES = (2, 3, 160, 17, 40, 80)
DRAWN: list[float] = []
SEEN: list[tuple[int, dict[str, Any], dict[str, Any]]] = []


def scaled(groups: Any, factor: float) -> Any:
    return {g: {n: d * factor for n, d in of.items()} for g, of in groups.items()}


class Watch(raysim.Stage):
    """Keeps what reaches it: client, differences and the broadcast model."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        sums = {g: {n: d.numpy().copy() for n, d in of.items()} for g, of in upload.sums.items()}
        SEEN.append((view.client, sums, {n: t.numpy() for n, t in view.broadcast["model"].items()}))
        return upload


class Unit(raysim.Stage):
    """Multiplies by 1: other objects of the same values."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return raysim.Upload(
            {g: {n: d * 1 for n, d in of.items()} for g, of in upload.sums.items()}
        )


class Double(raysim.Stage):
    """Doubles differences."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return raysim.Upload(
            {g: {n: d * 2 for n, d in of.items()} for g, of in upload.sums.items()}
        )


class HalvedAtClients(raysim.Stage):
    """Halves small differences, at clients."""

    @property
    def is_contraction(self) -> bool:
        return True

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, sums=self.halved(upload.sums))

    def halved(self, groups: Any) -> Any:
        return {
            g: {n: d * (1 - 0.5 * (d.abs() < 0.01)) for n, d in of.items()}
            for g, of in groups.items()
        }


class HalvedAtClientsInPlace(HalvedAtClients):
    """The same, in the tensors that it is given."""

    @property
    def is_contraction(self) -> bool:
        return True

    def halved(self, groups: Any) -> Any:
        for d in (d for of in groups.values() for d in of.values()):
            d.data.mul_(1 - 0.5 * (d.abs() < 0.01))
        return groups


class Halved(HalvedAtClients):
    """Halves small differences, at client and server."""

    @property
    def is_contraction(self) -> bool:
        return True

    def receive(self, received: Received, reduced: raysim.Reduced) -> raysim.Reduced:
        return replace(reduced, means=self.halved(reduced.means))


class HalvedInPlace(HalvedAtClientsInPlace):
    """The same, in the tensors that it is given."""

    is_contraction = Halved.is_contraction
    receive = Halved.receive


class Measured(Halved):
    """Halved, with the size of what the server was given."""

    def update(self, received: Received, reduced: raysim.Reduced) -> Any:
        return {}, {"size": sum(float(d.abs().sum()) for d in reduced.means["model"].values())}


class MeasuredInPlace(HalvedInPlace):
    """The same, in the tensors that it is given."""

    update = Measured.update


class Flipped(raysim.Attack):
    """Sends the opposite."""

    def send(self, view: raysim.View, upload: raysim.Upload, clients: int) -> raysim.Upload:
        return replace(upload, sums=scaled(upload.sums, -1))


class FlippedInPlace(raysim.Attack):
    """The same, in the tensors that it is given."""

    def send(self, view: raysim.View, upload: raysim.Upload, clients: int) -> raysim.Upload:
        for d in (d for of in upload.sums.values() for d in of.values()):
            d.neg_()
        return upload


class Noise(raysim.Stage):
    """Adds noise at the server, and at the client."""

    scale: float = 0.01

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return raysim.Upload(self.noisy(upload.sums, view.generator("noise")))

    def receive(self, received: Received, reduced: raysim.Reduced) -> raysim.Reduced:
        return replace(reduced, means=self.noisy(reduced.means, received.generator("noise")))

    def noisy(self, groups: Any, generator: torch.Generator) -> Any:
        DRAWN.append(float(torch.rand((), generator=generator)))
        return {
            g: {
                n: of[n] + self.scale * torch.randn(of[n].shape, generator=generator)
                for n in sorted(of)
            }
            for g, of in groups.items()
        }


class Twin(Noise):
    """The same under another name."""


class Fixed(raysim.Stage):
    """Replaces the mean difference of the model by ones."""

    def receive(self, received: Received, reduced: raysim.Reduced) -> raysim.Reduced:
        means = {g: {n: d * 0 + 1 for n, d in of.items()} for g, of in reduced.means.items()}
        return replace(reduced, means=means)


class Short(raysim.Stage):
    """Declares ten bytes and the client's number."""

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        return Encoding(10 + client, bits=8)


class Shorter(Short):
    """Sends three bytes in the end."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, encoding=Encoding(0, 0, extra=3))


class Lacking(raysim.Stage):
    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return raysim.Upload()


class Cut(raysim.Stage):
    def receive(self, received: Received, reduced: raysim.Reduced) -> raysim.Reduced:
        model = {n: d[:1] for n, d in reduced.means["model"].items()}
        return replace(reduced, means={"model": model})


class Failing(raysim.Stage):
    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        raise ZeroDivisionError("nothing")


class Nothing(raysim.Stage):
    def send(self, view: raysim.View, upload: raysim.Upload) -> Any:
        return None


class Negative(raysim.Stage):
    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        return Encoding(0, 0, extra=-1)


class BadState(raysim.Stage):
    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, state={"a/b": {"c": torch.zeros(1)}})


class BadEncoding(raysim.Stage):
    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(upload, encoding=12)


class Keeping(raysim.Stage):
    seen: ClassVar[Any] = None

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        self._seen = view
        return upload


class Normalised(SmallNet):
    """With BatchNorm: running moments, and a counter in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


def clipped(norm: float) -> dict[str, Any]:
    return {"channel": {f"{HERE}:Watch": {}, "clip": {"norm": norm}}}


def run(path, model=SmallNet, **more) -> raysim.Result:
    return raysim.run(make_settings(path, **more), make_task(SIZES, model), Fresh(SEEN, DRAWN))


def norm_of(groups) -> float:
    return float(np.sqrt(sum((d**2).sum() for of in groups.values() for d in of.values())))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_clipping_is_numpy_s_on_unequal_clients(tmp_path, weighting):
    """Four of six clients; the norms lie on both sides of the limit."""
    result = run(tmp_path, rounds=1, weighting=weighting, fraction=0.7, **clipped(0.3))
    assert len(SEEN) == 4
    norms = [norm_of(sums) for _, sums, _ in SEEN]
    assert min(norms) < 0.3 < max(norms)
    weights = np.array([SIZES[client] if weighting == "examples" else 1 for client, _, _ in SEEN])
    shares = weights / weights.sum()
    for name, tensor in result.params.items():
        start = SEEN[0][2][name].astype(np.float64)
        moved = sum(
            share * sums["model"][name] * min(1, 0.3 / norm)
            for share, norm, (_, sums, _) in zip(shares, norms, SEEN, strict=True)
        )
        np.testing.assert_array_max_ulp(tensor.numpy(), (start + moved).astype(np.float32), 1)
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    found = {row["client"]: row["update_norm"] for row in rows}
    expected = {client: norm for (client, _, _), norm in zip(SEEN, norms, strict=True)}
    assert found == pytest.approx(expected, rel=1e-12)


def test_scaffold_s_change_of_c_is_clipped_with_the_model(tmp_path):
    """c is broadcast, but sent as a change; the norm is that of both. c becomes m/K of the mean."""
    result = run(tmp_path, rounds=1, **{"method.name": "scaffold"}, **clipped(0.5))
    scales = [min(1, 0.5 / norm_of(sums)) for _, sums, _ in SEEN]
    assert min(scales) < 1 and {*SEEN[0][1]} == {"model", "c"}
    both = [*zip(scales, (sums["c"] for _, sums, _ in SEEN), strict=True)]
    change = {name: np.mean([scale * c[name] for scale, c in both], 0) for name in both[0][1]}
    share = len(SEEN) / len(SIZES)
    expected = share * norm_of({"c": change})
    assert result.metrics["c_norm"][0].as_py() == pytest.approx(expected, rel=1e-6)


def test_scaffold_s_change_of_c_is_no_difference_from_c(tmp_path):
    """From the second round on c is not 0: the norm of what it becomes follows from the changes."""
    stages = {"channel": {f"{HERE}:Watch": {}}, "method.name": "scaffold", "fraction": 0.5}
    result = run(tmp_path, rounds=2, **stages)
    c: Any = dict.fromkeys(SEEN[0][1]["c"], 0.0)
    for number, norm in enumerate(result.metrics["c_norm"].to_pylist()):
        of_round = SEEN[3 * number : 3 * number + 3]
        for name in c:
            c[name] = c[name] + 0.5 * np.mean([sums["c"][name] for _, sums, _ in of_round], 0)
        assert norm == pytest.approx(norm_of({"c": c}), rel=1e-5)


def test_fednova_s_steps_are_not_clipped(tmp_path):
    """tau is no change: were it clipped with d, the model would hardly move."""
    two = {"method.name": "fednova", "local.epochs": 2}
    result = run(tmp_path, rounds=1, **two, **clipped(0.01))
    assert {*SEEN[0][1]} == {"d"}
    steps = [2 * -(-SIZES[client] // 8) for client, _, _ in SEEN]
    weights = np.array([SIZES[client] for client, _, _ in SEEN])
    shares = weights / weights.sum()
    for name, tensor in result.params.items():
        d = sum(
            p * sums["d"][name] * min(1, 0.01 / norm_of(sums))
            for p, (_, sums, _) in zip(shares, SEEN, strict=True)
        )
        expected = SEEN[0][2][name] - (shares @ steps) * d
        np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)


def test_an_asynchronous_version_moves_by_no_more_than_the_norm(tmp_path):
    """FedBuff's discounts make changes smaller, and leave the model where it started."""
    more = {"method.name": "fedbuff", "method.buffer": 2, "rounds": 6, "checkpoint_every": 1}
    before, norm = None, 0.05
    for rounds in (1, 2, 3, 4):
        result = run(tmp_path / str(rounds), **{**more, "rounds": rounds}, **clipped(norm))
        model = np.concatenate([t.numpy().ravel() for t in result.params.values()])
        if before is not None:
            assert 0 < np.linalg.norm(model - before) <= norm * (1 + 1e-5)
        before = model


METHODS = ("fedavg", "scaffold", "fednova", "fedbuff", "mifl", "momentum", "divide_and_conquer")
WITH_OTHERS = [{"method.name": name} for name in METHODS]
WITH_OTHERS += [{"method.name": "chain", "method.methods": {"fedprox": {}, "scaffold": {}}}]
WITH_OTHERS += [{"engine.vectorize": 3}, {"analysis": "activations"}]


@pytest.mark.parametrize("more", WITH_OTHERS, ids=lambda more: " ".join(map(str, more.values())))
def test_stages_without_effect_change_nothing(tmp_path, more):
    """Neither a clip that never binds, nor a product with 1, which makes other objects."""
    more = {"rounds": 3, "local.epochs": 1, **more}
    run(tmp_path / "plain", Normalised, **more)
    run(tmp_path / "clip", Normalised, **more, **{"channel.clip.norm": 1e9})
    assert model_of(tmp_path / "clip") == model_of(tmp_path / "plain")
    run(tmp_path / "unit", Normalised, **more, channel={f"{HERE}:Unit": {}})
    assert model_of(tmp_path / "unit") == model_of(tmp_path / "plain")


IN_PLACE: list[dict[str, Any]] = [
    {"channel": {"Measured": {}}},
    {"channel": {"error_feedback": {}, "Halved": {}}},
    {"channel": {"Halved": {}, "int8": {}}, "method.name": "scaffold"},
    {"channel": {"Halved": {}}, "method.name": "fedbuff"},
    {"downlink": {"HalvedAtClients": {}}},
    {"attack.name": "Flipped", "attack.fraction": 0.5},
]


@pytest.mark.parametrize("more", IN_PLACE, ids=str)
def test_a_change_in_place_counts_as_one_of_new_tensors(tmp_path, more):
    """In both parts of a stage, before others, and of an attack."""
    own = {"HalvedAtClients", "Halved", "Measured", "Flipped"}
    sizes = []
    for kind in ("", "InPlace"):
        named = {n: f"{HERE}:{n}{kind}" for n in own}
        given = {
            key: {named.get(n, n): {} for n in value}
            if isinstance(value, dict)
            else named.get(value, value)
            for key, value in more.items()
        }
        rows = run(tmp_path / f"run{kind}", **given).metrics.to_pylist()
        sizes.append([row.get("size") for row in rows])
    assert sizes[0] == sizes[1]
    run(tmp_path / "plain", **{k: v for k, v in more.items() if k == "method.name"})
    assert model_of(tmp_path / "run") == model_of(tmp_path / "runInPlace")
    assert model_of(tmp_path / "run") != model_of(tmp_path / "plain")


@pytest.mark.usefixtures("resident_actors")
def test_noise_is_the_same_on_actors_and_after_an_interruption(tmp_path):
    """Keyed by stage: two of the same scale differ, and so do client and server, round and pass."""
    both = {"channel": {f"{HERE}:Noise": {}, "clip": {}}, "method.name": "scaffold"}
    run(tmp_path / "inline", **both)
    run(tmp_path / "actors", **both, **{"engine.backend": "ray", "engine.actors": 2})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **both), make_task(SIZES), StopAfter(2))
    raysim.resume(tmp_path / "cut", make_task(SIZES))
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "actors")
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "cut")
    run(tmp_path / "other", **{**both, "channel": {"clip": {}, f"{HERE}:Noise": {}}})
    assert model_of(tmp_path / "inline") != model_of(tmp_path / "other")


def test_every_draw_of_a_stage_is_its_own(tmp_path):
    """Of two stages, at client and server, of each client and round."""
    more = {"rounds": 2, "fraction": 0.5}
    run(tmp_path, channel={f"{HERE}:Noise": {}, f"{HERE}:Twin": {}}, **more)
    assert len({*DRAWN}) == len(DRAWN) == 2 * (2 * 3 + 2)


def test_the_server_s_part_changes_the_mean_difference(tmp_path):
    result = run(tmp_path, channel={f"{HERE}:Watch": {}, f"{HERE}:Fixed": {}}, rounds=1)
    for name, tensor in result.params.items():
        start = SEEN[0][2][name].astype(np.float64)
        assert np.array_equal(tensor.numpy(), (start + 1).astype(np.float32))


@pytest.mark.parametrize(("first", "last", "scale"), [("Double", "clip", 1), ("clip", "Double", 2)])
def test_stages_are_applied_in_order(tmp_path, first, last, scale):
    """Doubled and then clipped, a change has the norm; clipped and then doubled, twice that."""
    named = {"Double": f"{HERE}:Double", "clip": "clip"}
    options = {f"{HERE}:Double": {}, "clip": {"norm": 0.01}}
    stages = {named[each]: options[named[each]] for each in (first, last)}
    run(tmp_path, channel={**stages, f"{HERE}:Watch": {}}, rounds=1)
    assert [norm_of(sums) for _, sums, _ in SEEN] == pytest.approx([0.01 * scale] * len(SEEN))


def test_a_run_does_not_go_on_with_stages_in_another_order(tmp_path):
    stages = {"clip": {}, f"{HERE}:Double": {}}
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(tmp_path, channel=stages)
        raysim.run(settings, make_task(SIZES), StopAfter(2))
    other = make_settings(tmp_path, channel=dict(reversed(stages.items())))
    with pytest.raises(raysim.RunError, match="channel"):
        raysim.run(other, make_task(SIZES))


@pytest.mark.parametrize(("stage", "per_client"), [("Short", None), ("Shorter", 3)])
def test_bytes_are_those_that_stages_declare_or_send(tmp_path, stage, per_client):
    """BatchNorm's counter, eight bytes in integers, is sent beside the differences."""
    result = run(
        tmp_path, Normalised, channel={f"{HERE}:Watch": {}, f"{HERE}:{stage}": {}}, rounds=1
    )
    sent = sum(8 + (per_client or 10 + client) for client, _, _ in SEEN)
    assert result.metrics["bytes_up"].to_pylist() == [sent]


def test_a_clock_charges_the_bytes_that_stages_declare(tmp_path):
    """The devices compute in no time: a client takes half a second, and a second a byte sent."""
    rows = [f"{client},1e18,1,1e18,0.5" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    clock = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    run(tmp_path / "run", channel={f"{HERE}:Short": {}}, rounds=1, **clock)
    found = pq.read_table(tmp_path / "run/clients.parquet").to_pylist()
    for row in found:
        assert row["virtual_seconds"] == pytest.approx(0.5 + 10 + row["client"], abs=1e-4)


class Frozen(SmallNet):
    """Its first layer is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


def test_the_server_s_part_does_not_see_frozen_parameters(tmp_path):
    result = run(tmp_path, Frozen, channel={f"{HERE}:Watch": {}, f"{HERE}:Fixed": {}}, rounds=1)
    for name, tensor in result.params.items():
        moved = tensor.numpy() - SEEN[0][2][name]
        assert np.allclose(moved, name.startswith("head"), atol=1e-6)


class Small(FedAvg):
    """FedAvg that says that it sends eight bytes."""

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_send_little)


def _send_little(view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
    return raysim.Upload(sums={"model": view.params}, bytes_up=8)


def test_stages_that_declare_nothing_leave_a_method_s_bytes(tmp_path):
    own = {"method.name": f"{HERE}:Small", "rounds": 1, "channel.clip.norm": 0.1}
    result = run(tmp_path, **own)
    assert result.metrics["bytes_up"].to_pylist() == [8 * result.metrics["clients"][0].as_py()]


class Misspelt(FedAvg):
    """FedAvg that names a base that is not broadcast."""

    bases: ClassVar[Any] = {"model": "modell"}


def test_a_base_that_is_not_broadcast_is_refused(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"base of 'model' in Pass\.bases is 'modell'"):
        run(tmp_path, **{"method.name": f"{HERE}:Misspelt"})


REFUSED = {
    "Lacking": "the sums that send returns must have the same names and shapes as its input",
    "Cut": "the means that receive returns must have the same names and shapes as its input",
    "Failing": "send failed: ZeroDivisionError: nothing",
    "Nothing": "the sums that send returns must have the same names",
    "Negative": "encoded failed: ValueError: Encoding(values=0, bits=0, extra=-1",
    "BadState": "the state that send returns must map names of groups, without '@' and '/', to",
    "BadEncoding": "the encoding that send returns must be an Encoding; is 12",
    "Keeping": "sets _seen, which a resumed run would lose",
}


@pytest.mark.parametrize("stage", REFUSED)
def test_a_bad_stage_is_refused_before_anything_starts(tmp_path, stage):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", channel={f"{HERE}:{stage}": {}})
    assert str(caught.value).startswith(f"channel.{HERE}:{stage}: {REFUSED[stage]}")
    assert not (tmp_path / "run").exists()


def test_a_pass_without_differences_is_said_once(tmp_path):
    notes = Notes()
    settings = make_settings(tmp_path, **{"method.name": "fedma", "channel.clip.norm": 1.0})
    raysim.run(settings, make_task(SIZES), notes)
    found = [note for note in notes.notes if note.startswith("channel: method.name=fedma sends no")]
    assert found and len(found) == len({*found})
