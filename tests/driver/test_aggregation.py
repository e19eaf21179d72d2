"""Aggregations in runs: against NumPy, on actors, after faults, and refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.api.differences import flat_values, of_flat_values
from raysim.federation.federation import without_root
from raysim.federation.task import from_task
from raysim.numbers.tensors import Layout
from raysim.samples.client_indices import ListedIndices
from raysim.samples.participants import participants_of
from raysim.storage import updates
from raysim.testing.tasks import SmallNet
from tests.aggregation.test_numpy import centred, fltrust, geometric_median, multi_krum
from tests.driver import test_channel
from tests.driver.test_channel import SEEN, SIZES, Normalised
from tests.tasks import EQUAL, Fresh, Notes, StopAfter, make_settings, make_task, model_of

HERE = "tests.driver.test_aggregation"
WATCH = {"channel": {"tests.driver.test_channel:Watch": {}}}
MEDIAN = {"aggregation.name": "median"}


class Shape(raysim.Aggregation):
    def combine(self, updates: raysim.Updates) -> torch.Tensor:
        return updates.differences


class NoNumber(raysim.Aggregation):
    def combine(self, updates: raysim.Updates) -> torch.Tensor:
        return updates.differences[0] / 0


class Failing(raysim.Aggregation):
    def combine(self, updates: raysim.Updates) -> torch.Tensor:
        raise KeyError("nothing")


class Largest(raysim.Aggregation):
    """The update of the client with most samples."""

    def combine(self, updates: raysim.Updates) -> torch.Tensor:
        return updates.differences[int(updates.samples.argmax())]


class WordColumns(Largest):
    """A word for each client."""

    def decide(self, arrived: Any) -> Any:
        return raysim.AggregationPlan(columns={"cut": np.array(["no"] * len(arrived.clients))})


class WordFactor(Largest):
    """A word in place of a factor."""

    def factor(self, arrived: int, expected: float) -> Any:
        return "twice"


class WordBound(Largest):
    """A word in place of a bound."""

    def tolerates(self, arrived: int) -> Any:
        return "few"


class Taking(raysim.Aggregation):
    """Reports a number under a name of the engine."""

    def decide(self, arrived: raysim.ArrivedUpdates) -> raysim.AggregationPlan:
        return raysim.AggregationPlan(
            torch.ones(len(arrived.clients)), columns={"train_loss": arrived.shares}
        )


class Alone(raysim.Aggregation):
    """Has weights for one client."""

    def decide(self, arrived: raysim.ArrivedUpdates) -> raysim.AggregationPlan:
        return raysim.AggregationPlan(torch.ones(1))


class Wide(SmallNet):
    """More than one block of coordinates."""

    def __init__(self) -> None:
        super().__init__(width=updates.BLOCK // 12)


class Broken(SmallNet):
    """Fails on the samples of client 3, which are 17."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) in (17, 1):
            raise ValueError("broken")
        return super().forward(x)


class Cleared(raysim.Listener):
    """Sees that nothing is left of an interrupted pass as a run goes on."""

    def started(self, run: raysim.Started) -> None:
        assert not (run.path / "updates").exists()


def run(path, model=SmallNet, **more) -> raysim.Result:
    return test_channel.run(path, model, **more)


def median_of(group: str, name: str) -> Any:
    return np.median([sums[group][name] for _, sums, _ in SEEN], axis=0)


@pytest.mark.parametrize("fraction", [0.5, 0.7])
@pytest.mark.parametrize("model", [SmallNet, Wide])
def test_the_median_is_numpy_s(tmp_path, fraction, model):
    """Of three and of four clients, in one block and in two."""
    result = run(tmp_path, model, rounds=1, fraction=fraction, **MEDIAN, **WATCH)
    assert len(SEEN) == round(6 * fraction)
    for name, tensor in result.params.items():
        expected = SEEN[0][2][name].astype(np.float64) + median_of("model", name)
        np.testing.assert_array_equal(tensor.numpy(), expected.astype(np.float32))
    assert not (tmp_path / "updates").exists()


