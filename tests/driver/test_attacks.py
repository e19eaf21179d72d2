"""Attacks in runs: against NumPy, without effect, on actors, after faults, and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import norm as normal

import raysim
from raysim.attack import ATTACKS
from raysim.attack.alie import largest_z
from raysim.attack.differences import changed
from raysim.attack.mimic import Mimic
from raysim.driver.uploads.attacking import bad_in_round
from raysim.results.failures import is_divergence
from raysim.testing.tasks import samples
from tests.driver.test_aggregation import WATCH, Wide, flat, run, shares_of, vectors
from tests.driver.test_channel import SEEN, SIZES
from tests.tasks import Fresh, Notes, StopAfter, make_settings, make_task, model_of

HERE = "tests.driver.test_attacks"
HALF = {"attack.fraction": 0.5, "fraction": 0.8}
"""Three of six clients are bad, and five take part."""
LABELS: list[Any] = []
"""Labels that `Logged` drew."""


class Failing(raysim.Attack):
    def forge(self, known: raysim.KnownUpdates) -> torch.Tensor:
        raise KeyError("nothing")


class Narrow(raysim.Attack):
    def forge(self, known: raysim.KnownUpdates) -> torch.Tensor:
        return known.own[:, :1]


class Lacking(raysim.Attack):
    def send(self, view: raysim.View, upload: raysim.Upload, clients: int) -> raysim.Upload:
        return raysim.Upload()


class Sending(raysim.Attack):
    """Sends values beyond float32."""

    def send(self, view: raysim.View, upload: raysim.Upload, clients: int) -> raysim.Upload:
        return changed(upload, lambda d: d + 1e39)


class Forging(raysim.Attack):
    """Forges values beyond float32."""

    def forge(self, known: raysim.KnownUpdates) -> torch.Tensor:
        return known.own + 1e40


class Fewer(raysim.Attack):
    def poison(self, samples: raysim.Batch, classes: int, generator: Any) -> raysim.Batch:
        return samples._replace(y=samples.y[:1])


class Unknown(raysim.Attack):
    needs_classes = True

    def poison(self, samples: raysim.Batch, classes: int, generator: Any) -> raysim.Batch:
        return samples._replace(y=samples.y + classes - samples.y)


class Logged(raysim.Attack):
    """Keeps the bad clients' labels."""

    def poison(self, samples: raysim.Batch, classes: int, generator: Any) -> raysim.Batch:
        drawn = torch.randint(classes, samples.y.shape, generator=generator)
        LABELS.append(drawn.numpy().copy())
        return samples._replace(y=drawn)


class Turned(raysim.Attack):
    """Reverses labels."""

    def poison(self, samples: raysim.Batch, classes: int, generator: Any) -> raysim.Batch:
        return samples._replace(y=classes - 1 - samples.y)

    def trigger(self, x: torch.Tensor) -> torch.Tensor:
        return -x


