"""Methods of low-rank adapters against NumPy, and the settings that turn one into another.

The network has two adapted layers; clients are unequal, of unequal ranks, and three of five take
part in a round.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api.method import METHODS as METHODS_OF
from raysim.federation.task import from_task
from raysim.numbers.seeds import torch_generator
from raysim.storage.plugins import modules_of
from raysim.testing.tasks import SmallNet
from tests.adapters import ALPHA, RANK, LoraLinear, adapted
from tests.methods.common import assert_refused, newest_states
from tests.methods.reference import SIZES, Reference, T
from tests.methods.test_oracle import gradient
from tests.tasks import UNEQUAL, Notes, make_settings, make_task

LAYERS = ("hidden.0", "hidden.2")
FACTORS = [f"{layer}.lora_{half}.default.weight" for layer in LAYERS for half in "AB"]
HEAD = ["head.weight", "head.bias"]
METHODS = ("feddpa", "fedex_lora", "flexlora", "flora", "hetlora", "rolora")
S = ALPHA / RANK
RANKS = (1, 4, 2)


class TwoLayers(SmallNet):
    def __init__(self):
        super().__init__(width=10)
        self.hidden = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10), nn.ReLU())


MODEL = partial(adapted, TwoLayers)
BASE = [f"{layer}.base_layer.{kind}" for layer in LAYERS for kind in ("weight", "bias")]


def tensors_of(task, names):
    network = from_task(task).network(0)
    return [network.get_parameter(name).detach().double().numpy() for name in names]


def reference_of(tmp_path, overrides, model=MODEL):
    """Return a run, and the gradient of A, B and the head at a scale."""
    given = {"local.lr": 0.5, **overrides}
    first = partial(tensors_of, names=FACTORS + HEAD)
    reference = Reference(tmp_path, given, model=model, first=first)
    reference.base = tensors_of(make_task(SIZES, model), BASE)
    return reference


def slope_of(base, scale):
    def slope(w, x, y):
        a1, b1, a2, b2, *head = w
        first, second = base[0] + scale * b1 @ a1, base[2] + scale * b2 @ a2
        g1, _, g2, _, *of_head = gradient([first, base[1], second, base[3], *head], x, y, T)
        halves = [scale * b1.T @ g1, scale * g1 @ a1.T, scale * b2.T @ g2, scale * g2 @ a2.T]
        return [*halves, *of_head]

    return slope


def at_rank(w, rank, factor=1.0):
    """Return the tensors with zeros beyond a rank, and B times a factor."""
    cut = [t.copy() for t in w]
    for place in (0, 2):
        cut[place][rank:] = 0
        cut[place + 1][:, rank:] = 0
        cut[place + 1] *= factor
    return cut


def products(w):
    return [w[1] @ w[0], w[3] @ w[2]]


def assert_same_model(params, w):
    """The products of A and B, which their signs leave alone, and the head."""
    found = [params[name].double().numpy() for name in FACTORS + HEAD]
    pairs = zip([*products(found), *found[4:]], [*products(w), *w[4:]], strict=True)
    for one, other in pairs:
        assert np.abs(one - other).max() < 1e-5 * max(1, np.abs(other).max())


def flexlora(reference, ranks, scale_at):
    w, s = reference.start, scale_at(RANK)
    for number, cohort in enumerate(reference.cohorts):
        means, heads = [0.0, 0.0], []
        total = sum(reference.sizes[k] for k in cohort)
        for k in cohort:
            scale = scale_at(ranks[k % len(ranks)])
            start = at_rank(w, ranks[k % len(ranks)], s / scale)
            end = reference.train(start, number, k, slope_of(reference.base, scale))
            share = reference.sizes[k] / total
            means = [m + share * scale * ba for m, ba in zip(means, products(end), strict=True)]
            heads.append(end[4:])
        w = []
        for mean in means:
            left, values, right = np.linalg.svd(mean, full_matrices=False)
            w += [right[:RANK], left[:, :RANK] * values[:RANK] / s]
        w += reference.mean(cohort, heads)
    return w


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("way", ["product", "qr"])
@pytest.mark.parametrize("stacked", [0, 3])
def test_flexlora_cuts_the_mean_product(tmp_path, way, stacked, root):
    """Also with the scale alpha by the root of the rank (rsLoRA)."""
    given = {"method.name": "flexlora", "method.way": way, "method.ranks": [*RANKS]}
    given["local.lr"] = 0.3
    model = partial(MODEL, root=root)
    reference = reference_of(tmp_path, {**given, "engine.vectorize": stacked}, model)
    expected = flexlora(reference, RANKS, lambda rank: ALPHA / (rank**0.5 if root else rank))
    assert_same_model(reference.result.params, expected)
    assert np.abs(products(expected)[0]).max() > 0.05


@pytest.mark.parametrize("way", ["product", "qr"])
def test_flexlora_keeps_a_and_b_where_the_mean_product_is_0(tmp_path, way):
    given = {"method.name": "flexlora", "method.way": way, "local.lr": NO_STEP, "rounds": 1}
    task = make_task(SIZES, MODEL)
    params = raysim.run(make_settings(tmp_path / "run", **given), task).params
    for name, first in zip(FACTORS, tensors_of(task, FACTORS), strict=True):
        assert np.array_equal(params[name].double().numpy(), first)


@pytest.mark.parametrize("way", ["product", "qr"])
def test_flexlora_leaves_rows_to_later_clients(tmp_path, way):
    assert_rows_are_left(tmp_path, {"method.name": "flexlora", "method.way": way})


def test_hetlora_leaves_rows_to_later_clients(tmp_path):
    assert_rows_are_left(tmp_path, {"method.name": "hetlora"})


def assert_rows_are_left(tmp_path, method):
    """A round of a client of rank 1, then one of a client of the network's rank."""
    given = {**method, "method.ranks": [1, 4], "selection.name": "round_robin"}
    given |= {"fraction": 0.5, "local.lr": 0.5}
    task, found = make_task((57, 61), MODEL), []
    for rounds in (1, 2):
        settings = make_settings(tmp_path / f"{rounds}", **given, rounds=rounds)
        params = raysim.run(settings, task).params
        pairs = products([params[name].double().numpy() for name in FACTORS])
        found.append([np.linalg.matrix_rank(ba, tol=1e-5) for ba in pairs])
    assert found == [[1, 1], [4, 4]]


