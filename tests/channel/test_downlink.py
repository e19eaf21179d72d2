"""The down-link against NumPy: half of unequal clients a round; bytes, no effect, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.channel.topk import TopK
from raysim.selection.uniform import Uniform
from raysim.storage.checkpoints import Checkpoints
from raysim.testing import ComponentContract
from tests.channel.test_coders import largest
from tests.methods.test_oracle import LR, NAMES, assert_close
from tests.methods.test_transforms import MOMENTUM, local_training, run_half
from tests.tasks import RawNet, make_settings, make_task, model_of

SIZES = (20, 3, 160, 17, 40, 80)
FRACTION, UP = 0.3, 0.4
TOPK = {"topk": {"fraction": FRACTION}}


EXPECTED: list[float] = []


class Noting(Uniform):
    """Uniform selection that notes how long client 0 is expected to take."""

    def select(self, sampling: raysim.Sampling) -> Sequence[int]:
        EXPECTED.append(float(sampling.seconds([0])[0]))
        return super().select(sampling)


class Reporting(TopK):
    """A contraction that reports of what it sends."""

    def send(self, view: raysim.View, upload: raysim.Upload) -> raysim.Upload:
        return replace(super().send(view, upload), scalars={"kept": 1.0})

    @property
    def is_contraction(self) -> bool:
        return True


class TestDownlink(ComponentContract):
    """With draws of the server's, a method of two groups, and stages in both directions."""

    settings: ClassVar[Mapping[str, Any]] = {
        "downlink": {"randk": {"fraction": 0.5, "unbiased": False}, "int8": {}},
        "channel": {"error_feedback": {}, "topk": {"fraction": 0.5}},
    }

    @pytest.mark.usefixtures("resident_actors")
    def test_same_bits_and_figures_on_two_actors(self, tmp_path):
        super().test_same_bits_and_figures_on_two_actors(tmp_path)


def coded(tensors: list[np.ndarray], fraction: float) -> list[np.ndarray]:
    """Return top-k of tensors as one vector, in the order of their names."""
    order = sorted(range(len(tensors)), key=lambda place: NAMES[place])
    flat = np.concatenate([tensors[n].ravel() for n in order])
    kept = largest(flat, int(np.ceil(round(fraction * len(flat), 6))))
    parts = np.split(kept, np.cumsum([tensors[n].size for n in order])[:-1])
    found = dict(zip(order, parts, strict=True))
    return [found[n].reshape(t.shape) for n, t in enumerate(tensors)]


def minus(one: list[np.ndarray], other: list[np.ndarray]) -> list[np.ndarray]:
    return [p - q for p, q in zip(one, other, strict=True)]