def test_all_changes_of_a_method_are_aggregated(tmp_path):
    """SCAFFOLD's c moves by m/K of the median of its changes."""
    result = run(tmp_path, rounds=1, **{"method.name": "scaffold"}, **MEDIAN, **WATCH)
    c = {name: len(SEEN) / 6 * median_of("c", name) for name in SEEN[0][1]["c"]}
    norm = np.sqrt(sum((each**2).sum() for each in c.values()))
    assert result.metrics["c_norm"][0].as_py() == pytest.approx(norm, rel=1e-6)


def test_what_is_no_difference_has_its_mean(tmp_path):
    """FedNova's tau; BatchNorm's counter takes the maximum; bytes are those of the mean's run."""
    own = {"method.name": "fednova", "rounds": 1, "local.epochs": 2}
    result = run(tmp_path / "median", Normalised, **own, **MEDIAN, **WATCH)
    steps = np.array([2 * -(-SIZES[client] // 8) for client, _, _ in SEEN])
    weights = np.array([SIZES[client] for client, _, _ in SEEN])
    tau = weights @ steps / weights.sum()
    for name in SEEN[0][1]["d"]:
        expected = SEEN[0][2][name] - tau * median_of("d", name)
        np.testing.assert_allclose(result.params[name].numpy(), expected, rtol=1e-5, atol=1e-6)
    mean = run(tmp_path / "mean", Normalised, **own)
    counter = "hidden.1.num_batches_tracked"
    assert torch.equal(result.params[counter], mean.params[counter])
    for name in ("bytes_up", "bytes_down", "train_loss"):
        assert result.metrics[name].to_pylist() == mean.metrics[name].to_pylist()


def test_aggregations_know_the_samples_of_the_clients(tmp_path):
    result = run(tmp_path, rounds=1, **{"aggregation.name": f"{HERE}:Largest"}, **WATCH)
    largest = max(SEEN, key=lambda seen: SIZES[seen[0]])
    for name, tensor in result.params.items():
        expected = SEEN[0][2][name].astype(np.float64) + largest[1]["model"][name]
        assert np.array_equal(tensor.numpy(), expected.astype(np.float32))


def test_clients_that_are_dropped_have_no_part_in_it(tmp_path):
    notes = Notes()
    more = {"on_client_error": "drop", "fraction": 1.0, "local.batch_size": "full", **MEDIAN}
    settings = make_settings(tmp_path / "run", rounds=1, **more, **WATCH)
    result = raysim.run(settings, make_task(SIZES, Broken), Fresh(SEEN, to=notes))
    assert "client 3 was dropped" in notes.of_clients[0]
    last = {client: (sums, start) for client, sums, start in SEEN}  # who was tried again is twice
    assert {*last} == {0, 1, 2, 4, 5}
    for name, tensor in result.params.items():
        moved = np.median([sums["model"][name] for sums, _ in last.values()], axis=0)
        expected = SEEN[0][2][name].astype(np.float64) + moved
        assert np.array_equal(tensor.numpy(), expected.astype(np.float32))


def vectors(seen: Any) -> Any:
    """Return the updates of clients, by client, as rows, and the model from which they moved."""
    seen = sorted(seen, key=lambda one: one[0])
    rows = [
        np.concatenate([sums["model"][n].ravel() for n in sorted(start)]) for _, sums, start in seen
    ]
    start = seen[0][2]
    return np.array(rows), np.concatenate([start[n].ravel() for n in sorted(start)])


def flat(params: Any) -> Any:
    return np.concatenate([params[name].numpy().ravel() for name in sorted(params)])


def shares_of(clients: Any) -> Any:
    sizes = np.array([SIZES[client] for client in clients])
    return sizes / sizes.sum()


def norm_bound(rows: Any, shares: Any, norm: float) -> Any:
    return shares * np.minimum(1, norm / np.linalg.norm(rows, axis=1)) @ rows


IN_RUNS: dict[str, tuple[dict[str, Any], Any]] = {
    "krum": ({"aggregation.byzantine": 0}, lambda rows, p: multi_krum(rows, 0, 1)),
    "multi_krum": (
        {"aggregation.byzantine": 0, "aggregation.chosen": 2},
        lambda rows, p: multi_krum(rows, 0, 2),
    ),
    "geometric_median": (
        {"aggregation.iterations": 6},
        lambda rows, p: geometric_median(rows, p, p @ rows, 1e-5, 6, 1e-6),
    ),
    "norm_bound": ({"aggregation.norm": 0.2}, lambda rows, p: norm_bound(rows, p, 0.2)),
}


@pytest.mark.parametrize("name", IN_RUNS)
def test_aggregations_of_whole_updates_are_numpy_s(tmp_path, name):
    """Of four of six unequal clients, in two blocks; the weights are in the tables."""
    fields, oracle = IN_RUNS[name]
    own = {"aggregation.name": name, "rounds": 1, "fraction": 0.7, **fields}
    result = run(tmp_path, Wide, **own, **WATCH)
    clients = sorted(client for client, _, _ in SEEN)
    rows, start = vectors(SEEN)
    expected = start + oracle(rows, shares_of(clients))
    np.testing.assert_allclose(flat(result.params), expected, rtol=1e-6, atol=1e-7)
    table = pq.read_table(tmp_path / "clients.parquet").to_pydict()
    assert table["client"] == clients
    weights = np.array(table["aggregation_weight"])
    np.testing.assert_allclose(start + weights @ rows, expected, rtol=1e-6, atol=1e-7)
    assert result.metrics["aggregation_cut"].to_pylist() == [(weights == 0).sum()]


def test_the_last_aggregate_is_that_of_the_same_pass(tmp_path):
    """Centred clipping, around the aggregate of the round before."""
    own = {"aggregation.name": "centred_clipping", "aggregation.tau": 0.3, "fraction": 0.5}
    result = run(tmp_path, Wide, rounds=3, **own, **WATCH, **{"local.epochs": 2})
    v, start = np.zeros(1), None
    for at in range(0, 9, 3):
        rows, start = vectors(SEEN[at : at + 3])
        v = centred(rows, v, 0.3, 1)
    np.testing.assert_allclose(flat(result.params), start + v, rtol=1e-6, atol=1e-6)
    assert result.metrics["clipped_clients"].to_pylist() == [3, 3, 3]


def test_the_server_trains_on_samples_that_clients_lack(tmp_path):
    """One step on all root samples is a gradient, by autograd; FLTrust weighs clients by it."""
    whole = {"local.batch_size": "full", "local.epochs": 1, "local.lr": 0.3, "fraction": 0.7}
    own = {"aggregation.name": "fltrust", "aggregation.root": 30, "seed": 3, **whole}
    result = run(tmp_path, Wide, rounds=1, **own, **WATCH)
    task = make_task(SIZES, Wide)
    numbers = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    everyone = participants_of(len(SIZES), 0, 3)
    kept, root = without_root(ListedIndices.of(numbers), 30, 3, everyone)
    x, y = (
        torch.from_numpy(np.concatenate(part))[root] for part in zip(*task.clients, strict=True)
    )
    rows, start = vectors(SEEN)
    model = Wide()
    model.load_state_dict({n: torch.from_numpy(of.copy()) for n, of in SEEN[0][2].items()})
    loss = torch.nn.functional.cross_entropy(model(x), y)
    named, names = dict(model.named_parameters()), [*SEEN[0][2]]
    found = torch.autograd.grad(loss, [named[name] for name in names])
    gradients = dict(zip(names, found, strict=True))
    expected = start + fltrust(rows, -0.3 * flat(gradients))
    np.testing.assert_allclose(flat(result.params), expected, rtol=1e-5, atol=1e-6)
    table = pq.read_table(tmp_path / "clients.parquet").to_pydict()
    assert table["samples"] == kept.sizes[table["client"]].tolist()
    assert sum(kept.sizes) == sum(SIZES) - 30
    assert result.metrics["root_train_loss"].to_pylist() == [pytest.approx(loss.item(), rel=1e-5)]
    mean = run(tmp_path / "mean", Wide, rounds=1, **whole)
    for name in ("bytes_up", "bytes_down", "clients"):
        assert result.metrics[name].to_pylist() == mean.metrics[name].to_pylist()


def test_the_server_starts_from_the_model_where_clients_start_from_what_they_learn(tmp_path):
    """FedALA's first step on all root samples is FedAvg's."""
    own = {"aggregation.name": "fltrust", "aggregation.root": 30, "local.batch_size": "full"}
    more = {"rounds": 1, "local.epochs": 1}
    runs = [run(tmp_path / m, **own, **more, **{"method.name": m}) for m in ("fedala", "fedavg")]
    first, other = (each.metrics["root_train_loss"].to_pylist() for each in runs)
    assert first == other


def test_root_samples_are_none_of_new_clients_and_in_no_set_of_a_client(tmp_path):
    """Of what a client has, neither training samples, nor held-out ones, nor its own test."""
    own = {"evaluation.new_clients": 0.5, "evaluation.local_test": 0.3, "evaluation.holdout": 0.2}
    fltrust = {"aggregation.name": "fltrust", "aggregation.root": 50}
    settings = make_settings(tmp_path, clients=6, **own, **fltrust)
    numbers = np.split(np.arange(240), 6)
    task = from_task(make_task(EQUAL))
    federation = task.with_root(
        settings.aggregation.root_samples, settings.seed, settings.participants
    ).with_local_test(settings)
    new = np.concatenate([numbers[client] for client in settings.participants.new])
    own_tests = federation.local_test
    assert own_tests and len(federation.root) == 50
    held = [federation.client_indices[k] for k in range(6)]
    held += [own_tests.indices[k] for k in range(6)]
    assert not np.isin(federation.root, np.concatenate([new, *held])).any()
    assert {*np.concatenate([federation.root, *held])} == {*range(240)}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"aggregation.root": 302}, r"aggregation\.root=302: must be below the 302 samples"),
        ({"aggregation.root": 299}, r"aggregation\.root=299: leaves client \d no samples"),
        ({"method.name": "scaffold"}, "whose clients send more than a model, or no model"),
    ],
)
def test_root_samples_that_cannot_be_had_are_refused(tmp_path, own, message):
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", **{"aggregation.name": "fltrust", "aggregation.root": 9, **own})
    assert not (tmp_path / "run").exists()


