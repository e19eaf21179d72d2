"""Compression in runs: error feedback against NumPy, exact sums, no effect, lost messages."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.numbers.tensors import flatten
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet
from tests.tasks import Fresh, make_settings, make_task, model_of

HERE = "tests.channel.test_compressed_runs"
SIZES = (2, 3, 160, 17, 40, 80)
CPU = torch.device("cpu")
SEEN: dict[str, list[tuple[int, dict[str, np.ndarray]]]] = {"Before": [], "After": []}
START: dict[str, np.ndarray] = {}


class Before(raysim.Stage):
    """Notes the differences of a client, and changes nothing."""

    @property
    def is_contraction(self) -> bool:
        return True

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        found = {name: d.double().numpy().copy() for name, d in flatten(upload.sums).items()}
        SEEN[type(self).__name__].append((view.client, found))
        START.update({name: t.numpy() for name, t in view.broadcast["model"].items()})
        return upload


class After(Before):
    """The same, at another place."""


class Normalised(SmallNet):
    """With BatchNorm: two running moments of 16 values, and a counter of 8 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


def run(path: Any, channel: dict[str, Any], model: Any = SmallNet, **more: Any) -> raysim.Result:
    settings = make_settings(path, channel=channel, **{"fraction": 0.5, **more})
    return raysim.run(settings, make_task(SIZES, model), Fresh(*SEEN.values()))


def watched(**stages: Any) -> dict[str, Any]:
    return {f"{HERE}:Before": {}, **stages, f"{HERE}:After": {}}


def largest(x: np.ndarray, fraction: float) -> np.ndarray:
    order = np.argsort(-np.abs(x).astype(np.float32), kind="stable")
    kept = order[: int(np.ceil(fraction * len(x)))]
    coded = np.zeros_like(x)
    coded[kept] = x[kept]
    return coded


def in_bytes(x: np.ndarray, block: int) -> np.ndarray:
    padded = np.append(x, np.zeros(-len(x) % block)).reshape(-1, block)
    scales = np.abs(padded).max(1, keepdims=True) / 127
    return (np.round(padded / np.where(scales, scales, 1)) * scales).ravel()[: len(x)]


def of_sent(x: np.ndarray, block: int) -> np.ndarray:
    coded = np.zeros_like(x)
    coded[x != 0] = in_bytes(x[x != 0], block)
    return coded


def vectors(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    groups = sorted({name.split("/")[0] for name in found})
    named = {g: [n for n in sorted(found) if n.startswith(f"{g}/")] for g in groups}
    return {g: np.concatenate([found[n].ravel() for n in names]) for g, names in named.items()}


def test_one_memory_holds_what_two_coders_leave_out(tmp_path):
    """For clients that miss rounds, of unequal sizes, in two groups; all is sent in the end."""
    coders = {"error_feedback": {}, "topk": {"fraction": 0.1}, "int8": {"block": 8}}
    more = {"method.name": "scaffold", "rounds": 4, "fraction": 0.7, "checkpoint_every": 9}
    result = run(tmp_path, watched(**coders), **more)
    memory: dict[tuple[int, str], np.ndarray] = {}
    again = 0
    for (client, given), (other, sent) in zip(*SEEN.values(), strict=True):
        assert client == other
        for group, d in vectors(given).items():
            again += (client, group) in memory
            whole = d + memory.get((client, group), 0)
            coded = of_sent(largest(whole, 0.1), 8)
            np.testing.assert_allclose(vectors(sent)[group], coded, atol=1e-6 * abs(whole).max())
            memory[client, group] = whole - coded
    assert again > 10
    states = ClientStates(result.run_dir / "clients")
    for client in {client for client, _ in memory}:
        kept = states.read(client, max(states.versions(client)), CPU)["error_feedback@error"]
        assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
        found = vectors({name: tensor.numpy() for name, tensor in kept.items()})
        for group, e in found.items():
            expected = memory[client, group]
            np.testing.assert_allclose(e, expected, atol=1e-6 * abs(expected).max())


CODERS: dict[str, dict[str, Any]] = {
    "sparse": {"topk": {"fraction": 0.2, "per": "tensor"}},
    "random": {"randk": {"fraction": 0.2, "mask": "shared"}, "qsgd": {"levels": 3}},
    "signs": {"error_feedback": {}, "sign": {}},
    "factors": {"low_rank": {"rank": 2}},
}


@pytest.mark.parametrize("name", CODERS)
def test_the_server_s_model_is_the_exact_mean_of_what_it_decodes(tmp_path, name):
    """By fractions, rounded once; that workers change no bit of a sum is the engine's."""
    result = run(tmp_path, watched(**CODERS[name]), rounds=1)
    arrived = SEEN["After"][-3:]
    total = sum(SIZES[client] for client, _ in arrived)
    for key, tensor in result.params.items():
        sent = [(SIZES[client], found[f"model/{key}"].ravel()) for client, found in arrived]
        for place, start in enumerate(START[key].ravel()):
            terms = (n * Fraction(float(start) + float(d[place])) for n, d in sent)
            exact = float(sum(terms, Fraction(0)) / total)
            assert tensor.numpy().ravel()[place] == np.float32(exact)


WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"topk": {"fraction": 1.0}},
    {"error_feedback": {}},
    {"error_feedback": {}, "randk": {"fraction": 1.0}},
]