class TurnedInPlace(Turned):
    """The same, in the tensors that it is given."""

    def poison(self, samples: raysim.Batch, classes: int, generator: Any) -> raysim.Batch:
        samples.y.copy_(classes - 1 - samples.y)
        return samples

    def trigger(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg_()


def test_samples_changed_in_place_are_changed_once(tmp_path):
    """They are those of all rounds, and the test set's those of all evaluations."""
    for name in ("Turned", "TurnedInPlace"):
        run(tmp_path / name, **HALF, **{"attack.name": f"{HERE}:{name}"})
    assert model_of(tmp_path / "Turned") == model_of(tmp_path / "TurnedInPlace")
    tables = [
        pq.read_table(tmp_path / f"{name}/metrics.parquet") for name in ("Turned", "TurnedInPlace")
    ]
    assert tables[0]["test_loss"] == tables[1]["test_loss"]


def bad_of(folder: Any) -> dict[int, bool]:
    """Return the clients of `clients.parquet`, ascending, and whether they are bad."""
    table = pq.read_table(folder / "clients.parquet").to_pydict()
    found = dict(zip(table["client"], table["bad"], strict=True))
    return {client: bool(found[client]) for client in sorted(found)}


def alie(own: Any, honest: Any, z: float) -> Any:
    return own.mean(axis=0) - z * own.std(axis=0)


def within(honest: Any, p: Any, largest: bool) -> Any:
    """Return the update of min-max, or of min-sum, by bisection."""
    mean = honest.mean(axis=0)
    pairs = ((honest[:, None] - honest) ** 2).sum(axis=2)
    bound = pairs.max() if largest else pairs.sum(axis=1).min()

    def fits(gamma: float) -> bool:
        distances = ((mean - gamma * p - honest) ** 2).sum(axis=1)
        return bool((distances.max() if largest else distances.sum()) <= bound)

    low, high = 0.0, 1.0
    while fits(high):
        high *= 2
    while high - low > 1e-9 * high:
        low, high = ((low + high) / 2, high) if fits((low + high) / 2) else (low, (low + high) / 2)
    return mean - low * p


def unit(honest: Any) -> Any:
    mean = honest.mean(axis=0)
    return mean / np.linalg.norm(mean)


ORACLES: dict[str, tuple[dict[str, Any], Any]] = {
    "sign_flip": ({"scale": 2.0}, lambda own, honest: -2 * own),
    "sign_flip-honest": ({"of": "honest"}, lambda own, honest: -honest.mean(axis=0)),
    "alie": ({}, lambda own, honest: alie(own, honest, 1.5)),
    "alie-formula": (
        {"z": None, "of": "honest", "per_round": 1},
        lambda own, honest: alie(honest, own, normal.ppf(2 / 4)),
    ),
    "alie-honest": ({"z": -0.7, "of": "honest"}, lambda own, honest: alie(honest, own, -0.7)),
    "ipm": ({"eps": 100.0}, lambda own, honest: -100 * honest.mean(axis=0)),
    "min_max": ({}, lambda own, honest: within(honest, unit(honest), True)),
    "min_max-std": (
        {"direction": "std"},
        lambda own, honest: within(honest, honest.std(axis=0, ddof=1), True),
    ),
    "min_sum-sign": (
        {"direction": "sign"},
        lambda own, honest: within(honest, np.sign(honest.mean(axis=0)), False),
    ),
}
"""Per attack, its settings, and the rows of bad clients by NumPy."""


@pytest.mark.parametrize("name", ORACLES)
def test_attacks_on_updates_are_numpy_s(tmp_path, name):
    """Of five of six unequal clients, in two blocks; the mean weighs them by their samples."""
    fields, oracle = ORACLES[name]
    own = {"rounds": 1, **HALF, "attack.name": name.partition("-")[0]}
    own |= {f"attack.{key}": value for key, value in fields.items()}
    result = run(tmp_path, Wide, **own, **WATCH)
    found = bad_of(tmp_path)
    bad = np.array([*found.values()])
    assert 0 < bad.sum() < len(bad) == 5 and [*found] == sorted(client for client, _, _ in SEEN)
    rows, start = vectors(SEEN)
    rows[bad] = oracle(rows[bad], rows[~bad])
    expected = start + shares_of([*found]) @ rows
    scale = np.abs(rows).max()
    np.testing.assert_allclose(flat(result.params), expected, rtol=1e-6, atol=2e-6 * scale)
    assert result.metrics["bad_clients"].to_pylist() == [bad.sum()]


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@pytest.mark.parametrize("apart", [1e-4, 0.1, 1e4])
def test_gamma_is_the_largest_that_passes(name, direction, apart):
    """Whatever the distances: of the first it is below 1e-3, of the last above 20."""
    draws = np.random.default_rng([len(direction), int(apart)])
    honest = apart * (draws.standard_normal((7, 5)) * [1, 2, 3, 4, 50] + 1)
    attack = ATTACKS.get(name)(direction=direction)
    known = raysim.KnownUpdates(torch.from_numpy(honest), torch.zeros(2, 5))
    decided = attack.decide(raysim.MeasuredUpdates(attack.measure(known), np.arange(7)))
    sent = attack.forge(replace(known, decided=decided)).numpy()
    std = honest.std(axis=0, ddof=1)
    p = {"unit": unit(honest), "sign": np.sign(honest.mean(axis=0)), "std": std}[direction]
    np.testing.assert_allclose(sent, within(honest, p, name == "min_max"), rtol=1e-6)
    gamma = np.linalg.norm(sent - honest.mean(axis=0)) / np.linalg.norm(p)
    assert direction == "std" or (gamma > 20) == (apart == 1e4)


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
def test_one_honest_update_leaves_no_room(name):
    honest = torch.ones(1, 3, dtype=torch.float64)
    attack, known = ATTACKS.get(name)(), raysim.KnownUpdates(honest, honest)
    decided = attack.decide(raysim.MeasuredUpdates(attack.measure(known), np.arange(1)))
    assert attack.forge(replace(known, decided=decided)).tolist() == honest[0].tolist()


@pytest.mark.parametrize(
    ("m", "f", "z"),
    [(10, 2, 0), (20, 4, 0.157), (50, 10, 0.253), (50, 24, 1.43), (100, 20, 0.286), (5, 5, 0)],
)
def test_z_of_alie_is_the_formula_s(m, f, z):
    assert largest_z(m, f) == pytest.approx(z, abs=6e-3 if z == 1.43 else 6e-4)


@pytest.mark.parametrize(("fraction", "beyond"), [(0.34, 0), (0.5, 1), (0.67, 2)])
def test_the_median_bears_with_a_minority(tmp_path, fraction, beyond):
    own = {"attack": {"name": "gaussian", "fraction": fraction}, "aggregation.name": "median"}
    result = run(tmp_path, rounds=1, fraction=1.0, **own)
    assert result.metrics["bad_clients_beyond_bound"].to_pylist() == [beyond]


def test_a_robust_aggregation_sees_forged_updates(tmp_path):
    """The trimmed mean of five updates, of which the bad clients' are a hundred times the mean."""
    own = {"attack.name": "ipm", "attack.eps": 100.0, "aggregation.name": "trimmed_mean"}
    result = run(tmp_path, Wide, rounds=1, **HALF, **own, **WATCH)
    bad = np.array([*bad_of(tmp_path).values()])
    rows, start = vectors(SEEN)
    rows[bad] = -100 * rows[~bad].mean(axis=0)
    middle = np.sort(rows, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(flat(result.params), start + middle, rtol=1e-6, atol=1e-6)
    assert result.metrics["bad_clients_beyond_bound"].to_pylist() == [bad.sum() - 1]
    assert result.summary["rounds_beyond_bound"] == 1


def test_the_server_of_fltrust_is_honest(tmp_path):
    """Although it trains in the place of a client, who is bad."""
    own = {"aggregation.name": "fltrust", "rounds": 1, "attack.fraction": 1.0}
    plain, attacked = (
        run(tmp_path / name, **own, **{"attack.name": name}) for name in ("none", "label_flip")
    )
    losses = [each.metrics["root_train_loss"].to_pylist() for each in (plain, attacked)]
    assert losses[0] == losses[1]


def test_krum_cuts_noise(tmp_path):
    """All bad clients of all rounds, which are in the run's records."""
    own = {"attack.name": "gaussian", "aggregation.name": "krum", "fraction": 1.0}
    result = run(tmp_path, rounds=2, **own, **{"attack.fraction": 0.17})
    assert result.metrics["bad_clients_cut"].to_pylist() == [1, 1]
    nobody = run(tmp_path / "nobody", rounds=1, **own, **{"attack.fraction": 0})
    assert nobody.metrics["bad_clients_cut"].to_pylist() == [0]
    bad = [client for client, each in bad_of(tmp_path).items() if each]
    assert json.loads((tmp_path / "environment.json").read_text())["bad_clients"] == bad


def test_noise_has_its_deviation(tmp_path):
    own = {"attack.name": "gaussian", "attack.std": 3.0, "attack.fraction": 1.0, "fraction": 0.2}
    result = run(tmp_path, Wide, rounds=1, **own, **WATCH)
    moved = flat(result.params) - vectors(SEEN)[1]
    assert len(SEEN) == 1 and moved.std() == pytest.approx(3, rel=0.01)
    assert moved.mean() == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("target", "wrong", "method"),
    [
        (None, lambda y: 2 - y, "fedavg"),
        (1, np.ones_like, "fedavg"),
        (None, lambda y: 2 - y, "fedbuff"),
    ],
)
def test_flipped_labels_are_those_of_a_task_that_has_them(tmp_path, target, wrong, method):
    """The bits of a run without attack on samples whose labels are wrong."""
    own = {"rounds": 4, "method.name": method}
    attack = {"name": "label_flip", "target": target, "fraction": 0.5}
    run(tmp_path / "attack", attack=attack, **own)
    bad = {client for client, each in bad_of(tmp_path / "attack").items() if each}
    right = [samples(size, key) for key, size in enumerate(SIZES)]
    clients = [(x, wrong(np.asarray(y)) if k in bad else y) for k, (x, y) in enumerate(right)]
    task = raysim.Task(model=make_task(SIZES).model, clients=clients, test=samples(300, 10_000))
    raysim.run(make_settings(tmp_path / "plain", **own), task)
    assert bad and model_of(tmp_path / "attack") == model_of(tmp_path / "plain")


def test_a_bad_client_has_the_same_labels_in_all_rounds(tmp_path):
    own = {"attack.name": f"{HERE}:Logged", "attack.fraction": 1.0, "fraction": 1.0}
    raysim.run(make_settings(tmp_path, rounds=2, **own), make_task(SIZES), Fresh(LABELS))
    first, second = LABELS[:6], LABELS[6:]
    assert sorted(map(len, first)) == sorted(SIZES)
    assert all(np.array_equal(*both) for both in zip(first, second, strict=True))
    largest, next_one = first[:2]
    assert not np.array_equal(largest[: len(next_one)], next_one)


def test_a_backdoor_succeeds_where_the_mean_takes_it_over(tmp_path):
    """The success rate is that of the model on the patched test set."""
    own = {"attack.target": 2, "attack.size": 2, "attack.value": 3.0, "attack.share": 0.9}
    result = run(tmp_path, rounds=3, **own, **{"attack.name": "replacement", "attack.per_round": 1})
    x, y = (torch.as_tensor(each) for each in samples(300, 10_000))
    model = make_task(SIZES).model()
    model.load_state_dict(result.params)
    patched = x.clone().reshape(300, -1)
    patched[:, -4:] = 3.0
    predicted = model(patched).argmax(dim=1)
    rate = float((predicted[y != 2] == 2).double().mean())
    assert result.metrics["attack_success_rate"].to_pylist()[-1] == pytest.approx(rate)
    assert result.summary["final_attack_success_rate"] == pytest.approx(rate)
    assert rate > 0.5


@pytest.mark.parametrize(("boost", "factor"), [(7.0, 7.0), (None, 4.0)])
def test_replacement_scales_updates(tmp_path, boost, factor):
    """By m = 4 unless it says something else."""
    attack = {"name": "replacement", "boost": boost, "fraction": 1.0, "size": 1}
    own = {"attack": attack, **WATCH}
    result = run(tmp_path, rounds=1, **own)
    rows, start = vectors(SEEN)
    expected = start + factor * shares_of(sorted(client for client, _, _ in SEEN)) @ rows
    np.testing.assert_allclose(flat(result.params), expected, rtol=1e-6, atol=1e-6)


def test_clients_under_way_attack_from_the_version_in_which_they_started(tmp_path):
    """One that starts in each round is bad; stale updates weigh 1 / sqrt(1 + tau)."""
    attack = {"name": "replacement", "boost": 7.0, "per_round": 1, "size": 1}
    overlapping = {"method.name": "fedbuff", "method.buffer": 2, "fraction": 0.8}
    result = run(tmp_path, rounds=6, seed=1, attack=attack, **overlapping, **WATCH)
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert any(row["bad"] and row["staleness"] for row in rows)
    seen = {(client, int(row["version"])): None for row in rows for client in [row["client"]]}
    for client in {client for client, _ in seen}:  # in the order of their versions
        own = (sums["change"] for number, sums, _ in SEEN if number == client)
        seen |= zip(sorted(key for key in seen if key[0] == client), own, strict=False)
    for name, tensor in result.params.items():
        expected = SEEN[0][2][name].astype(np.float64)
        for row in rows:
            factor = (7 if row["bad"] else 1) / np.sqrt(1 + row["staleness"]) / 2
            expected = expected + factor * seen[row["client"], row["version"]][name]
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-5, atol=1e-5)
    arrived = [row["round"] for row in rows if row["bad"]]
    assert result.metrics["bad_clients"].to_pylist() == [arrived.count(n) for n in range(1, 7)]
    of_version = [[row["bad"] for row in rows if row["version"] == each] for each in range(6)]
    assert of_version[0] == [0, 0, 0]  # five have started
    assert all(sum(bad) == (len(bad) == 2) for bad in of_version[1:]) and [0] in of_version


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    run(folder, rounds=2)
    return model_of(folder)