NO_STEP = 1e-60
"""A learning rate that is 0 in float32."""
GAMMA, LAM = 0.6, 0.5


def pruned(rank):
    return max(int(GAMMA * rank + 1e-9), 1)


def tails(w, rank):
    """The tail of A and of B in each layer, as views."""
    cut = slice(pruned(rank), rank)
    return [(w[place][cut], w[place + 1][:, cut]) for place in (0, 2)]


def tail_norm(w, rank):
    return sum(np.linalg.norm(a) * np.linalg.norm(b) for a, b in tails(w, rank))


def unit(matrix):
    norm = np.linalg.norm(matrix)
    return matrix / norm if norm else np.zeros_like(matrix)


def hetlora(reference, weights):
    """The last tensors, and the ranks of clients after each round that they took part in."""
    w, ranks, seen = reference.start, {k: RANKS[k % len(RANKS)] for k in range(len(SIZES))}, []
    for number, cohort in enumerate(reference.cohorts):
        ends, norms, most = [], [], max(ranks[k] for k in cohort)
        for k in cohort:
            rank, plain = ranks[k], slope_of(reference.base, S)

            def slope(now, x, y, rank=rank, plain=plain):
                g = plain(now, x, y)
                for (a, b), added in zip(tails(now, rank), tails(g, rank), strict=True):
                    added[0][:] += LAM * np.linalg.norm(b) * unit(a)
                    added[1][:] += LAM * np.linalg.norm(a) * unit(b)
                return g

            start = at_rank(w, rank)
            end = reference.train(start, number, k, slope)
            if tail_norm(end, rank) < tail_norm(start, rank):
                ranks[k] = pruned(rank)
            ends.append(end)
            norms.append(np.sqrt(sum(np.linalg.norm(ba) ** 2 for ba in products(end))))
        before = w
        if weights == "examples":
            w = reference.mean(cohort, ends)
        else:
            shares = np.array(norms) / sum(norms)
            w = [
                sum(s * t for s, t in zip(shares, ts, strict=True))
                for ts in zip(*ends, strict=True)
            ]
        above = [t - cut for t, cut in zip(before, at_rank(before, most), strict=True)]
        w = [t + rest for t, rest in zip(w, above, strict=True)]
        seen.append({k: ranks[k] for k in cohort})
    return w, seen


@pytest.mark.parametrize("weights", ["norm", "examples"])
@pytest.mark.parametrize("stacked", [0, 3])
def test_hetlora_truncates_pads_and_prunes(tmp_path, weights, stacked):
    given = {"method.name": "hetlora", "method.weights": weights, "method.ranks": [*RANKS]}
    given |= {"method.gamma": GAMMA, "method.lam": LAM, "engine.vectorize": stacked}
    reference = reference_of(tmp_path, given)
    w, seen = hetlora(reference, weights)
    found = [reference.result.params[name].double().numpy() for name in FACTORS + HEAD]
    for one, other in zip(found, w, strict=True):
        assert np.abs(one - other).max() < 1e-5 * max(1, np.abs(other).max())
    rows = pq.read_table(reference.result.run_dir / "clients.parquet").to_pylist()
    by_round = [{r["client"]: r["rank"] for r in rows if r["round"] == n + 1} for n in range(4)]
    assert by_round == seen
    assert any(rank < RANKS[k % 3] for ranks in seen for k, rank in ranks.items())


def test_hetlora_prunes_no_tail_that_stayed_as_it_was(tmp_path):
    given = {"method.name": "hetlora", "method.gamma": GAMMA, "local.lr": NO_STEP, "rounds": 1}
    result = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, MODEL))
    ranks = pq.read_table(result.run_dir / "clients.parquet")["rank"].to_pylist()
    assert ranks and {*ranks} == {RANK}


def test_hetlora_prunes_to_a_whole_product_of_gamma_and_rank(tmp_path):
    """0.29 * 100 is below 29 as floating-point numbers."""
    given = {"method.name": "hetlora", "method.gamma": 0.29, "method.lam": 9.0, "rounds": 4}
    model = partial(MODEL, rank=100)
    result = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, model))
    ranks = pq.read_table(result.run_dir / "clients.parquet")["rank"].to_pylist()
    assert 29 in ranks


STAGES = [{"channel.clip.norm": 1e-3}, {"channel.topk.fraction": 0.1}]