def test_stages_without_effect_are_left_out(tmp_path):
    """The plain run's bytes on disk and on the way, and no state."""
    plain = run(tmp_path / "plain", {})
    for number, stages in enumerate(WITHOUT_EFFECT):
        result = run(tmp_path / f"{number}", stages)
        assert model_of(result.run_dir) == model_of(plain.run_dir)
        assert result.summary["bytes_up"] == plain.summary["bytes_up"]
        assert not [*(result.run_dir / "clients").rglob("*.safetensors")]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"error_feedback": {}, "topk": {}, "randk": {}},
        "randk",
        "cannot stand after channel.error_feedback, which would send again what it changes",
    ),
]


@pytest.mark.parametrize(("channel", "stage", "message"), REFUSED)
def test_what_does_not_go_together_is_refused_before_the_start(tmp_path, channel, stage, message):
    with pytest.raises(raysim.SettingsError, match=f"^channel.{stage}: {message}"):
        run(tmp_path / "run", channel)
    assert not (tmp_path / "run").exists()


def test_a_client_whose_message_is_lost_keeps_its_memory(tmp_path):
    """Client 5 is late from the second round on, as its fast link is cut by a deadline."""
    rows = [f"{client},1e18,1e18,1e18,{9 if client == 5 else 0.5}" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    clock = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    late = {**clock, "clock.policy": "deadline", "clock.deadline": 5.0, "fraction": 1.0}
    channel = {"error_feedback": {}, "topk": {"fraction": 0.1}}
    result = run(tmp_path / "run", channel, rounds=2, **late)
    states = ClientStates(result.run_dir / "clients")
    found = {client: len(states.versions(client)) for client in range(len(SIZES))}
    assert found == {**dict.fromkeys(range(5), 2), 5: 0}


def slow(folder: Path) -> dict[str, Any]:
    """Devices that compute in no time and send a byte a second."""
    rows = [f"{client},1e18,1,1e18,0" for client in range(len(SIZES))]
    (folder / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    return {"clock.name": "devices", "clock.table": str(folder / "devices.csv")}


def test_bytes_are_counted_as_encoded_and_charged_on_the_clock(tmp_path):
    channel = {"error_feedback": {}, "topk": {"fraction": 0.1}, "int8": {"block": 8}}
    result = run(tmp_path / "run", channel, rounds=1, **slow(tmp_path))
    values = sum(tensor.numel() for tensor in result.params.values())
    k = -(-values // 10)
    each = k + 4 * -(-k // 8) + -(-k * (values - 1).bit_length() // 8)
    row = result.metrics.to_pylist()[-1]
    assert row["bytes_up"] == 3 * each
    assert row["virtual_seconds"] == pytest.approx(each, abs=0.01)


VALUES, BUFFERS, COUNTER = 12 * 16 + 16 + 16 * 3 + 3 + 2 * 16, 2 * 16, 8
OF_BUFFERS: list[tuple[dict[str, Any], int]] = [
    ({"clip": {"norm": 1e9}, "randk": {"fraction": 0.1}}, 4 * (30 + BUFFERS) + 8),
    ({"error_feedback": {}, "sign": {}}, 37 + 4 * 6 + 4 * BUFFERS),
    ({"topk": {"fraction": 0.1}, "int8": {}}, 30 + 4 + 34 + 4 * BUFFERS),
    (
        {"randk": {"fraction": 0.1, "mask": "shared"}, "masks": {"bits": 24}},
        3 * (30 + BUFFERS + 1) + 64 + 7 * 32,
    ),
]


@pytest.mark.parametrize(("channel", "sent"), OF_BUFFERS)
def test_buffers_are_sent_as_they_are(tmp_path, channel, sent):
    """Their bits, bytes and time; a variance that is decoded with an error may be below 0."""
    given = {"rounds": 1, "local.lr": 0.3, **slow(tmp_path)}
    plain = run(tmp_path / "plain", {}, Normalised, **given)
    result = run(tmp_path / "run", channel, Normalised, **given)
    for name, tensor in result.params.items():
        is_buffer = "running" in name or "tracked" in name
        assert torch.equal(tensor, plain.params[name]) is is_buffer, name
    row = result.metrics.to_pylist()[-1]
    assert row["bytes_up"] == 3 * (sent + COUNTER)
    assert row["virtual_seconds"] == pytest.approx(sent + COUNTER, abs=0.01)
    states = ClientStates(result.run_dir / "clients")
    for client, versions in ((client, states.versions(client)) for client in range(len(SIZES))):
        for kept in (states.read(client, version, CPU) for version in versions):
            assert not [name for name in kept["error_feedback@error"] if "running" in name]
