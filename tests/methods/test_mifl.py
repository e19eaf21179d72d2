"""MIFL against NumPy: mixed loss, MI, pruning; its ablations; what travels and what is kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

import raysim
from raysim.api.rules import Batch, LocalValues, Outputs, View
from raysim.methods.mifl import Mifl, mixing_weight, mutual_information, pruned_at_each_end
from tests.methods import common
from tests.methods.reference import Reference, T
from tests.methods.test_oracle import assert_close, start_of
from tests.tasks import UNEQUAL, make_settings, make_task

NAME = "mifl"
OBJECTIVES = ("penalty", "mixture", "residual")
SIZES = (3, 40, 17, 8, 25)
LR, EPOCHS, ROUNDS = 0.5, 5, 2
MODEL_BYTES = 4 * (16 * 12 + 16 + 3 * 16 + 3)


def network(w, x):
    hidden = np.maximum(x @ w[0].T + w[1], 0)
    return hidden, hidden @ w[2].T + w[3]


def softmax(logits):
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def cross_entropy(logits, y):
    return -np.log(softmax(logits)[np.arange(len(y)), y]).mean()


def mixing(l_g, l_k):
    """lam with the sample deviation of two numbers, worked out by its definition."""
    mean = (l_g + l_k) / 2
    c_v = np.sqrt((l_g - mean) ** 2 + (l_k - mean) ** 2) / (l_g + l_k)
    return 0.5 if l_g == l_k else c_v if c_v <= 0.5 else 1 - c_v


def at_the_logits(objective, logits, own, y, lam=None):
    """N times the objective's derivative at the logits; both are divided by T."""
    p_g, p_k, onehot = softmax(logits), softmax(own), np.eye(3)[y]
    if lam is None:
        lam = mixing(cross_entropy(logits, y), cross_entropy(own, y))
    if objective == "mixture":
        return (1 - lam) * (p_g - onehot)
    if objective == "residual":
        return (1 - lam) * (p_g - onehot) + lam * (p_k - onehot)
    # d/dz of |p - p_k|^2 / 2 is J (p - p_k), J = diag(p) - p p^T the softmax's derivative
    apart = p_g - p_k
    pulled = p_g * (apart - (p_g * apart).sum(1, keepdims=True))
    return p_g - onehot - lam * pulled


def slope(objective, own, temperature, lam=None):
    """The gradient of a client's objective; `own` is F_k or None, as `lam` if it is adaptive."""

    def gradient(w, x, y):
        logits = network(w, x)[1]
        at_logits = softmax(logits / temperature) - np.eye(3)[y]
        if own is not None:
            own_logits = network(own, x)[1] / temperature
            at_logits = at_the_logits(objective, logits / temperature, own_logits, y, lam)
        return common.pull_back(w, x, d_logits=at_logits / (len(y) * temperature))

    return gradient


def local_training(w, own, x, y, objective, temperature):
    """Full-batch SGD."""
    for _ in range(EPOCHS):
        g = slope(objective, own, temperature)(w, x, y)
        w = [p - LR * d for p, d in zip(w, g, strict=True)]
    return w


def information(a, b, x):
    rho = np.corrcoef(network(a, x)[1].ravel(), network(b, x)[1].ravel())[0, 1]
    return -0.5 * np.log(1 - rho**2)


def oracle(
    w,
    clients,
    temperature=1.0,
    update=True,
    reference="global",
    drop=1,
    objective="penalty",
):
    """Return the final weights, and per round the MI and the clients kept."""
    own = [None] * len(clients)
    history = []
    for _ in range(ROUNDS):
        trained, mi = [], []
        for k, (x, y) in enumerate(clients):
            local = local_training(w, own[k] if update else None, x, y, objective, temperature)
            against = w if reference == "global" or own[k] is None else own[k]
            mi.append(information(local, against, x))
            trained.append(local)
        own = trained
        kept = sorted(np.lexsort((np.arange(len(mi)), mi))[drop : len(mi) - drop])
        total = sum(len(clients[k][1]) for k in kept)
        w = [sum(len(clients[k][1]) / total * trained[k][i] for k in kept) for i in range(4)]
        history.append((mi, kept))
    return w, history


