"""What clients deploy after the local training of a round: evaluation.when=after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

import raysim
from raysim.api.method import METHODS
from raysim.numbers.seeds import stream
from raysim.samples.local_cut import LocalCut
from raysim.testing.tasks import SmallNet
from tests.adapters import task_for
from tests.methods import common
from tests.methods.test_contract import SETTINGS
from tests.tasks import UNEQUAL, make_settings, make_task

AFTER = {"evaluation.local_test": 0.25, "evaluation.when": "after", "local.lr": 0.05}
ROUNDS, LR, BATCH = 3, 0.05, 8
REFUSED = {
    "centralized": "centralized does not define what clients deploy",
    "divide_and_conquer": "divide_and_conquer does not define what clients deploy",
    "fedma": "fedma does not define what clients deploy",
    "fsvrg": "fsvrg does not define what clients deploy",
    "mifl": "mifl does not define what clients deploy",
}
"""Methods whose clients do not train a model by themselves in one pass."""


@pytest.mark.parametrize("name", [*METHODS])
def test_a_method_says_what_is_deployed_or_is_refused_before_it_starts(tmp_path, name):
    options = {"method.name": name, **SETTINGS.get(name, {}), **AFTER, "rounds": 1}
    options |= {"local.epochs": 1, "checkpoint_every": 9}
    options |= {"fraction": 1.0} if METHODS.get(name).needs_everyone else {}
    settings = make_settings(tmp_path / "run", **options)
    task = task_for(name, make_task((9, 30, 17)))
    if name in REFUSED:
        with pytest.raises(raysim.SettingsError, match=REFUSED[name]):
            raysim.run(settings, task)
        assert not (tmp_path / "run").exists()
        return
    result = raysim.run(settings, task)
    own, shared = (
        result.metrics[f"{model}local_test_loss"].to_pylist() for model in ("personal_", "")
    )
    assert np.isfinite(own).all()
    assert own[-1] != pytest.approx(shared[-1], rel=1e-5)  # summed in another order


Model = dict[str, torch.Tensor]
Data = tuple[torch.Tensor, torch.Tensor]


class Client:
    """A client's tensors, samples and batches, for training in plain torch.

    Attributes:
        shared: The model of the server.
        kept: The client's state by name, empty if it never took part.
        data: Its training samples.
    """

    def __init__(self, client: int, shared: Model, kept: Model, data: Data) -> None:
        self.client, self.shared, self.kept, self.data = client, shared, kept, data

    def batches(self, number: int, epochs: int) -> list[Data]:
        """The samples of each batch of a pass of the deployment."""
        (x, y), draws = self.data, stream(0, "batches", ROUNDS, number, self.client)
        whole = len(y) <= BATCH  # then the order is left as it is
        orders = [np.arange(len(y)) if whole else draws.permutation(len(y)) for _ in range(epochs)]
        cuts = [rows for order in orders for rows in np.split(order, range(BATCH, len(y), BATCH))]
        return [(x[rows], y[rows]) for rows in cuts]

    def own(self, group: str, start: Model) -> Model:
        """The tensors that the client keeps in a group, or those with which it starts."""
        parts = {n.partition("/")[::2]: t for n, t in self.kept.items()}
        return {n: t for (g, n), t in parts.items() if g == group} or start


def slope_of(model: Model, data: Data) -> Model:
    points = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
    outputs = torch.func.functional_call(SmallNet(), points, (data[0],))
    found = torch.autograd.grad(F.cross_entropy(outputs, data[1]), [*points.values()])
    return dict(zip(points, found, strict=True))


def moved(model: Model, slope: Model, scale: float = LR, part: str = "") -> Model:
    return {n: t - scale * slope[n] if n.startswith(part) else t for n, t in model.items()}


def trained(model: Model, batches: list[Data], part: str = "") -> Model:
    for batch in batches:
        model = moved(model, slope_of(model, batch), part=part)
    return model


def head_of(model: Model) -> Model:
    return {name: tensor for name, tensor in model.items() if name.startswith("head.")}


def fedper(client: Client, first: Model) -> Model:
    start = {**client.shared, **client.own("own", head_of(first))}
    return trained(start, client.batches(-1, 2))


def fedrep(client: Client, first: Model) -> Model:
    start = {**client.shared, **client.own("own", head_of(first))}
    with_head = trained(start, client.batches(-1, 3), part="head.")
    return trained(with_head, client.batches(-2, 2), part="hidden.")


def apfl(client: Client, first: Model) -> Model:
    w, v = client.shared, client.own("v", first)
    for batch in client.batches(-1, 2):
        w = moved(w, slope_of(w, batch))
        mixture = {name: 0.3 * v[name] + 0.7 * w[name] for name in v}
        v = moved(v, slope_of(mixture, batch), LR * 0.3)
    return {name: 0.3 * v[name] + 0.7 * w[name] for name in v}


def pfedme(client: Client, first: Model) -> Model:
    w = theta = client.shared
    for batch in client.batches(-1, 2):
        for _ in range(2):
            slope = slope_of(theta, batch)
            theta = {n: t - 0.1 * (slope[n] + 3 * (t - w[n])) for n, t in theta.items()}
        w = {n: t - LR * 3 * (t - theta[n]) for n, t in w.items()}
    return theta


def per_fedavg(client: Client, first: Model) -> Model:
    w = client.shared
    for x, y in client.batches(-1, 2):
        inner, outer = (two_of(x, y, part) for part in (0, 1))
        w = moved(w, slope_of(moved(w, slope_of(w, inner), 0.2), outer))
    return moved(w, slope_of(w, client.data), 0.2)


def two_of(x: torch.Tensor, y: torch.Tensor, part: int) -> Data:
    """Every second sample; at least two, from the first ones again."""
    rows = [part % len(y), (part + 2) % len(y)] if part + 2 >= len(y) else slice(part, None, 2)
    return x[rows], y[rows]


def ditto(client: Client, first: Model) -> Model:
    v = client.own("personal", first)
    for batch in client.batches(-1, 2):
        slope = slope_of(v, batch)
        v = {n: t - LR * (slope[n] + 0.5 * (t - client.shared[n])) for n, t in v.items()}
    return v


BY_HAND: dict[Callable[[Client, Model], Model], dict[str, Any]] = {
    apfl: {"method.alpha": 0.3},
    ditto: {"method.lam": 0.5},
    fedper: {},
    fedrep: {"method.head_epochs": 3, "method.body_epochs": 2},
    per_fedavg: {"method.alpha": 0.2},
    pfedme: {
        "method.lam": 3.0,
        "method.inner_steps": 2,
        "method.personal_lr": 0.1,
        "method.decay": 0.0,
    },
}
"""What a client deploys, worked out by hand, and the settings of the method of that name."""


@pytest.mark.parametrize("by_hand", BY_HAND, ids=lambda function: function.__name__)
def test_the_deployed_model_is_the_one_that_the_client_has_trained(tmp_path, by_hand):
    """After three rounds, in which some clients never took part."""
    options = {"method.name": by_hand.__name__, **BY_HAND[by_hand], **AFTER}
    options = {"rounds": ROUNDS, "fraction": 0.34, "local.epochs": 2} | options
    task = make_task(UNEQUAL)
    settings = make_settings(tmp_path / "run", **options)
    result = raysim.run(settings, task)
    first = raysim.run(make_settings(tmp_path / "first", rounds=1, **{"local.lr": 1e-30}), task)
    states, losses = common.newest_states(result.run_dir), []
    rows = pq.read_table(result.run_dir / "client_accuracy.parquet").to_pylist()
    scores = {row["client"]: row["personal_local_test_accuracy"] for row in rows}
    for client, (inputs, labels) in enumerate(task.clients):
        kept, tested = LocalCut(0.25, 0, labels).divide(client, np.arange(len(labels)))
        x, y = torch.tensor(inputs), torch.tensor(labels)
        own = Client(client, dict(result.params), states.get(client, {}), (x[kept], y[kept]))
        model = by_hand(own, dict(first.params))
        if len(tested):
            logits = torch.func.functional_call(SmallNet(), model, (x[tested],))
            losses += F.cross_entropy(logits, y[tested], reduction="none").tolist()
            hits = (logits.argmax(1) == y[tested]).numpy()
            assert scores[client] == hits.mean()
    found = result.metrics["personal_local_test_loss"].to_pylist()[-1]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)
    assert len(pq.read_table(result.run_dir / "clients.parquet")["client"].unique()) < len(UNEQUAL)