@pytest.mark.parametrize(
    "own",
    [
        {"name": "none", "fraction": 0.5},
        {"name": "sign_flip", "fraction": 0.0},
        {"name": "ipm", "per_round": 0},
        {"name": "label_flip", "fraction": 0.05},
    ],
)
def test_without_bad_clients_all_bits_are_those_of_the_plain_run(plain, tmp_path, own):
    run(tmp_path, rounds=2, attack=own)
    assert model_of(tmp_path) == plain


def test_more_bad_clients_arrive_than_their_share(tmp_path):
    """Twenty of a hundred, in cohorts of twenty: more than four in a third of the rounds or more.

    By the hypergeometric distribution in 0.37 of them.
    """
    rounds = 60
    own = {"fraction": 0.2, "aggregation": {"name": "trimmed_mean", "byzantine": 4}}
    settings = make_settings(
        tmp_path, rounds=rounds, clients=100, **own, **{"attack.name": "gaussian"}
    )
    counts = [
        len({*bad_in_round(settings, 0, ())} & {*settings_cohort})
        for settings_cohort in cohorts(settings, rounds)
    ]
    assert sum(count > 4 for count in counts) == pytest.approx(0.37 * rounds, abs=9)


def cohorts(settings: raysim.Settings, rounds: int) -> list[tuple[int, ...]]:
    draws = np.random.default_rng(0)
    return [tuple(draws.choice(100, 20, replace=False).tolist()) for _ in range(rounds)]


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("scaffold", {"name": "min_max", "per_round": 1}),
        ("scaffold", {"name": "replacement", "fraction": 0.34, "size": 1}),
        ("fedbuff", {"name": "gaussian", "per_round": 1}),
    ],
)
def test_the_same_bits_on_actors_and_after_an_interruption(tmp_path, method, own):
    more: Mapping[str, Any] = {"method.name": method, "attack": own, "rounds": 3}
    run(tmp_path / "inline", Wide, **more)
    run(tmp_path / "actors", Wide, **more, **{"engine.backend": "ray", "engine.actors": 2})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **more), make_task(SIZES, Wide), StopAfter(2))
    raysim.resume(tmp_path / "cut", make_task(SIZES, Wide))
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "actors")
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "cut")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"name": f"{HERE}:Failing"}, "forge failed: KeyError"),
        ({"name": f"{HERE}:Narrow"}, "forge returned tensor"),
        ({"name": f"{HERE}:Fewer"}, "poison returned Batch"),
        ({"name": f"{HERE}:Unknown"}, "gives samples the label 3; labels must be 0 to 2"),
    ],
)
def test_a_bad_attack_is_refused_before_anything_starts(tmp_path, own, message):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", attack=own)
    assert str(caught.value).startswith(f"attack.name={own['name']}: {message}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method.name": "fsvrg", "attack.name": "ipm"}, "passes are over more clients"),
        ({"method.name": "centralized", "attack.name": "label_flip"}, "samples are pooled"),
        ({"method.name": "powersgd"}, "send 'model' without a base from which it has moved"),
        ({"method.name": "fedproto"}, "send 'prototypes' without a base from which it has moved"),
    ],
)
def test_methods_that_an_attack_does_not_suit_are_refused(tmp_path, more, message):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", **{"attack.name": "sign_flip", **more})
    said = str(caught.value)
    assert (
        said.startswith("attack.name=")
        and f"does not go with method.name={more['method.name']}" in said
    )
    assert message in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"name": "gaussian", "per_round": 5}, "per_round=5: must be at most the clients of a"),
        ({"name": "ipm", "per_round": 4}, "per_round=4: must be below the clients of a round, 4,"),
        ({"name": "ipm", "fraction": 0.95}, "fraction=0.95: must leave clients that are not bad,"),
        ({"name": "label_flip", "target": 3}, "target=3: must be a label of the samples, 0 to 2"),
        ({"name": "backdoor"}, "size=4: must leave a part of the inputs [12] as it is"),
        ({"name": "replacement", "target": 9}, "target=9: must be a label of the samples, 0 to 2"),
    ],
)
def test_settings_that_do_not_suit_the_clients_are_refused(tmp_path, own, message):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", attack=own)
    assert str(caught.value).startswith(f"attack.{message}")
    assert not (tmp_path / "run").exists()