@pytest.mark.parametrize("stages", STAGES, ids=str)
def test_no_stage_takes_padding_for_a_change(tmp_path, stages):
    """In the difference of a client of a low rank, padding would be minus the server's rows."""
    given = {"method.name": "hetlora", "method.weights": "examples", "method.ranks": [*RANKS]}
    task, runs = make_task(SIZES, MODEL), []
    for name, more in (("plain", {}), ("staged", stages)):
        notes = Notes()
        runs.append(raysim.run(make_settings(tmp_path / name, **given, **more), task, notes))
    plain, staged = runs
    assert all(torch.equal(plain.params[name], staged.params[name]) for name in FACTORS + HEAD)
    assert plain.metrics["bytes_up"].to_pylist() == staged.metrics["bytes_up"].to_pylist()
    assert any("hetlora sends no differences" in note for note in notes.notes)


def rolora(reference, first):
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        trains_b = (number % 2 == 0) == (first == "B")
        trained = [1, 3, 4, 5] if trains_b else [0, 2, 4, 5]
        slope = slope_of(reference.base, S)
        ends = [reference.train(w, number, k, slope, trained=trained) for k in cohort]
        w = reference.mean(cohort, ends)
    return w


@pytest.mark.parametrize("first", ["B", "A"])
def test_rolora_trains_the_halves_in_turn(tmp_path, first):
    reference = reference_of(tmp_path, {"method.name": "rolora", "method.first": first})
    expected = rolora(reference, first)
    found = [reference.result.params[name].double().numpy() for name in FACTORS + HEAD]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 1e-5 * max(1, np.abs(other).max())
    halves = [b == (first == "B") for b in (True, False) * 2]
    assert reference.result.metrics["half"].to_pylist() == [float(half) for half in halves]


def fedsa(reference, own):
    """FedAvg of the other tensors; each client has its own ones."""
    w, kept = reference.start, {}
    for number, cohort in enumerate(reference.cohorts):
        ends = []
        for k in cohort:
            start = [kept.get((k, i), t) if i in own else t for i, t in enumerate(w)]
            ends.append(reference.train(start, number, k, slope_of(reference.base, S)))
            kept |= {(k, i): ends[-1][i] for i in own}
        means = reference.mean(cohort, ends)
        w = [t if i in own else mean for i, (t, mean) in enumerate(zip(w, means, strict=True))]
    return w, kept


@pytest.mark.parametrize("own", ["*.lora_B.*", "*.lora_B.*,head", "none"])
def test_fedper_keeps_b_and_the_head(tmp_path, own):
    """FedSA-LoRA with and without the head; with nothing of their own, clients do FedIT."""
    reference = reference_of(tmp_path, {"method.name": "fedper", "method.own": own})
    places = {"none": (), "*.lora_B.*": (1, 3)}.get(own, (1, 3, 4, 5))
    w, kept = fedsa(reference, places)
    names = FACTORS + HEAD
    for name, other in zip(names, w, strict=True):
        found = reference.result.params[name].double().numpy()
        assert np.abs(found - other).max() < 1e-5 * max(1, np.abs(other).max())
    states = newest_states(reference.result.run_dir)
    found = {(k, names.index(n[4:])): t for k, state in states.items() for n, t in state.items()}
    assert found.keys() == kept.keys()
    for place, tensor in found.items():
        np.testing.assert_allclose(tensor.numpy(), kept[place], atol=1e-5)


def mixed_slope(base, w_own):
    """The gradient of the own adapter in the mixture, the global tensors given."""

    def slope(own, x, y, shared):
        a1, b1, a2, b2, *head = shared
        weights = [(1 - w_own) * S * b @ a for a, b in ((a1, b1), (a2, b2))]
        fixed = [base[0] + weights[0], base[1], base[2] + weights[1], base[3]]
        return slope_of(fixed, w_own * S)([*own, *head], x, y)[:4]

    return slope


def feddpa(reference, weight):
    """The last global tensors, and the own adapters of clients."""
    w, own = reference.start, {}
    for number, cohort in enumerate(reference.cohorts):
        slope = mixed_slope(reference.base, weight)
        ends = [reference.train(w, number, k, slope_of(reference.base, S)) for k in cohort]
        for k in cohort:
            start = own.get(k, reference.start[:4])
            own[k] = reference.train(start, number, k, partial(slope, shared=w), index=1)
        w = reference.mean(cohort, ends)
    return w, own


@pytest.mark.parametrize("stacked", [0, 3])
def test_feddpa_trains_an_own_adapter_in_the_mixture(tmp_path, stacked):
    weight = 0.3
    given = {"method.name": "feddpa", "method.weight": weight, "engine.vectorize": stacked}
    reference = reference_of(tmp_path, {**given, "evaluation.clients": True})
    w, own = feddpa(reference, weight)
    for name, other in zip(FACTORS + HEAD, w, strict=True):
        found = reference.result.params[name].double().numpy()
        assert np.abs(found - other).max() < 1e-5 * max(1, np.abs(other).max())
    states = newest_states(reference.result.run_dir)
    assert states.keys() == own.keys()
    for client, expected in own.items():
        for name, other in zip(FACTORS, expected, strict=True):
            found = states[client][f"own/{name.replace('default', 'own')}"].numpy()
            np.testing.assert_allclose(found, other, atol=1e-5)


IDENTITIES = {
    "hetlora": {"method.gamma": 1.0, "method.weights": "examples"},
    "feddpa": {"method.weight": 0.0},
    "fedper": {"method.own": "none"},
}
"""Settings under which a method is FedIT, which is FedAvg of a model with adapters."""


