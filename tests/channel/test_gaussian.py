"""The stage `gaussian`: clipping, weights, noise and the adaptive clip, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api.channel import Received
from raysim.channel.gaussian import Gaussian
from raysim.numbers.seeds import torch_generator
from raysim.testing.tasks import SmallNet, samples
from tests.driver.test_channel import HERE as WATCHING
from tests.driver.test_channel import SEEN, SIZES, norm_of
from tests.tasks import Fresh, StopAfter, make_settings, make_task, model_of

WATCH = f"{WATCHING}:Watch"
FIXED = {"aggregation.weighting": "fixed"}
POISSON = {**FIXED, "selection.name": "poisson"}
STILL = {"local.lr": 1e-30, "local.epochs": 1}
"""Clients that do not move: a round moves the model by the noise alone."""


class Wide(SmallNet):
    """Enough parameters for the statistics of noise."""

    def __init__(self) -> None:
        super().__init__(width=600)


class Normalised(SmallNet):
    """With BatchNorm: running moments, and a counter in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


def run(path, model=SmallNet, *, listener=None, **more: Any) -> raysim.Result:
    fresh = Fresh(SEEN, to=listener)
    return raysim.run(make_settings(path, **more), make_task(SIZES, model), fresh)


def flat(params) -> Any:
    return np.concatenate([params[name].double().numpy().ravel() for name in sorted(params)])


def now(number: int = 0, expected: float = 4.0, stage: str = "a", of_pass: int = 0) -> Received:
    def source(purpose: str) -> torch.Generator:
        return torch_generator(0, f"channel/{stage}/{purpose}", number, of_pass)

    return Received(number, (0,), 6, source, expected)