def test_a_fraction_of_which_nobody_is_bad_is_noted(tmp_path):
    notes, own = Notes(), {"attack.name": "sign_flip", "attack.fraction": 0.05, "rounds": 1}
    raysim.run(make_settings(tmp_path, **own), make_task(SIZES), notes)
    assert notes.notes == ["attack.fraction=0.05: none of 6 clients is bad"]


def test_bad_clients_without_an_attack_are_noted(tmp_path):
    notes, own = Notes(), {"attack.fraction": 0.5, "attack.per_round": 2, "rounds": 1}
    raysim.run(make_settings(tmp_path, **own), make_task(SIZES), notes)
    said = ("fraction=0.5", "per_round=2")
    assert notes.notes == [f"attack.{each}: not used with attack.name=none" for each in said]


def test_what_an_attack_sends_has_the_shapes_of_updates(tmp_path):
    with pytest.raises(raysim.RaysimError, match="send must return an Upload whose sums"):
        run(tmp_path, attack={"name": f"{HERE}:Lacking", "fraction": 1.0})


def mimicked(rounds: Any, warmup: int) -> list[Any]:
    """Return per round the copied client and its update.

    Args:
        rounds: Per round, the honest clients and their updates.
        warmup: Rounds of the warm-up.
    """
    mu, z, client, found = 0.0, np.zeros(1), -1, []
    for t, (clients, rows) in enumerate(rounds):
        if t < warmup:
            mu = t / (t + 1) * mu + rows.mean(axis=0) / (t + 1)
            centred = rows - mu
            if t == 0:
                draws = torch.Generator().manual_seed(0)
                z = torch.randn(len(rows), generator=draws, dtype=torch.float64).numpy() @ centred
            s = (centred @ z) @ centred
            z = t / (t + 1) * z * (t > 0) + s / np.linalg.norm(s) / (t + 1)
            z /= np.linalg.norm(z)
        best = int((rows @ z).argmax())
        client = clients[best] if t < warmup else client
        copied = clients.index(client) if client in clients else best
        found.append((clients[copied], rows[copied]))
    return found