def test_the_server_cannot_train_where_clients_send_without_training(tmp_path):
    """MIFL's clients train in one pass, and those that are kept send in the next one."""
    own = {"aggregation.name": "fltrust", "aggregation.root": 9, "method.name": "mifl"}
    with pytest.raises(raysim.SettingsError, match="send what they have trained in an earlier pa"):
        run(tmp_path, fraction=1.0, **own)


def test_the_server_of_fltrust_has_time_for_all_epochs(tmp_path):
    """Of its clients the first is as slow as all others, and ends one of three epochs."""
    own = {"aggregation.name": "fltrust", "aggregation.root": 30, "local.epochs": 3, "rounds": 1}
    rows = [f"{client},1e6,1e18,1e18,0" for client in range(len(SIZES))]
    (tmp_path / "devices.csv").write_text("\n".join(["client,speed,up,down,latency", *rows]))
    table = {"clock.name": "devices", "clock.table": str(tmp_path / "devices.csv")}
    whole = run(tmp_path / "whole", **own, **table)
    found = pq.read_table(tmp_path / "whole/clients.parquet").to_pydict()["virtual_seconds"]
    cut = {"clock.policy": "partial", "clock.deadline": min(found) / 2}
    partial = run(tmp_path / "cut", **own, **table, **cut)
    steps = [
        pq.read_table(tmp_path / f"{name}/clients.parquet").to_pydict()["steps"]
        for name in ("whole", "cut")
    ]
    assert steps[0] != steps[1]
    losses = [each.metrics["root_train_loss"].to_pylist() for each in (whole, partial)]
    assert losses[0] == losses[1]