def dropping():
    """The network with dropout before its adapters."""
    network = MODEL()
    for layer in LAYERS:
        network.get_submodule(layer).lora_dropout["default"] = nn.Dropout(0.3)
    return network


ENGINES = [
    {},
    {"engine.vectorize": 3},
    {"downlink.topk.fraction": 0.2},
    {"evaluation.when": "after"},
]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("method", IDENTITIES)
def test_the_same_as_fedit(tmp_path, method, engine):
    """The trained tensors, what clients deploy, and the bytes; with dropout."""
    assert_same_runs(tmp_path, {}, {"method.name": method, **IDENTITIES[method]}, engine)


@pytest.mark.parametrize("when", ["before", "after"])
def test_feddpa_without_a_mixture_deploys_what_fedper_does(tmp_path, when):
    """The head is each client's own."""
    plain = {"method.name": "fedper", "method.own": "head"}
    other = {"method.name": "feddpa", "method.own": "head", "method.weight": 0.0}
    assert_same_runs(tmp_path, plain, other, {"evaluation.when": when})


def assert_same_runs(tmp_path, one, another, engine):
    more = {"fraction": 0.5, "local.momentum": 0.9, "evaluation.clients": True}
    plain, other = (
        raysim.run(
            make_settings(tmp_path / name, **more, **own, **engine), make_task(UNEQUAL, dropping)
        )
        for name, own in (("plain", one), ("other", another))
    )
    for name in FACTORS + HEAD:
        assert torch.equal(plain.params[name], other.params[name])
    for column in ("client_accuracy_mean", "test_loss", "bytes_up", "bytes_down"):
        assert plain.metrics[column].to_pylist() == other.metrics[column].to_pylist()


PRODUCTS = {
    "fedavg": {},
    "flexlora": {},
    "flexlora-qr": {"method.way": "qr"},
    "hetlora": {"method.gamma": 1.0},
    "feddpa": {},
    "fedper": {"method.own": "*.lora_B.*"},
}


def unequal():
    """The network with another rank in its second layer, as peft's `rank_pattern` gives."""
    network = MODEL()
    network.hidden[2] = LoraLinear(network.hidden[2].base_layer, LOW)
    return network


LOW = 2


def trained_by_one(tmp_path, model, case):
    """What a run with one client ends with after a round."""
    name = case.partition("-")[0]
    settings = make_settings(
        tmp_path / name, rounds=1, fraction=1.0, **{"method.name": name, **PRODUCTS.get(case, {})}
    )
    run = raysim.run(settings, make_task((57,), model))
    (kept,) = newest_states(run.run_dir).values() if name in ("local", "fedper") else ({},)
    own = {key.removeprefix("own/"): tensor for key, tensor in kept.items()}
    return {**run.params, **own}


@pytest.mark.parametrize("model", [MODEL, unequal], ids=["one-rank", "rank-pattern"])
@pytest.mark.parametrize("case", PRODUCTS)
def test_one_client_is_local_training(tmp_path, case, model):
    local, found = (trained_by_one(tmp_path, model, name) for name in ("local", case))
    assert_same_model(found, [local[name].double().numpy() for name in FACTORS + HEAD])


@pytest.mark.parametrize("model", [MODEL, unequal], ids=["one-rank", "rank-pattern"])
def test_one_client_s_adapters_are_merged_as_trained(tmp_path, model):
    local, found = (trained_by_one(tmp_path, model, name) for name in ("local", "flora"))
    network = from_task(make_task((57,), model)).network(0)
    for layer in LAYERS:
        a, b = (local[f"{layer}.lora_{half}.default.weight"] for half in "AB")
        module = network.get_submodule(layer)
        change = found[f"{layer}.base_layer.weight"] - module.base_layer.weight
        torch.testing.assert_close(change, module.scaling["default"] * b @ a, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"method.name": "flexlora", "method.ranks": [2]}, r"leave out method\.ranks"),
        ({"method.name": "hetlora"}, r"leave out method\.ranks and set method\.gamma=1"),
    ],
)
def test_clients_of_several_ranks_need_layers_of_one(tmp_path, given, advice):
    message = rf"needs adapters of one rank .*; the model has ranks 2, 4; give it one, or {advice}$"
    assert_refused(tmp_path, given, message, unequal)


@pytest.mark.parametrize("method", ["fedavg", *METHODS])
def test_adapters_add_nothing_at_the_start(tmp_path, method):
    """The base's outputs are those of the network without adapters."""
    task = make_task((57,), MODEL)
    network = from_task(task).network(0)
    for layer in LAYERS:
        path, _, place = layer.rpartition(".")
        parent = network.get_submodule(path)
        parent[int(place)] = parent[int(place)].base_layer
    x, y = map(torch.from_numpy, task.test)
    base = float(nn.functional.cross_entropy(network(x), y).detach())
    given = {"method.name": method, "rounds": 1, "fraction": 1.0, "local.lr": 1e-20}
    result = raysim.run(make_settings(tmp_path / "run", **given), task)
    assert result.metrics["test_loss"][-1].as_py() == pytest.approx(base, rel=1e-6)


RANKS_OF = {0: 1, 1: 4, 2: 2, 3: 1, 4: 4}


def rank_of(client):
    return RANKS_OF[client]


def given_ranks(folder, way):
    if way == "function":
        return f"{__name__}:rank_of"
    if way == "table":
        rows = [f"{client},{rank}" for client, rank in reversed(RANKS_OF.items())]
        (folder / "ranks.csv").write_text("\n".join(["client,rank", *rows, "77,3"]))
        return str(folder / "ranks.csv")
    return "1,4,2"


