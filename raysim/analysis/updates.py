"""Updates of clients: which of them goes another way than the others of its round.

The update of a client is what its training has added to the trained parameters, before the stages
of the channel and before an attack on its upload. Its direction is
compared in a count sketch of BUCKETS numbers (Charikar, Chen and Farach-Colton, "Finding Frequent
Items in Data Streams", ICALP 2002), so that no update is kept whole:

    s_b = sum of +-d_j over the coordinates j of bucket b      buckets and signs by fixed draws
    cosine_k = <s_k, m_k> / (||s_k|| ||m_k||)                  m_k the mean of the others' s

A model of at most BUCKETS parameters is compared as it is; of a larger one, cosines have a standard
error of about 1 / sqrt(BUCKETS) = 0.008. Norms are exact.

Legend: n clients, d parameters, b buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raysim.analysis.base import Analysis, ClientPart, Columns, MeasuredRound, Need, outputs
from raysim.api.columns import Column
from raysim.api.rules import Trained, View
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Tensors

BUCKETS = 1 << 14
"""Most numbers of an update that a client sends."""
DRAWS = 20260
"""Seed of buckets and signs."""


class ClientUpdates(Analysis):
    """Loss of each client before and after its training, and norm and direction of its update.

    The losses are those of its training samples with the model that it received and with the one
    that it has trained. `cosine` compares its update with the mean update of the other clients of
    the round; an update of zero has a cosine of 0. A round with one client has no rows.
    """

    needs: ClassVar[tuple[Need, ...]] = ("real_model",)
    columns = (
        Column("loss_before", "smaller"),
        Column("loss_after", "smaller"),
        Column("update_norm"),
        Column("cosine", "larger"),
    )

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of losses and update."""
        return _measured

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per client: its samples, both losses, norm and cosine."""
        clients = sorted(evaluated.trained)
        if len(clients) < 2:
            return {}
        found = [evaluated.trained[client] for client in clients]
        figures = {
            name: np.array([float(tensors[name]) for tensors in found])
            for name in ("loss_before", "loss_after", "update_norm")
        }
        return {
            "client": np.array(clients),
            "samples": np.array([int(tensors["samples"]) for tensors in found]),
            **figures,
            "cosine": cosines(np.stack([tensors["sketch"].numpy() for tensors in found])),
        }


def cosines(sketches: Array) -> Array:
    """Return the cosine of each vector [n, b] with the mean of the others [n]; of zeros 0."""
    others = sketches.sum(axis=0) - sketches  # n - 1 times their mean
    norms = np.linalg.norm(sketches, axis=1) * np.linalg.norm(others, axis=1)
    products = (sketches * others).sum(axis=1)
    compared: Array = np.divide(products, norms, out=np.zeros(len(sketches)), where=norms > 0)
    return compared


def _measured(view: View, trained: Trained) -> Tensors:
    """Return a client's samples, losses, and the norm and the sketch of its update."""
    update = torch.cat([*_differences(view)])
    return {
        "samples": torch.tensor(len(trained.data.y)),
        "loss_before": _loss(view, view.start, trained),
        "loss_after": _loss(view, view.params, trained),
        "update_norm": update.norm(),
        "sketch": sketched(update),
    }


def _differences(view: View) -> Iterator[Tensor]:
    """Yield the update of each trained parameter as a vector, in the order of their names."""
    for name in sorted(view.trainable):
        change = view.params[name].detach().cpu().double() - view.start[name].cpu().double()
        yield change.reshape(-1)


def sketched(update: Tensor) -> Tensor:
    """Return the count sketch [b] of an update [d]; the update itself where it is no longer."""
    if len(update) <= BUCKETS:
        return update
    draws = torch.Generator().manual_seed(DRAWS)
    places = torch.randint(2 * BUCKETS, update.shape, generator=draws)
    signed = torch.where(places % 2 == 0, update, -update)
    return torch.zeros(BUCKETS, dtype=update.dtype).index_add(0, places // 2, signed)


def _loss(view: View, tensors: Tensors, trained: Trained) -> Tensor:
    """Return the mean loss of the client's training samples at some tensors, as it is reported."""
    scoring = trained.data.scoring
    samples = trained.data._replace(scoring=scoring.reported or scoring)
    return samples.loss(torch.cat([part.logits for part in outputs(view, tensors, samples.x)]))