class WholeNumbers(raysim.Aggregation):
    """Sum of signs, as whole numbers."""

    def combine(self, updates: raysim.Updates) -> torch.Tensor:
        return updates.differences.sign().long().sum(dim=0)


def test_an_aggregate_of_whole_numbers_is_refused(tmp_path):
    name = f"{__name__}:WholeNumbers"
    with pytest.raises(raysim.SettingsError, match=r"combine returned tensor.*of real numbers"):
        run(tmp_path / "run", **{"aggregation.name": name})
    assert not (tmp_path / "run").exists()


def test_too_few_updates_that_arrive_stop_the_run(tmp_path):
    """Five of six clients are enough for Krum, unless one of them is dropped."""
    own = {"aggregation.name": "krum", "fraction": 0.8, "local.batch_size": "full"}
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path, Broken, on_client_error="drop", rounds=9, **own)
    said = "aggregation.byzantine=1: krum needs at least 5 updates in a round, 2f + 3; there are 4"
    assert re.match(rf"round \d: {re.escape(said)}", str(caught.value))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"name": "bulyan"}, "byzantine=1: bulyan needs at least 7 updates in a round, 4f + 3"),
        ({"name": "trimmed_mean", "byzantine": 3}, "byzantine=3: trimmed_mean needs at least 7"),
        ({"name": "trimmed_mean", "trim": 3}, "trim=3: trimmed_mean needs at least 7"),
        ({"name": "multi_krum", "chosen": 7}, "chosen=7: must be at most the updates of a round"),
    ],
)
def test_bounds_are_checked_before_anything_starts(tmp_path, own, message):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", fraction=1.0, aggregation=own)
    assert str(caught.value).startswith(f"aggregation.{message}")
    assert "there are 6" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_number_with_the_name_of_a_column_is_refused(tmp_path):
    with pytest.raises(raysim.SettingsError, match="'train_loss' has the name of a column"):
        run(tmp_path, **{"aggregation.name": f"{HERE}:Taking"})


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize(
    "own",
    [
        {"method.name": "scaffold", "aggregation.name": "median"},
        {"method.name": "scaffold", "aggregation.name": "centred_clipping"},
        {"aggregation.name": "fltrust", "aggregation.root": 9},
    ],
)
def test_the_same_bits_on_actors_and_after_an_interruption(tmp_path, own):
    run(tmp_path / "inline", Wide, **own)
    run(tmp_path / "actors", Wide, **own, **{"engine.backend": "ray", "engine.actors": 2})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **own), make_task(SIZES, Wide), StopAfter(2))
    left = tmp_path / "cut/updates/round_000002_pass_0"
    left.mkdir(parents=True)  # as if killed in the middle of a pass
    (left / "0").write_bytes(b"half")
    raysim.resume(tmp_path / "cut", make_task(SIZES, Wide), Cleared())
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "actors")
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "cut")
    assert not (tmp_path / "cut/updates").exists()