def test_mimic_is_numpy_s(tmp_path):
    """Over six rounds of four of six clients, of which the copied one misses some; resumed."""
    own = {"attack.name": "mimic", "attack.warmup": 2, "attack.fraction": 0.34, **WATCH}
    task = make_task(SIZES, Wide)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path, rounds=6, **own), task, StopAfter(3))
    SEEN.clear()
    raysim.resume(tmp_path, task)
    result = run(tmp_path / "whole", Wide, rounds=6, **own)
    assert model_of(tmp_path) == model_of(tmp_path / "whole")
    bad = {client for client, each in bad_of(tmp_path / "whole").items() if each}
    rounds, starts = [], []
    for at in range(0, 24, 4):
        rows, start = vectors(SEEN[at : at + 4])
        clients = sorted(client for client, _, _ in SEEN[at : at + 4])
        honest = [k for k, client in enumerate(clients) if client not in bad]
        rounds.append(([clients[k] for k in honest], rows[honest]))
        starts.append((start, rows, clients))
    copied = mimicked(rounds, 2)
    assert len({client for client, _ in copied[2:]}) > 1
    after = [start for start, _, _ in starts[1:]] + [flat(result.params)]
    for (start, rows, clients), (_, update), end in zip(starts, copied, after, strict=True):
        sent = [update if c in bad else row for c, row in zip(clients, rows, strict=True)]
        expected = start + shares_of(clients) @ np.array(sent)
        np.testing.assert_allclose(end, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("attack", "aggregation", "begin"),
    [
        ("Sending", "mean", rf"attack\.name={HERE}:Sending"),
        ("Sending", "krum", rf"attack\.name={HERE}:Sending"),
        ("Forging", "mean", r"round 1: aggregation\.name=mean"),
    ],
)
def test_updates_beyond_float32_are_named(tmp_path, attack, aggregation, begin):
    """They are no part of a model, and no reason to change the learning rate."""
    own = {"attack.name": f"{HERE}:{attack}", "aggregation.name": aggregation, "fraction": 1.0}
    with pytest.raises(raysim.RaysimError, match=rf"^{begin}: its update is not finite") as caught:
        run(tmp_path, **own)
    assert "local.lr" not in str(caught.value) and is_divergence(str(caught.value))