@pytest.mark.parametrize("method", ["flexlora", "hetlora"])
def test_ranks_come_from_a_list_a_table_or_a_function(tmp_path, method):
    runs = []
    for way in ("list", "table", "function"):
        ranks = given_ranks(tmp_path, way)
        settings = make_settings(
            tmp_path / way, **{"method.name": method, "method.ranks": ranks, "fraction": 0.6}
        )
        raysim.run(settings, make_task(SIZES, MODEL))
        rows = pq.read_table(tmp_path / way / "clients.parquet").to_pylist()
        assert all(row["rank"] <= RANKS_OF[row["client"]] for row in rows) and len(rows) == 9
        runs.append(
            {name: load_file(tmp_path / way / "model.safetensors")[name] for name in FACTORS}
        )
    for name in FACTORS:
        assert torch.equal(runs[0][name], runs[1][name])
        assert torch.equal(runs[0][name], runs[2][name])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": [2, 5]}, r"method\.ranks=2,5: the rank is 5; must be 1 to 4"),
        ({"ranks": "0"}, r"method\.ranks=0: must be greater than or equal to 1"),
        ({"ranks": []}, r"method\.ranks=: the rank is 0; must be 1 to 4"),
        ({"ranks": f"{__name__}:nothing"}, r"method\.ranks=.*:nothing: cannot be imported"),
        (
            {"ranks": f"{__name__}:given_ranks"},
            r"method\.ranks=.*: must be a function of \(client\)",
        ),
        ({"own": "hidden"}, r"method\.own=hidden: must leave the adapters to the server"),
        ({"own": "tail"}, r"method\.own=tail: the model has no 'tail'"),
    ],
)
def test_bad_ranks_and_parts_are_refused(tmp_path, given, message):
    overrides = {"method.name": "flexlora", **{f"method.{k}": v for k, v in given.items()}}
    assert_refused(tmp_path, overrides, message, MODEL)


@pytest.mark.parametrize("method", ["fedex_lora", "flexlora", "flora", "hetlora"])
def test_what_is_no_change_is_not_divided_by_the_expected_clients(tmp_path, method):
    given = {"method.name": method, "aggregation.weighting": "fixed"}
    message = rf"method\.name={method}: does not go with aggregation\.name=mean, .* divides changes"
    assert_refused(tmp_path, given, message, MODEL)


@pytest.mark.parametrize("method", ["flexlora", "flora", "hetlora", "rolora"])
def test_no_optimizer_is_kept_for_rows_that_the_server_replaces(method):
    given = {"method.name": method, "local.keep": True, "local.momentum": 0.9}
    message = (
        rf"local\.keep=true: does not go with method\.name={method}, which needs local\.keep=f"
    )
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.load_config("mnist-fedavg", given)


def too_much(client):
    return 2.5


def test_a_function_s_rank_is_checked_before_the_run_starts(tmp_path):
    given = {"method.name": "hetlora", "method.ranks": f"{__name__}:too_much"}
    message = r"method\.ranks=.*: the rank of client 0 is 2\.5; must be 1 to 4"
    assert_refused(tmp_path, given, message, MODEL)


def test_a_table_of_ranks_is_read_before_the_run_starts(tmp_path):
    given = {"method.name": "hetlora", "method.ranks": "missing.csv"}
    with pytest.raises(raysim.RaysimError, match=r"method\.ranks=missing\.csv: there is no such"):
        raysim.run(make_settings(tmp_path / "run", **given), make_task((5,), MODEL))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [("7,2", "client 0 is missing"), ("1,2\n7,2\n1,4", "client 1 is there twice")],
)
def test_each_client_is_in_the_table_once(tmp_path, rows, message):
    (tmp_path / "ranks.csv").write_text(f"client,rank\n{rows}")
    given = {"method.name": "hetlora", "method.ranks": str(tmp_path / "ranks.csv")}
    with pytest.raises(raysim.RaysimError, match=rf"ranks\.csv: {message}"):
        raysim.run(make_settings(tmp_path / "run", **given), make_task((5,), MODEL))


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_trained_adapters_is_refused(tmp_path, method):
    given = {"method.name": method}
    message = rf"method\.name={method}: needs a model with adapters"
    assert_refused(tmp_path, given, message, TwoLayers)
    message = rf"method\.name={method}: needs adapters of which A and B are trained; .*lora_A.*"
    assert_refused(tmp_path, given, message, fixed_a)
    assert_refused(tmp_path, given, message, FixedA)


def fixed_a():
    return FixedA().network


class FixedA(nn.Module):
    """A network with adapters whose A is frozen, as of FFA-LoRA."""

    def __init__(self):
        super().__init__()
        self.network = MODEL()
        for name, tensor in self.network.named_parameters():
            tensor.requires_grad_(tensor.requires_grad and "lora_A" not in name)

    def forward(self, x):
        return self.network(x)


def with_trained_base():
    """The network, in which the first weight with an adapter is trained, too."""
    network = MODEL()
    network.hidden[0].base_layer.requires_grad_()
    return network


