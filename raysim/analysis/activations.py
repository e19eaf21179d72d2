"""Activations at the input of the last fully connected layer.

Source: FedMAX, section 4.1 and figures 2, 7, 8 and 9. The paper takes the KL divergence of mean
activations without saying how they become distributions: here by the softmax, as in its penalty.

Legend: n samples, F activations.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn

from raysim.analysis.base import (
    Analysis,
    ClientPart,
    Columns,
    MeasuredRound,
    Need,
    at_equal_distances,
    outputs,
)
from raysim.analysis.formulas import kl_divergence, log_softmax
from raysim.api.columns import Column
from raysim.api.rules import Trained, View
from raysim.numbers.tensors import Tensors, at_least_float32

SHOWN_SAMPLES = 20
"""Samples of a client with stored activations."""


def _hidden(view: View, x: torch.Tensor) -> torch.Tensor:
    """Return the activations of the client's trained model, as vectors [n, F]."""
    batches = [output.hidden for output in outputs(view, view.params, x)]
    activations = torch.cat([at_least_float32(hidden) for hidden in batches if hidden is not None])
    return activations.reshape(len(x), -1)


def _mean_activations(view: View, trained: Trained) -> Tensors:
    """Return the mean activations [F] of the client's samples in its trained model."""
    return {"mean": _hidden(view, trained.data.x).double().mean(dim=0)}


def _some_activations(view: View, trained: Trained) -> Tensors:
    """Return activations [n, F] and labels [n] of samples at equal distances."""
    samples = at_equal_distances(trained.data, SHOWN_SAMPLES)
    return {"activations": _hidden(view, samples.x), "labels": samples.y}


class KlActivations(Analysis):
    """KL divergence of the clients' mean activations and their mean, both directions."""

    needs: ClassVar[tuple[Need, ...]] = ("stages", "real_model")
    columns = (Column("kl_mean_client", "smaller"), Column("kl_client_mean", "smaller"))

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of the mean activations."""
        return _mean_activations

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per client: KL(mean || client) and KL(client || mean)."""
        if not evaluated.trained:
            return {}
        clients = sorted(evaluated.trained)
        means = np.stack(
            [evaluated.trained[client]["mean"].numpy() for client in clients]
        )  # [n, F]
        common, of_clients = log_softmax(means.mean(axis=0)), log_softmax(means)
        return {
            "client": np.array(clients),
            "kl_mean_client": np.array(
                [kl_divergence(common, of_client) for of_client in of_clients]
            ),
            "kl_client_mean": np.array(
                [kl_divergence(of_client, common) for of_client in of_clients]
            ),
        }


class Activations(Analysis):
    """Activations of some samples of each client in its trained model, as t-SNE plots need them."""

    needs: ClassVar[tuple[Need, ...]] = ("stages", "classes", "real_model")
    classes: ClassVar[tuple[str, ...]] = ("label",)

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of some samples' activations."""
        return _some_activations

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per sample: client, label and activations."""
        if not evaluated.trained:
            return {}
        values = [(client, evaluated.trained[client]) for client in sorted(evaluated.trained)]
        return {
            "client": np.concatenate([np.full(len(t["labels"]), client) for client, t in values]),
            "label": np.concatenate([t["labels"].numpy() for _, t in values]),
            "activations": np.concatenate([t["activations"].numpy() for _, t in values]),
        }