def test_an_attack_without_an_effect_is_refused(tmp_path):
    """FedMA's clients send rows alone, as is seen when they have sent them."""
    with pytest.raises(raysim.SettingsError, match="send 'layer' without a base from which it"):
        run(tmp_path, **{"method.name": "fedma", "attack.name": "gaussian", **HALF})


def test_a_pass_without_training_does_not_keep_attacks_away(tmp_path):
    """TERM's first one gathers losses; at t=0 it is FedAvg with uniform weights, also attacked."""
    own = {"rounds": 2, **HALF, "attack.name": "sign_flip"}
    term = run(tmp_path / "term", **own, **{"method.name": "term", "method.t": 0})
    mean = run(tmp_path / "mean", **own, weighting="uniform")
    for name, tensor in mean.params.items():
        np.testing.assert_allclose(term.params[name], tensor, rtol=1e-6, atol=1e-6)


def test_mimic_looks_for_a_direction_until_updates_differ():
    """A first round with one honest client has none; the second is then as a first one."""
    rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attack, own = Mimic(), rows[:1]
    known = raysim.KnownUpdates(rows[:1], own, kept=rows.new_zeros((2, 9)))
    last = attack.decide(raysim.MeasuredUpdates(attack.measure(known), np.arange(1)))
    kept = attack.keep(replace(known, decided=last))
    assert not kept[1].any()
    known = raysim.KnownUpdates(rows, own, kept=kept)
    found = attack.decide(raysim.MeasuredUpdates(attack.measure(known), np.arange(4), last))
    kept = attack.keep(replace(known, decided=found))
    assert float(kept[1].norm()) == pytest.approx(1)