def tied():
    """A network of which two layers with adapters have one weight."""
    network = adapted(Square)
    network.hidden[2].base_layer.weight = network.hidden[0].base_layer.weight
    return network


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_trained_base, "hidden.0.base_layer.weight is also trained by clients; freeze it"),
        (tied, "hidden.0.base_layer.weight is also the weight of another layer"),
    ],
)
@pytest.mark.parametrize("method", ["fedex_lora", "flora"])
def test_a_base_that_is_not_the_adapter_s_alone_does_not_move(tmp_path, method, model, message):
    message = rf"method\.name={method}: changes weights that have adapters, and {message}"
    assert_refused(tmp_path, {"method.name": method}, message, model)


def test_flexlora_averages_a_trained_base(tmp_path):
    given = {"method.name": "flexlora", "rounds": 1, "fraction": 1.0}
    start = tensors_of(make_task((57,), with_trained_base), BASE[:1])
    run = raysim.run(make_settings(tmp_path / "run", **given), make_task((57,), with_trained_base))
    assert np.abs(run.params[BASE[0]].numpy() - start[0]).max() > 1e-3


def test_ffa_is_fedavg_with_a_frozen(tmp_path):
    """A stays as it was drawn; B is averaged, so that the mean of products is their product."""
    first = [f"network.{name}" for name in FACTORS + HEAD]
    given = {"method.name": "fedavg", "local.lr": 0.5}
    reference = Reference(tmp_path, given, model=FixedA, first=partial(tensors_of, names=first))
    base = tensors_of(make_task(SIZES, FixedA), [f"network.{name}" for name in BASE])
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        ends = [
            reference.train(w, number, k, slope_of(base, S), trained=[1, 3, 4, 5]) for k in cohort
        ]
        w = reference.mean(cohort, ends)
    for name, other in zip(first, w, strict=True):
        if "lora_A" not in name:  # which no longer travels
            found = reference.result.params[name].double().numpy()
            assert np.abs(found - other).max() < 1e-5 * max(1, np.abs(other).max())


WEIGHTS = [name for name in BASE if name.endswith("weight")]


def effective(params, transposed):
    """The weights of both layers with their adapters, as [out, in]."""
    found = [params[name].double().numpy() for name in (*WEIGHTS, *FACTORS)]
    bases = [w.T if transposed else w for w in found[:2]]
    return [w + S * ba for w, ba in zip(bases, products(found[2:]), strict=True)]


def oriented(base, transposed):
    return [w.T if transposed and w.ndim == 2 else w for w in base]


def redrawn(number, init, shapes):
    draws = torch_generator(0, "server/lora_A", number)
    for shape in shapes:
        bound = 1 / np.sqrt(shape[1])
        if init == "normal":
            yield torch.randn(shape, generator=draws).double().numpy() / RANK
        else:
            yield (2 * torch.rand(shape, generator=draws) - 1).double().numpy() * bound


def flora(reference, base, init):
    """The last effective weights and head."""
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        total = sum(reference.sizes[k] for k in cohort)
        heads, base = [], [*base]
        slopes = {k: slope_of([*base], ALPHA / RANKS[k % 3]) for k in cohort}
        for k in cohort:
            end = reference.train(at_rank(w, RANKS[k % 3]), number, k, slopes[k])
            for place, ba in zip((0, 2), products(end), strict=True):
                share = reference.sizes[k] / total * ALPHA / RANKS[k % 3]
                base[place] = base[place] + share * ba
            heads.append(end[4:])
        w = [np.zeros_like(t) for t in w[:4]] + reference.mean(cohort, heads)
        w[0], w[2] = redrawn(number, init, (w[0].shape, w[2].shape))
    return [base[0], base[2], *w[4:]]


def fedex(reference, base):
    """The last effective weights and head: the mean of the clients'."""
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        slope = slope_of([*base], S)
        ends = [reference.train(w, number, k, slope) for k in cohort]
        mean = [sum(ts) / len(ts) for ts in zip(*ends, strict=True)]
        exact = [sum(bas) / len(bas) for bas in zip(*map(products, ends), strict=True)]
        base = [*base]
        for place, whole, ba in zip((0, 2), exact, products(mean), strict=True):
            base[place] = base[place] + S * (whole - ba)
        w = mean
    return [base[0] + S * w[1] @ w[0], base[2] + S * w[3] @ w[2], *w[4:]]


MOVING = {
    "flora": ({"method.ranks": [*RANKS]}, partial(flora, init="uniform")),
    "flora-normal": (
        {"method.ranks": [*RANKS], "method.init_a": "normal"},
        partial(flora, init="normal"),
    ),
    "fedex_lora": ({}, fedex),
}