def run(tmp_path, sizes=SIZES, **overrides):
    task = make_task(sizes)
    settings = make_settings(
        tmp_path / "run",
        **{
            "method.name": NAME,
            "rounds": ROUNDS,
            "fraction": 1.0,
            "local.epochs": EPOCHS,
            "local.batch_size": "full",
            "local.lr": LR,
            **overrides,
        },
    )
    clients = [(x.astype(np.float64), y) for x, y in task.clients]
    return raysim.run(settings, task), start_of(task), clients


def client_rows(result, number, index):
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    return [r for r in rows if r["round"] == number and r["pass"] == index]


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        ({}, {}),
        ({"local.temperature": 0.5}, {"temperature": 0.5}),
        ({"local.temperature": 2.0}, {"temperature": 2.0}),
        ({"method.objective": "mixture"}, {"objective": "mixture"}),
        ({"method.objective": "residual"}, {"objective": "residual"}),
        (
            {"method.objective": "residual", "local.temperature": 2.0},
            {"objective": "residual", "temperature": 2.0},
        ),
        ({"method.mi_reference": "previous"}, {"reference": "previous"}),
        ({"method.update": False}, {"update": False}),
        ({"method.aggregation": False}, {"drop": 0}),
        ({"method.prune": 0.3}, {"drop": 2}),
        ({"method.prune": 0}, {"drop": 0}),
    ],
)
def test_two_rounds_equal_numpy(tmp_path, overrides, arguments):
    result, w, clients = run(tmp_path, **overrides)
    expected, history = oracle(w, clients, **arguments)
    assert_close(result.params, expected)
    for number, (mi, kept) in enumerate(history, 1):
        assert [r["mi"] for r in client_rows(result, number, 0)] == pytest.approx(mi, rel=1e-4)
        if overrides.get("method.aggregation", True):
            assert [r["client"] for r in client_rows(result, number, 1)] == kept


def test_the_objectives_differ(tmp_path):
    """The oracle above would agree with itself if all objectives were the plain loss."""
    _, w, clients = run(tmp_path)
    results = [oracle(w, clients, objective=name)[0] for name in OBJECTIVES]
    results.append(oracle(w, clients, update=False)[0])
    for one, other in combinations(results, 2):
        assert max(np.abs(a - b).max() for a, b in zip(one, other, strict=True)) > 1e-4


@pytest.mark.parametrize(
    ("objective", "lam", "delivery"),
    [
        *((objective, None, "later") for objective in OBJECTIVES),
        *((objective, 0.3, "later") for objective in OBJECTIVES),
        ("penalty", 0.9, "own"),
        ("mixture", None, "own"),
    ],
)
def test_sampled_clients_of_unequal_steps(tmp_path, objective, lam, delivery):
    """A client's own model is that of its last participation, whether it was averaged or not.

    With delivery=own, that of a dropped client is the model of its last round.
    """
    strength = {} if lam is None else {"method.lam": lam}
    method = {"method.name": NAME, "method.objective": objective, "method.delivery": delivery}
    reference = Reference(tmp_path, method | strength)
    w, own, dropped = reference.start, {}, []
    for number, cohort in enumerate(reference.cohorts):
        trained = {}
        for k in cohort:
            trained[k] = reference.train(w, number, k, slope(objective, own.get(k), T, lam))
        mi = {k: information(trained[k], w, reference.clients[k][0]) for k in cohort}
        (kept,) = sorted(cohort, key=lambda k: (mi[k], k))[1:-1]
        dropped.append({*cohort} - {kept})
        w = trained[kept]
        own |= trained
        if delivery == "own":
            own |= dict.fromkeys(dropped[-1], w)
    assert any(
        {*cohort} & gone for cohort, gone in zip(reference.cohorts[1:], dropped, strict=False)
    )
    assert_close(reference.result.params, w)