def zeros(count: int = 100_000) -> raysim.Reduced:
    half = torch.zeros(count // 2, dtype=torch.float64)
    return raysim.Reduced((), {"model": {"a": half, "b": half.view(-1, 1)}}, {}, {})


def noise_of(stage: Gaussian, at: Received, reduced: raysim.Reduced | None = None) -> Any:
    return flat(stage.receive(at, reduced or zeros()).means["model"])


def test_clip_and_weights_are_numpy_s_on_unequal_clients(tmp_path):
    """Four of six clients; norms lie on both sides of the clip, samples of the cap."""
    given = {"clip": 0.3, "noise": 0, "full_weight": 20}
    channel = {WATCH: {}, "gaussian": given}
    result = run(tmp_path, rounds=1, fraction=0.7, channel=channel, **FIXED)
    norms = [norm_of(sums) for _, sums, _ in SEEN]
    weights = [min(SIZES[client] / 20, 1) for client, _, _ in SEEN]
    assert min(norms) < 0.3 < max(norms) and min(weights) < 1 == max(weights)
    for name, tensor in result.params.items():
        start = SEEN[0][2][name].astype(np.float64)
        moved = sum(
            weight * sums["model"][name] * min(1, 0.3 / norm)
            for weight, norm, (_, sums, _) in zip(weights, norms, SEEN, strict=True)
        )
        np.testing.assert_allclose(tensor.numpy(), start + moved / 4, rtol=1e-6, atol=1e-7)
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    found = {row["client"]: row["norm_to_clip"] for row in rows}
    expected = {client: norm for (client, _, _), norm in zip(SEEN, norms, strict=True)}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("fraction", [0.5, 0.4, 0.7])  # C*K of 3, 2.4 and 4.2 clients
def test_a_stage_without_effect_is_left_out_and_a_clip_that_never_binds_changes_nothing(
    tmp_path, fraction
):
    """At fixed cohorts it is `weighting=uniform`, to one ulp."""
    few = {"rounds": 2, "fraction": fraction}
    plain = run(tmp_path / "plain", **few)
    run(tmp_path / "none", **few, channel={"gaussian": {"clip": None, "noise": 0}})
    assert model_of(tmp_path / "none") == model_of(tmp_path / "plain")
    assert "norm_to_clip" not in pq.read_table(tmp_path / "none/clients.parquet").column_names
    uniform = run(tmp_path / "uniform", **few, weighting="uniform")
    loose = {"gaussian": {"clip": 1e9, "noise": 0}}
    fixed = run(tmp_path / "fixed", **few, **FIXED, channel=loose)
    for name, tensor in uniform.params.items():
        np.testing.assert_array_max_ulp(fixed.params[name].numpy(), tensor.numpy(), 1)
    assert not np.array_equal(flat(plain.params), flat(uniform.params))


@pytest.mark.parametrize(
    ("stage", "deviation"),
    [
        (Gaussian(clip=0.5, noise=2.0), 2.0 * 0.5 / 40),
        (Gaussian(clip=0.5, noise=2.0, noise_cohort=1000, population=10**6), 0.001),
        (
            Gaussian(clip=0.5, noise=2.0, quantile=0.3),
            (1 / 2.0**2 - 1 / 4.0**2) ** -0.5 * 0.5 / 40,
        ),
        (
            Gaussian(clip=0.5, noise=2.0, quantile=0.3, quantile_noise=1.1),
            (1 / 2.0**2 - 1 / 2.2**2) ** -0.5 * 0.5 / 40,
        ),
    ],
    ids=["plain", "hypothetical", "adaptive", "adaptive with its own noise"],
)
def test_noise_on_the_mean_has_the_stated_deviation(stage, deviation):
    """Of 100,000 draws, to five standard errors, with the moments of a normal distribution."""
    drawn = noise_of(stage, now(expected=40.0)) / deviation
    n = len(drawn)
    assert abs(drawn.mean()) < 5 / n**0.5
    assert abs((drawn**2).mean() - 1) < 5 * (2 / n) ** 0.5
    assert abs((drawn**4).mean() - 3) < 5 * (96 / n) ** 0.5
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / n**0.5


def test_no_two_rounds_passes_or_stages_share_noise():
    """Correlations of 100,000 draws are those of independent ones."""
    stage = Gaussian(clip=1.0, noise=1.0)
    at = [now(), now(1), now(stage="b"), now(of_pass=1), now(10), now(1, of_pass=1)]
    drawn = np.array([noise_of(stage, each) for each in at])
    apart = np.abs(np.corrcoef(drawn) - np.eye(len(at)))
    assert apart.max() < 5 / drawn.shape[1] ** 0.5
    assert np.array_equal(drawn[0], noise_of(stage, now()))


@pytest.mark.parametrize(
    ("empty", "divisor"),
    [(POISSON, 1.2), ({**FIXED, "clock.name": "devices", "clock.dropout": 0.3}, 1)],
    ids=["", "lost"],
)
def test_rounds_of_a_run_add_independent_noise_empty_ones_too(tmp_path, empty, divisor):
    """Clients that do not move: what the model moves by has deviation z*C/M in each round.

    So in rounds whose clients have all dropped out: a model that stays would tell that there were.
    """
    small = {**empty, **STILL, "fraction": 0.2, "rounds": 6, "checkpoint_every": 1}
    settings = make_settings(tmp_path / "run", **small, channel={"gaussian": {"clip": 0.3}})
    models = [flat(Wide().state_dict())]
    result, clients = None, []

    class Each(raysim.Listener):
        def round_done(self, row) -> None:
            clients.append(row["clients"])
            models.append(flat(raysim_model(tmp_path / "run", row["round"])))

    result = raysim.run(settings, make_task(SIZES, Wide), Each())
    moved = np.diff(models[1:], axis=0) / (0.3 / divisor)
    n = moved.shape[1]
    assert n > 8_000 and 0 in clients[1:] and any(clients[1:])
    assert np.abs(moved.std(axis=1) - 1).max() < 5 / (2 * n) ** 0.5
    assert np.abs(np.corrcoef(moved) - np.eye(len(moved))).max() < 5 / n**0.5
    assert result.metrics.num_rows == 6


def raysim_model(path, number: int) -> Any:
    """Return the model in the checkpoint of a round."""
    tensors = load_file(path / f"checkpoints/round_{number:06d}/state.safetensors")
    return {name: t for name, t in tensors.items() if name.startswith("model/")}


KEPT_BY_SERVER = {
    "model": {},
    "momentum": {"method.name": "momentum"},
    "personal": {"method.name": "apfl"},
    "fixed cohorts": {"selection.name": "uniform", "fraction": 1.0},
    "samples for weights": {"channel.gaussian.full_weight": 100},
    "coded": {"channel": {"topk": {"fraction": 0.5}, "gaussian": {"clip": 0.3}, "sign": {}}},
    "others lie": {"attack.name": "label_flip", "attack.fraction": 0.5},
}


@pytest.mark.parametrize("case", KEPT_BY_SERVER)
def test_a_client_moves_what_the_server_keeps_by_no_more_than_its_part(tmp_path, case):
    """Runs share their noise: they differ by what one client does, absent or with other samples."""
    task, few = make_task(SIZES), {"rounds": 1, "local.epochs": 2, "fraction": 0.9}
    few |= {"local.lr": 0.5, **POISSON}
    more = {"channel.gaussian.clip": 0.3, **few, **KEPT_BY_SERVER[case]}
    if "channel" in more:
        del more["channel.gaussian.clip"]
    x, y = samples(7, 999)
    found = []
    for number, data in enumerate([task.clients[2], (300 * x, (y + 1) % 3), (1e38 * x, y)]):
        settings = make_settings(tmp_path / str(number), **more, on_client_error="drop")
        clients = [*task.clients[:2], data, *task.clients[3:]]
        result = raysim.run(settings, replace(task, clients=clients))
        assert (result.metrics["clients"][0].as_py() < (6 if case == "fixed cohorts" else 5)) == (
            number == 2
        )
        state = load_file(tmp_path / str(number) / "checkpoints/round_000001/state.safetensors")
        found.append(flat({n: t for n, t in state.items() if t.is_floating_point()}))
    part = 0.3 / (6 * more["fraction"])
    own, other, absent = found
    assert 0.5 * part < np.linalg.norm(own - other) <= 2 * part * (1 + 1e-5)
    assert 0.2 * part < np.linalg.norm(own - absent) <= part * (1 + 1e-5)


def clips_of(result) -> list[float]:
    return result.metrics["clip"].to_pylist()


@pytest.mark.parametrize(("selection", "expected"), [("uniform", 3), ("poisson", 3.3)])
def test_the_clip_follows_the_quantile(tmp_path, selection, expected):
    """As NumPy has it, without noise, of the norms in the tables, whoever takes part."""
    given = {"clip": 0.3, "noise": 0, "quantile": 0.3, "quantile_rate": 0.7}
    more = {"rounds": 5, "fraction": 0.55, "selection.name": selection, **FIXED}
    result = run(tmp_path, **more, channel={"gaussian": given})
    rows, clip = pq.read_table(tmp_path / "clients.parquet").to_pylist(), 0.3
    cohorts = set()
    for number, found in enumerate(clips_of(result), 1):
        assert found == pytest.approx(clip, rel=1e-12)
        of_round = [row for row in rows if row["round"] == number]
        within = np.array([row["norm_to_clip"] <= clip for row in of_round])
        assert [row["gaussian@within_clip"] for row in of_round] == within.tolist()
        share = 0.5 + (within - 0.5).sum() / expected
        clip *= np.exp(-0.7 * (share - 0.3))
        cohorts.add(len(of_round))
    assert (cohorts == {3}) == (selection == "uniform")
    sent = {row["clients"]: row["bytes_up"] for row in result.metrics.to_pylist()}
    model = sum(t.numel() * 4 for t in result.params.values())
    assert all(total == count * (model + 4) for count, total in sent.items())


def test_the_share_within_the_clip_has_its_noise():
    """Over 2,000 rounds the logarithm of the clip varies by eta * s_b / M, not by the same draw."""
    stage = Gaussian(clip=1.0, noise=2.0, quantile=0.5, quantile_rate=0.2, quantile_noise=3.0)
    states = [stage.update(now(number, 40.0), zeros(2))[0]["clip"] for number in range(2_000)]
    logs = np.log(states) / (0.2 * 3.0 / 40)
    assert abs(logs.mean()) < 5 / 2_000**0.5
    assert abs(logs.var() - 1) < 5 * (2 / 2_000) ** 0.5
    updates = [noise_of(stage, now(number, 40.0), zeros(2))[0] for number in range(2_000)]
    assert abs(np.corrcoef(logs, updates)[0, 1]) < 5 / 2_000**0.5


@pytest.mark.usefixtures("resident_actors")
def test_an_adaptive_run_is_the_same_on_actors_and_after_an_interruption(tmp_path):
    """Its clip is the server's state, and what it has spent a function of its rounds."""
    more = {**POISSON, "fraction": 0.5, "rounds": 4, "method.name": "fedadam"}
    more["channel"] = {"gaussian": {"clip": 0.3, "quantile": 0.5, "quantile_noise": 2.0}}
    whole = run(tmp_path / "inline", **more)
    run(tmp_path / "actors", **more, **{"engine.backend": "ray", "engine.actors": 2})
    settings = make_settings(tmp_path / "cut", **more, **{"checkpoint_every": 2})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings, make_task(SIZES), StopAfter(3))
    resumed = raysim.resume(tmp_path / "cut", make_task(SIZES))
    for name in ("actors", "cut"):
        assert model_of(tmp_path / "inline") == model_of(tmp_path / name)
    for column in ("clip", "epsilon"):
        assert whole.metrics[column].to_pylist() == resumed.metrics[column].to_pylist()
    assert len({*clips_of(whole)}) == 4


WRONG = {
    "clip=none: needs channel.gaussian.noise=0": {"clip": None},
    "clip=none: needs channel.gaussian.quantile=none": {
        **{"clip": None, "noise": 0, "quantile": 0.5}
    },
    "epsilon=2.0: needs noise above 0": {"noise": 0, "epsilon": 2.0},
    "population=none: goes with noise_cohort": {"noise_cohort": 10},
    "noise_cohort=10: must be at most population=5": {"noise_cohort": 10, "population": 5},
    "noise=1: must be below 0.3, twice the deviation of the noise": {"quantile": 0.5},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_refused_before_anything_starts(tmp_path, message):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", **FIXED, fraction=0.5, channel={"gaussian": WRONG[message]})
    assert str(caught.value).startswith(f"channel.gaussian.{message}")
    assert not (tmp_path / "run").exists()