@pytest.mark.parametrize("stacked", [0, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("case", MOVING)
def test_the_base_moves(tmp_path, case, transposed, stacked):
    """Weights [out, in] of linear layers, and [in, out] as of GPT-2."""
    given, expect = MOVING[case]
    given = {"method.name": case.partition("-")[0], **given, "engine.vectorize": stacked}
    model = partial(adapted, Square, transposed=transposed)
    reference = reference_of(tmp_path, given, model)
    base = oriented(reference.base, transposed)
    expected = expect(reference, base)
    params = reference.result.params
    found = effective(params, transposed) + [params[name].double().numpy() for name in HEAD]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 1e-5 * max(1, np.abs(other).max())
    assert np.abs(params[WEIGHTS[0]].numpy() - reference.base[0]).max() > 1e-3


class Square(SmallNet):
    """Adapted layers of [12, 12], which take a transposed change without an error."""

    def __init__(self):
        super().__init__(width=12)
        self.hidden = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())


HEAD_BYTES, ROW, BASE_BYTES = 4 * (3 * 10 + 3), 4 * (12 + 16 + 16 + 10), 4 * (16 * 12 + 10 * 16)
"""Of the head, of a row of A with its column of B in both layers, and of both weights."""


def sent_and_received(method, number, rank, missed):
    """Bytes up and down of a client of a rank, in a round from 0."""
    whole = HEAD_BYTES + RANK * ROW
    halves = [4 * RANK * (16 + 10), 4 * RANK * (12 + 16)]
    return {
        "feddpa": (whole, whole),
        "fedex_lora": (whole, whole + (BASE_BYTES if number else 0)),
        "flexlora": (HEAD_BYTES + rank * ROW, HEAD_BYTES + rank * ROW + 4),
        "flora": (HEAD_BYTES + rank * ROW, HEAD_BYTES + min(missed * ROW, BASE_BYTES) + 4),
        "hetlora": (HEAD_BYTES + rank * ROW + 4, HEAD_BYTES + rank * ROW + 4),
        "rolora": (HEAD_BYTES + halves[number % 2], whole),
    }[method]


def devices_of_bytes(folder):
    """Return settings of a clock under which a byte takes a joule and computing next to none."""
    rows = [f"{client},1e15,1e6,1e6,0.1,1,1" for client in range(len(SIZES))]
    path = folder / "devices.csv"
    path.write_text("\n".join(["client,speed,up,down,latency,watts,joules_per_byte", *rows]))
    return {"clock.name": "devices", "clock.table": str(path)}


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_what_is_sent(tmp_path, method):
    has_ranks = method in ("flexlora", "flora", "hetlora")
    given = {"method.name": method, "rounds": 5, "fraction": 0.4, "checkpoint_every": 9}
    given |= {"method.ranks": [*RANKS]} if has_ranks else {}
    given |= devices_of_bytes(tmp_path)
    result = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, MODEL))
    clients = pq.read_table(tmp_path / "run/clients.parquet").to_pylist()
    ranks, at, total, seen = {k: RANKS[k % 3] for k in range(5)}, {}, 0, []
    for number, row in enumerate(result.metrics.to_pylist()):
        rows = [r for r in clients if r["round"] == number + 1 and r["pass"] == 0]
        up = down = 0
        for r in rows:
            client, rank = r["client"], ranks[r["client"]]
            if method == "hetlora":
                ranks[client] = r["rank"]
            missed = total - at.get(client, 0)
            seen.append(missed * ROW)
            both = sent_and_received(method, number, rank, missed)
            assert r["virtual_joules"] == pytest.approx(sum(both), abs=0.1)
            up, down, at[client] = up + both[0], down + both[1], total
        assert (row["bytes_up"], row["bytes_down"]) == (up, down)
        total += sum(ranks[r["client"]] for r in rows)
    assert min(seen) == 0 and any(0 < bytes_ < BASE_BYTES for bytes_ in seen)
    assert method != "flora" or max(seen) > BASE_BYTES


def kept_by_the_server(tmp_path, group, **given):
    """The names and values of a group of the last checkpoint, with the rows of clients."""
    more = {"fraction": 0.2, "rounds": 8, "checkpoint_every": 8}
    raysim.run(make_settings(tmp_path / "run", **given, **more), make_task((9,) * 20, MODEL))
    state = load_file(tmp_path / "run/checkpoints/round_000008/state.safetensors")
    found = {n.partition("/")[2]: t.tolist() for n, t in state.items() if n.startswith(group)}
    return found, pq.read_table(tmp_path / "run/clients.parquet").to_pylist()


def test_the_server_of_flora_forgets_clients_that_will_receive_the_base(tmp_path):
    given = {"method.name": "flora", "method.ranks": [1]}
    found, rows = kept_by_the_server(tmp_path, "stacked/", **given)
    missed = {row["client"]: 4 * (9 - row["round"]) for row in rows}  # rounds of 4 clients
    kept = sorted(client for client, rank in missed.items() if rank * ROW < BASE_BYTES)
    assert found == {"client": kept, "at": [32 - missed[c] for c in kept], "total": 32}
    assert 0 < len(kept) < len(missed)


def test_the_server_of_hetlora_knows_the_ranks_of_clients_that_have_pruned(tmp_path):
    given = {"method.name": "hetlora", "method.gamma": GAMMA, "method.ranks": [1, 4]}
    found, rows = kept_by_the_server(tmp_path, "ranks/", **given)
    last = {row["client"]: row["rank"] for row in rows}
    pruned = {client: rank for client, rank in sorted(last.items()) if rank < (1, 4)[client % 2]}
    assert dict(zip(found["client"], found["rank"], strict=True)) == pruned
    assert 0 < len(pruned) < len(last)


class HalfBase(nn.Module):
    """A network whose adapted weights are bfloat16."""

    def __init__(self):
        super().__init__()
        self.network = MODEL()
        for layer in LAYERS:
            self.network.get_submodule(layer).base_layer.to(torch.bfloat16)


@pytest.mark.parametrize("method", ["fedex_lora", "flora", "flexlora"])
def test_a_base_of_few_digits_is_warned_of_where_it_moves(method):
    found = METHODS_OF.get(method)().notes(HalfBase())
    assert len(found) == (method != "flexlora")
    assert all("weights of bfloat16" in line for line in found)
    assert not METHODS_OF.get(method)().notes(MODEL())