@pytest.mark.parametrize(("selection", "divisor"), [("uniform", 2), ("poisson", 2.4)])
def test_a_fixed_divisor_is_the_expected_number_of_clients(tmp_path, selection, divisor):
    """w + sum d / M, whatever the samples, however many took part; of six clients, C*K is 2.4."""
    own = {"aggregation.weighting": "fixed", "selection.name": selection, "fraction": 0.4}
    result = run(tmp_path, rounds=1, **own, **WATCH)
    assert len(SEEN) == divisor or selection == "poisson"
    for name, tensor in result.params.items():
        moved = sum(sums["model"][name] for _, sums, _ in SEEN) / divisor
        expected = SEEN[0][2][name].astype(np.float64) + moved
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_fixed_divisor_is_for_passes_in_which_clients_train(tmp_path):
    """MIFL's second pass averages the models that are kept, all alike: nothing is shrunk."""
    own = {"method.name": "mifl", "rounds": 1, "fraction": 1.0, "method.prune": 0.2}
    fixed = run(tmp_path / "fixed", **own, **{"aggregation.weighting": "fixed"})
    plain = run(tmp_path / "plain", **own)
    for name, tensor in plain.params.items():
        assert torch.equal(tensor, fixed.params[name])


REFUSED = {
    f"{HERE}:Shape": "combine returned tensor",
    f"{HERE}:NoNumber": "combine returned a value that is not finite",
    f"{HERE}:Failing": "combine failed: KeyError",
    f"{HERE}:Alone": "decide returned AggregationPlan",
    f"{HERE}:WordColumns": "decide returned AggregationPlan",
    f"{HERE}:WordFactor": "factor returned 'twice'; must return a finite number",
    f"{HERE}:WordBound": "tolerates returned 'few'; must return a number of clients, or None",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_aggregation_is_refused_before_anything_starts(tmp_path, name):
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", **{"aggregation.name": name})
    assert str(caught.value).startswith(f"aggregation.name={name}: {REFUSED[name]}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fedma", "whose clients send 'layer' without a base"),
        (
            "fsvrg",
            "whose passes are over more clients than the cohort; choose agg",
        ),
    ],
)
def test_methods_whose_updates_it_cannot_see_are_refused(tmp_path, method, message):
    """Before anything starts, but for rows, which are seen as clients send them; nothing stays."""
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", **{"method.name": method}, **MEDIAN)
    begin = f"aggregation.name=median: does not go with method.name={method}, "
    assert str(caught.value).startswith(begin + message)
    assert not (tmp_path / "run").exists()


