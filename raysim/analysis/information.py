"""Mutual information of labels and outputs, and of a client's trained and received model.

Source: MIFL, sections 3.3 and 5.5, figures 6 and 7. The paper does not say how it computes the
information of labels and outputs: here it is the mutual information of labels and predicted
classes, in nats, which is at most the entropy of the labels.

Legend: n samples.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import nn

from raysim.analysis.base import Analysis, ClientPart, Columns, MeasuredRound, Need
from raysim.analysis.formulas import joint_counts, mutual_information
from raysim.core.rules import Trained, View
from raysim.core.steps import Steps
from raysim.core.tensors import Tensors
from raysim.methods.mifl import logits_of
from raysim.methods.mifl import mutual_information as gaussian_information

MOST_CLIENTS = 1000
"""Most clients on whose training samples outputs are computed; of more, at equal distances."""


def _predictions(view: View, trained: Trained) -> Tensors:
    """Return labels [n] and predicted classes [n] of the client's training samples."""
    predicted = trained.data.scoring.predict(logits_of(view, view.params, trained.data))
    return {"labels": trained.data.y.int(), "predicted": predicted.int()}


def _information(view: View, trained: Trained) -> Tensors:
    """Return -1/2 log(1 - rho^2) of the logits of the trained and of the received model."""
    data = trained.data
    own, received = (logits_of(view, tensors, data) for tensors in (view.params, view.start))
    return {"information": gaussian_information(own, received, data)}


class LabelInformation(Analysis):
    """Mutual information of labels and predicted classes, for training and test samples."""

    needs: ClassVar[tuple[Need, ...]] = ("classes",)

    def rows(self, evaluated: MeasuredRound) -> Steps[Columns]:
        """Return one row: `train` and `test`, in nats."""
        count = min(evaluated.clients, MOST_CLIENTS)
        clients = np.linspace(0, evaluated.clients - 1, count).astype(np.int64).tolist()
        measured = [*(yield from evaluated.measure(_predictions, clients)).values()]
        if not measured:
            return {}
        labels, predicted = (
            np.concatenate([values[name].numpy() for values in measured])
            for name in ("labels", "predicted")
        )
        return {
            "train": np.array([mutual_information(joint_counts(labels, predicted))]),
            "test": np.array(
                [mutual_information(joint_counts(evaluated.targets, evaluated.predicted))]
            ),
        }


class ClientInformation(Analysis):
    """Mutual information of each client's trained model and the one it received, as in MIFL."""

    needs: ClassVar[tuple[Need, ...]] = ("classes",)

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of the information on the client's samples."""
        return _information

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per client."""
        if not evaluated.trained:
            return {}
        clients = sorted(evaluated.trained)
        return {
            "client": np.array(clients),
            "information": np.array([float(evaluated.trained[k]["information"]) for k in clients]),
        }