def deployed(method, run, client):
    """The tensors that a client deploys, from its kept state and rank, given the last model."""
    network = method.network(MODEL())
    state = method.init(network).replace(model=dict(run.params))
    now = SimpleNamespace(cohort=(client,), network=network)
    pass_ = method.deployment(now, state)
    kept = {}
    for key, tensor in newest_states(run.run_dir).get(client, {}).items():
        kept.setdefault(key.partition("/")[0], {})[key.partition("/")[2]] = tensor
    kept = kept or method.client_init(state)
    return pass_.rules.start(pass_.broadcast, kept, pass_.personal.get(client, {})), network


def test_clients_of_feddpa_deploy_the_mixture_and_others_the_global_model(tmp_path):
    given = {"method.name": "feddpa", "method.weight": 0.3, "local.lr": 0.5}
    given |= {"fraction": 0.4, "rounds": 1}
    run = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, MODEL))
    took_part = {*newest_states(run.run_dir)}
    x = torch.from_numpy(make_task(SIZES, MODEL).test[0])
    names = [f"hidden.0.lora_{half}.{of}.weight" for of in ("default", "own") for half in "AB"]
    for client in range(len(SIZES)):
        tensors, network = deployed(METHODS_OF.get("feddpa")(weight=0.3), run, client)
        weight = 0.3 if client in took_part else 0.0
        outputs = torch.func.functional_call(network, tensors, (x,))
        a, b, own_a, own_b = (tensors[name] for name in names)
        change = S * ((1 - weight) * b @ a + weight * own_b @ own_a)
        first = network.get_submodule("hidden.0")
        found = torch.func.functional_call(first, only_of(tensors, "hidden.0."), (x,))
        torch.testing.assert_close(found, first.base_layer(x) + x @ change.T)
        assert outputs.isfinite().all() and bool(own_b.any()) == (client in took_part)


def only_of(tensors, prefix):
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@pytest.mark.parametrize("method", ["flexlora", "flora", "hetlora"])
def test_clients_deploy_adapters_of_their_rank(tmp_path, method):
    kind = METHODS_OF.get(method)
    given = {"method.name": method, "method.ranks": [*RANKS], "local.lr": 0.5, "rounds": 1}
    run = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, MODEL))
    for client in range(3):
        tensors, _ = deployed(kind(ranks=RANKS), run, client)
        a, b = (tensors[f"hidden.0.lora_{half}.default.weight"] for half in "AB")
        rank = RANKS[client]
        assert a[:rank].any(dim=1).all() and not a[rank:].any()
        assert not b[:, rank:].any() and bool(b.any()) == (method != "flora")
        whole = run.params["hidden.0.lora_B.default.weight"][:, :rank] * S
        scale = S if method == "hetlora" else ALPHA / rank
        torch.testing.assert_close(b[:, :rank] * scale, whole)


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_run_has_the_outputs_of_its_last_model(tmp_path, method):
    """Also the base that has moved, and the scales of ranks."""
    given = {"method.name": method, "rounds": 2, "local.lr": 0.5}
    given |= {"method.ranks": [*RANKS]} if method in ("flexlora", "flora", "hetlora") else {}
    task = make_task(SIZES, MODEL)
    result = raysim.run(make_settings(tmp_path / "run", **given), task)
    network = raysim.load(tmp_path / "run", MODEL)
    x, y = map(torch.from_numpy, task.test)
    loss = float(nn.functional.cross_entropy(network(x), y).detach())
    assert result.metrics["test_loss"][-1].as_py() == pytest.approx(loss, rel=1e-5)
    saved = load_file(tmp_path / "run/model.safetensors")
    assert ({*WEIGHTS} <= saved.keys()) == (method in ("fedex_lora", "flora"))


STARTS = {
    "feddpa": {},
    "flexlora": {"method.ranks": [RANK]},
    "flora": {"method.ranks": [RANK]},
}
"""Methods that add tensors to the network."""


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("method", STARTS)
def test_a_run_starts_from_the_model_of_another(tmp_path, method, same):
    """Of the same method, or of one that does not add these tensors."""
    given = {"method.name": method, **STARTS[method], "rounds": 1, "local.lr": 0.5}
    task = make_task(SIZES, MODEL)
    first = raysim.run(make_settings(tmp_path / "first", **given), task)
    later = {**(given if same else {"rounds": 1}), "start_from": str(tmp_path / "first")}
    later |= {"local.lr": NO_STEP, "seed": 5}
    result = raysim.run(make_settings(tmp_path / "later", **later), task)
    (one,), (other,) = (run.metrics["test_loss"].to_pylist() for run in (first, result))
    assert one == pytest.approx(other, rel=1e-6)


def test_what_clients_deploy_is_their_own_only_where_it_is():
    """Of ranks, of parts of their own, and of FedDPA's mixture."""
    kinds = {name: METHODS_OF.get(name) for name in METHODS}
    own = {name for name, kind in kinds.items() if kind().deploys_client_models}
    assert own == {"feddpa", "hetlora"}  # whose gamma prunes
    assert all(kind(own=("head",)).deploys_client_models for kind in kinds.values())
    assert kinds["flexlora"](ranks=(1,)).deploys_client_models
    assert not kinds["flora"](ranks=(1,)).deploys_client_models  # B is 0 after the merge
    assert not kinds["hetlora"](gamma=1.0).deploys_client_models


def test_the_source_of_a_function_of_ranks_is_sealed():
    settings = {"method": {"name": "flora", "ranks": "my_ranks:rank_of"}}
    assert modules_of(settings) == {"my_ranks"}
    assert modules_of({"method": {"name": "flora", "ranks": [1, 2]}}) == set()