CHAINED = {"method.name": "chain", "method.methods": {"qffl": {}, "fedprox": {}}}
GAUSSIAN = {"channel.gaussian.noise": 1.0, "aggregation.weighting": "fixed"}


@pytest.mark.parametrize("method", ["powersgd", "qffl", "afl", "drfa", "term", "chain"])
@pytest.mark.parametrize("other", ["median", "norm_bound", "gaussian"])
def test_what_the_mean_alone_makes_a_step_of_has_no_other_aggregation_and_no_privacy(
    tmp_path, method, other
):
    """Weighted changes and codes are no updates, and tell the server more than their mean."""
    more = GAUSSIAN if other == "gaussian" else {"aggregation.name": other}
    own = CHAINED if method == "chain" else {"method.name": method, "fraction": 1.0}
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", **own, **more)
    assert not (tmp_path / "run").exists()
    if other == "gaussian":  # what is read of them is withheld, what they send is not accounted
        assert str(caught.value).startswith("channel.gaussian: does not go with method.name=")
        return
    begin = f"aggregation.name={other}: does not go with method.name={method}, whose clients send "
    assert str(caught.value).startswith(begin)


@pytest.mark.parametrize("fault", ["damaged", "gone"])
def test_an_update_that_is_not_as_it_was_written_stops_the_run(tmp_path, monkeypatch, fault):
    write = updates.UpdateFiles.write

    def damaging(files: Any, place: Any, values: Any) -> Any:
        digests = write(files, place, values)
        path = next(files.folder.glob(f"*/{place.client}"))
        path.write_bytes(bytes(8)) if fault == "damaged" else path.unlink()
        return digests

    monkeypatch.setattr(updates.UpdateFiles, "write", damaging)
    with pytest.raises(raysim.RunError) as caught:
        run(tmp_path, **MEDIAN)
    said = {"damaged": "this update is damaged", "gone": "storage that all nodes share"}[fault]
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_value_that_is_not_finite_is_the_client_s(tmp_path):
    with pytest.raises(raysim.RunError, match=r"client \d: .*update is not finite \(tensor model/"):
        run(tmp_path, **MEDIAN, **{"local.lr": 1e30})


DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float16)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 5)), min_size=1, max_size=6))
def test_flat_values_are_tensors_again(parts):
    """In float32 where that holds all dtypes, else in float64."""
    tensors = {
        str(n): torch.randn(size, 2, dtype=torch.complex128 if dtype.is_complex else None).to(dtype)
        for n, (dtype, size) in enumerate(parts)
    }
    layout = Layout.of(tensors)
    values = flat_values(tensors, layout)
    wide = any(dtype == torch.float64 for dtype, _ in parts)
    assert values.dtype == (np.float64 if wide else np.float32)
    found = of_flat_values(values, layout)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_a_stage_s_change_is_aggregated(tmp_path):
    """What a client sends behind the stages, in the dtype in which it is sent."""
    stages = {"tests.driver.test_channel:Double": {}, **WATCH["channel"]}
    result = run(tmp_path, rounds=1, channel=stages, **MEDIAN)
    for name, tensor in result.params.items():
        start = SEEN[0][2][name].astype(np.float64)
        sent = [(start + sums["model"][name]).astype(np.float32) for _, sums, _ in SEEN]
        expected = np.median(np.array(sent, dtype=np.float64), axis=0).astype(np.float32)
        np.testing.assert_array_max_ulp(tensor.numpy(), expected, 1)