def test_values_of_lam_differ():
    """The oracle above would not see lam if the mixing did not depend on it."""
    logits, own = np.array([[1.0, 0.0, -1.0]]), np.array([[0.0, 0.5, 0.2]])
    for objective in OBJECTIVES:
        found = [at_the_logits(objective, logits, own, [1], lam) for lam in (None, 0.3, 0.9)]
        for one, other in combinations(found, 2):
            assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_lam_of_0_is_the_update_of_fedavg_bit_for_bit(tmp_path, objective):
    method = {"method.name": NAME, "method.objective": objective, "method.aggregation": False}
    common.assert_equals_fedavg(tmp_path, method | {"method.lam": 0})


def test_one_logit_is_two_classes():
    """The distance of (1-p, p) vectors is twice the squared difference of sigmoids."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    frozen = 0.3 * x - 0.2
    view = View({}, [], {}, {}, {"model": {}}, {}, None, None, None)
    view = replace(
        view,
        values=LocalValues(2.0),
        at=lambda tensors, given: Outputs(None, None, 2.0 * frozen),
    )
    found = Mifl().rules().criterion(view, Outputs(None, None, x), Batch(x, y))
    loss_g, loss_k = (F.binary_cross_entropy_with_logits(z[:, 0], y.float()) for z in (x, frozen))
    lam = mixing(loss_g.item(), loss_k.item())
    distance = 2 * (x.sigmoid() - frozen.sigmoid()).square().mean()
    assert found.item() == pytest.approx((loss_g - lam / 2 * distance).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        ({}, True),
        ({"method.update": False}, False),
        ({"method.objective": "mixture"}, False),
        ({"method.objective": "residual"}, False),
    ],
)
def test_probabilities_need_a_classification(tmp_path, overrides, refused):
    task = make_task((9, 9, 9, 9))
    scoring = raysim.Scoring(lambda outputs, y: (outputs[:, 0] - y).square())
    task = raysim.Task(task.model, task.clients, task.test, scoring)
    settings = make_settings(tmp_path, **{"method.name": NAME, "rounds": 1, **overrides})
    if not refused:
        raysim.run(settings, task)
        return
    with pytest.raises(raysim.SettingsError, match=r"method\.objective=penalty.*classification"):
        raysim.run(settings, task)


@pytest.mark.parametrize(
    ("l_g", "l_k", "lam"),
    [
        *((1.0, 1.0, 0.5), (0.0, 0.0, 0.5)),
        (3.0, 1.0, 2 / 4 / np.sqrt(2)),
        (0.2, 0.6, 0.4 / 0.8 / np.sqrt(2)),
        (2.0, 0.0, 1 - 1 / np.sqrt(2)),
        (0.1, 1.0, 1 - 0.9 / 1.1 / np.sqrt(2)),
    ],
)
def test_mixing_weight(l_g, l_k, lam):
    losses = torch.tensor(l_g), torch.tensor(l_k)
    assert mixing_weight(*losses).item() == pytest.approx(lam)
    many = torch.func.vmap(mixing_weight)(*(loss.repeat(3) for loss in losses))
    assert many.tolist() == pytest.approx([lam] * 3)


def test_mutual_information_is_that_of_the_correlation():
    generator = np.random.default_rng(0)
    a = generator.normal(size=(50, 3)) + 2
    b = 0.3 * a + generator.normal(size=(50, 3))
    batch = Batch(torch.zeros(50, 1), torch.zeros(50))
    rho = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    measured = mutual_information(torch.from_numpy(a), torch.from_numpy(b), batch).item()
    assert measured == pytest.approx(-0.5 * np.log(1 - rho**2), rel=1e-12)
    negative = mutual_information(torch.from_numpy(-a), torch.from_numpy(b), batch).item()
    assert negative == pytest.approx(measured, rel=1e-12)


def test_mutual_information_is_finite_at_its_limits():
    batch = Batch(torch.zeros(4, 1), torch.zeros(4))
    a = torch.arange(8.0).view(4, 2)
    largest = -0.5 * np.log(1 - (1 - 1e-7) ** 2)
    assert mutual_information(a, a, batch).item() == pytest.approx(largest, rel=1e-6)
    assert mutual_information(a, torch.ones(4, 2), batch).item() == 0
    single = Batch(torch.zeros(1, 1), torch.zeros(1))
    assert mutual_information(torch.ones(1, 1), torch.ones(1, 1), single).item() == 0


@pytest.mark.parametrize(
    ("prune", "clients", "pruned"),
    [
        *[(0.025, m, n) for m, n in ((1, 0), (2, 0), (3, 1), (10, 1), (40, 1), (41, 2), (100, 3))],
        *[(0.49, m, n) for m, n in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (100, 49), (101, 50))],
        *((0.07, 100, 7), (1e-12, 3, 1), (1e-12, 2, 0), (0, 3, 0), (0, 100, 0)),
    ],
)
def test_pruned_at_each_end(prune, clients, pruned):
    assert pruned_at_each_end(prune, clients) == pruned
    assert clients - 2 * pruned >= 1


def test_ties_are_broken_by_client_id(tmp_path):
    """Clients with the same samples have the same MI: the lowest id counts as the lowest."""
    x, y = make_task((20,)).clients[0]
    task = raysim.Task(make_task((1,)).model, [(x, y)] * 5, make_task((1,)).test)
    overrides = {"method.name": NAME, "fraction": 1.0, "rounds": 1, "local.batch_size": "full"}
    result = raysim.run(make_settings(tmp_path, **overrides), task)
    assert len({row["mi"] for row in client_rows(result, 1, 0)}) == 1
    assert [row["client"] for row in client_rows(result, 1, 1)] == [1, 2, 3]


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_clients_all_stay(tmp_path, clients):
    result, w, data = run(tmp_path, SIZES[:clients])
    expected, _ = oracle(w, data, drop=0)
    assert_close(result.params, expected)
    assert result.metrics["pruned_low"].to_pylist() == [0, 0]


def test_without_both_halves_it_is_fedavg_bit_for_bit(tmp_path):
    off = {"method.name": NAME, "method.update": False, "method.aggregation": False}
    common.assert_equals_fedavg(tmp_path, off)
    assert not list((tmp_path / "other/clients").glob("*/*/*"))
    tables = (tmp_path / name / "metrics.parquet" for name in ("plain", "other"))
    plain, other = map(pq.read_table, tables)
    for column in ("bytes_up", "bytes_down", "train_loss", "objective"):
        assert plain[column].equals(other[column]), column


def test_the_first_participation_is_fedavg(tmp_path):
    task = make_task(UNEQUAL)
    plain = raysim.run(make_settings(tmp_path / "plain", rounds=1), task)
    first = {"method.name": NAME, "method.aggregation": False, "rounds": 1}
    other = raysim.run(make_settings(tmp_path / "other", **first), task)
    assert all(torch.equal(plain.params[name], other.params[name]) for name in plain.params)


def test_what_travels_and_what_stays(tmp_path):
    """Up: 4 bytes a client, and the models that are kept; down: one model a client."""
    result, _, _ = run(tmp_path)
    assert result.metrics["bytes_up"].to_pylist() == [4 * 5 + 3 * MODEL_BYTES] * 2
    assert result.metrics["bytes_down"].to_pylist() == [5 * MODEL_BYTES] * 2
    assert result.metrics["clients"].to_pylist() == [5, 5]
    assert result.metrics["pruned_high"].to_pylist() == [1, 1]
    sent = [sorted(r["mi"] for r in client_rows(result, number, 0)) for number in (1, 2)]
    assert result.metrics["mi_mean"].to_pylist() == pytest.approx([np.mean(mi) for mi in sent])
    assert result.metrics["mi_low"].to_pylist() == [mi[1] for mi in sent]
    assert result.metrics["mi_high"].to_pylist() == [mi[-2] for mi in sent]


def test_bytes_of_models_that_dropped_clients_send_and_receive(tmp_path):
    """Of three sampled clients one is kept: 12 bytes and its model up, or all three models.

    With a delivery two models more go down at the end of a round, and none at the start of the next
    to those of the two that are sampled again.
    """
    task = make_task(SIZES)
    found = {}
    for collect, delivery in (("kept", "later"), ("all", "global")):
        method = {"method.name": NAME, "method.collect": collect, "method.delivery": delivery}
        settings = {**method, "fraction": 0.6, "rounds": 5}
        found[collect] = raysim.run(make_settings(tmp_path / collect, **settings), task)
    plain, full = found.values()
    for name in plain.params:
        assert torch.equal(plain.params[name], full.params[name])
    assert plain.metrics["bytes_up"].to_pylist() == [4 * 3 + MODEL_BYTES] * 5
    assert full.metrics["bytes_up"].to_pylist() == [4 * 3 + 3 * MODEL_BYTES] * 5
    assert plain.metrics["bytes_down"].to_pylist() == [3 * MODEL_BYTES] * 5
    down, has_it, again = [], set(), []
    for number in range(1, 6):
        cohort, kept, sent, reached = (
            {row["client"] for row in client_rows(full, number, index)} for index in range(4)
        )
        assert sent == reached == cohort - kept and len(sent) == 2
        again.append(len(cohort & has_it))
        down.append((3 - again[-1] + 2) * MODEL_BYTES)
        has_it = reached
    assert full.metrics["bytes_down"].to_pylist() == down
    assert {*again} > {0}


def test_no_delivery_where_none_is_dropped(tmp_path):
    """Of two clients both stay: what was delivered in a round before does not count again."""
    result, _, _ = run(tmp_path, SIZES[:2], **{"method.delivery": "own", "method.collect": "all"})
    assert result.metrics["bytes_down"].to_pylist() == [2 * MODEL_BYTES] * 2
    assert result.metrics["bytes_up"].to_pylist() == [2 * (4 + MODEL_BYTES)] * 2


@pytest.mark.parametrize(
    ("overrides", "lasting"),
    [
        ({}, True),
        ({"method.update": False}, False),
        ({"method.update": False, "method.mi_reference": "previous"}, True),
        ({"method.update": False, "method.aggregation": False}, False),
        ({"method.update": False, "method.delivery": "own", "method.collect": "all"}, False),
    ],
)
def test_a_model_that_no_later_round_reads_is_not_kept(tmp_path, overrides, lasting):
    """Aggregation alone stages the trained models; they go with their round."""
    result, _, _ = run(tmp_path, **overrides)
    left = [path.name for path in (result.run_dir / "clients").rglob("*.safetensors")]
    assert left.count("1_0.safetensors") == (5 if lasting else 0)
    assert lasting or not left


@pytest.mark.parametrize(("kind", "sign"), [("penalty", -1), ("mixture", 1), ("residual", 1)])
def test_the_objective_is_reported(tmp_path, kind, sign):
    """In round 2 the own model, which is where the only client starts, loses more than it does."""
    overrides = {"method.aggregation": False, "method.objective": kind}
    result, _, _ = run(tmp_path, (40,), **overrides)
    loss, objective = (result.metrics[name].to_pylist() for name in ("train_loss", "objective"))
    assert objective[0] == loss[0] and sign * (objective[1] - loss[1]) > 0


def test_clients_of_one_sample_and_of_one_more_than_a_batch(tmp_path):
    overrides = {"method.name": NAME, "fraction": 1.0, "rounds": 3}
    result = raysim.run(make_settings(tmp_path, **overrides), make_task((1, 9, 1, 30)))
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    assert all(np.isfinite(row["mi"]) for row in client_rows(result, 3, 0))


def test_a_model_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(raysim.RaysimError, match=r"client \d.*smaller local\.lr"):
        run(tmp_path, **{"local.lr": 3e38})


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("prune", 0.5, "less than 0.5"),
        ("prune", -0.1, "greater than or equal to 0"),
        ("objective", "eq8", "'penalty', 'mixture' or 'residual'"),
        ("mi_reference", "none", "'global' or 'previous'"),
        ("update", 3, "boolean"),
        ("lam", 1.5, "1"),
        ("lam", "tuned", "adaptive"),
        ("collect", "none", "'kept' or 'all'"),
        ("delivery", True, "'later', 'global' or 'own'"),
    ],
)
def test_bad_settings(tmp_path, setting, value, allowed):
    with pytest.raises(raysim.SettingsError, match=rf"method\.{setting}=.*{allowed}"):
        make_settings(tmp_path, **{"method.name": NAME, f"method.{setting}": value})