def oracle(w, clients, cohorts, up):
    """Return the server's model, what clients have of it, and the bytes that each round sends."""
    size = sum(p.size for p in w)
    k = int(np.ceil(round(FRACTION * size, 6)))
    increment, whole = 4 * k + -(-k * (size - 1).bit_length() // 8), 4 * size
    has = {k: None for k in range(len(clients))}
    v, received = w, []
    for number, cohort in enumerate(cohorts):
        v = [p + d for p, d in zip(v, coded(minus(w, v), FRACTION), strict=True)]
        missed = [whole if has[k] is None else increment * (number - has[k]) for k in cohort]
        received.append(sum(min(whole, each) for each in missed))
        has |= dict.fromkeys(cohort, number)
        total = sum(len(clients[k][1]) for k in cohort)
        for k in cohort:
            nothing = [np.zeros_like(p) for p in v]
            d = minus(local_training(v, clients[k], LR, nothing, MOMENTUM, 0.0), v)
            d = coded(d, UP) if up else d
            w = [p + len(clients[k][1]) / total * q for p, q in zip(w, d, strict=True)]
    return w, v, received


@pytest.mark.parametrize("up", [False, True])
def test_models_and_bytes_are_numpy_s(tmp_path, up):
    channel = {"topk": {"fraction": UP}} if up else {}
    settings = {"method.name": "fedavg", "downlink": TOPK, "channel": channel, **MOMENTUM}
    result, start, clients, cohorts = run_half(tmp_path, settings)
    w, v, received = oracle(start, clients, cohorts, up)
    assert_close(result.params, w)
    checkpoints = Checkpoints(result.run_dir / "checkpoints")
    last = checkpoints.latest(len(clients), print).run
    assert_close(last.downlink["model"], v)
    assert abs(np.concatenate([d.ravel() for d in minus(w, v)])).max() > 1e-3
    assert result.metrics["bytes_down"].to_pylist() == received


def run(path: Any, downlink: dict[str, Any], **more: Any) -> raysim.Result:
    settings = make_settings(path, downlink=downlink, **{"fraction": 0.5, "rounds": 2, **more})
    return raysim.run(settings, make_task(SIZES))


@pytest.mark.parametrize("stages", [{"topk": {"fraction": 1.0}}, {}])
def test_a_stage_without_effect_is_left_out(tmp_path, stages):
    """The plain run's bytes on disk and on the way, and no state."""
    plain, result = run(tmp_path / "plain", {}), run(tmp_path / "run", stages)
    assert model_of(result.run_dir) == model_of(plain.run_dir)
    assert result.summary["bytes_down"] == plain.summary["bytes_down"]
    assert not [*result.run_dir.rglob("downlink.safetensors")]


def test_the_clock_charges_what_is_received(tmp_path):
    """The devices compute in no time and receive a byte a second; all take part in each round.

    Expected is what a client takes that has missed nothing.
    """
    rows = [f"{client},1e18,1e18,1,0" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    clock = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    clock["selection.name"] = f"{__name__}:Noting"
    result = run(tmp_path / "run", {"sign": {}}, fraction=1.0, **clock)
    values = sum(tensor.numel() for tensor in result.params.values())
    each = [4 * values, -(-values // 8) + 4 * len(result.params)]
    for row, received in zip(result.metrics.to_pylist(), each, strict=True):
        assert row["bytes_down"] == len(SIZES) * received
        assert row["virtual_seconds"] == pytest.approx(received, abs=0.01)
    assert EXPECTED[-1] == pytest.approx(each[1], abs=0.01)


def test_buffers_travel_as_they_are(tmp_path):
    """Clients of the last round had those of the server, but not its parameters.

    They receive them once, whatever the rounds that they have missed.
    """
    settings = make_settings(tmp_path, downlink={"sign": {}}, fraction=0.5, checkpoint_every=1)
    result = raysim.run(settings, make_task(SIZES, RawNet))
    checkpoints = Checkpoints(result.run_dir / "checkpoints")
    found = checkpoints.latest(len(SIZES), print).run.downlink["model"]
    shutil.rmtree(tmp_path / "checkpoints" / "round_000003")
    model = checkpoints.latest(len(SIZES), print).run.state.groups["model"]
    equal = {name: float((found[name] == t).double().mean()) for name, t in model.items()}
    assert equal["features.mean"] == equal["features.square"] == 1
    assert equal["head.weight"] < 0.5
    buffers, coded = 4 * 2 * 12, 12 * 16 + 16 + 16 * 3 + 3
    has: dict[int, int] = {}
    expected, longest = [0, 0, 0], 0
    for row in pq.read_table(tmp_path / "clients.parquet").to_pylist():
        number, client = row["round"], row["client"]
        missed = number - has.get(client, -99)
        sent = min(4 * coded, missed * (-(-coded // 8) + 4 * 4))
        expected[number - 1] += buffers + sent
        longest = max(longest, missed if client in has else 0)
        has[client] = number
    assert longest == 2
    assert result.metrics["bytes_down"].to_pylist() == expected


@pytest.mark.parametrize("method", ["scaffold", "term", "drfa", "fsvrg"])
def test_only_the_model_of_the_round_s_start_is_coded(tmp_path, method):
    """A round of all clients receives increments of the second round, and what else there is."""
    more = {"method.name": method, "fraction": 1.0, "weighting": "uniform"}
    plain = run(tmp_path / "plain", {}, **more).metrics["bytes_down"].to_pylist()
    result = run(tmp_path / "run", TOPK, **more)
    values = sum(tensor.numel() for tensor in result.params.values())
    k = int(np.ceil(round(FRACTION * values, 6)))
    saved = 4 * values - 4 * k - -(-k * (values - 1).bit_length() // 8)
    assert result.metrics["bytes_down"].to_pylist() == [plain[0], plain[1] - len(SIZES) * saved]


MIFL = {"method.name": "mifl", "method.delivery": "global"}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {f"{__name__}:Reporting": {}},
        {},
        "downlink: a stage of the down-link must not keep or report values of a client",
    ),
    ({"topkk": {}}, {}, "downlink.topkk: no such stage; did you mean 'topk'"),
    (TOPK, {"method.name": "fedproto"}, "downlink: .*method.name=fedproto, whose clients send no"),
    (TOPK, MIFL, "downlink: .*method.name=mifl, whose clients have the model that was delivered"),
    (TOPK, {"method.name": "powersgd"}, "downlink: .*method.name=powersgd, whose clients send no"),
]


@pytest.mark.parametrize(("downlink", "more", "message"), REFUSED)
def test_what_does_not_go_together_is_refused_before_the_start(tmp_path, downlink, more, message):
    with pytest.raises(raysim.SettingsError, match=f"^{message}"):
        run(tmp_path / "run", downlink, **more)
    assert not (tmp_path / "run").exists()
