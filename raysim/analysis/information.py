"""Mutual information of labels and outputs, and of a client's trained and received model.

Source: MIFL, sections 3.3, 5.4 and 5.5, figures 6 and 7. The paper does not say how it computes the
information of labels and logits of section 5.4. Two readings are measured: the mutual information
of labels and predicted classes, in nats, which is at most the entropy of the labels; and eq. 5,
-1/2 log(1 - rho^2), of logits and labels that are taken for Gaussian, labels as one number a class,
1 for the own one. rho is over samples and classes, each class around its mean.

Legend: n samples, C classes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.analysis.base import Analysis, ClientPart, Columns, MeasuredRound, Need, outputs
from raysim.analysis.formulas import joint_counts, mutual_information
from raysim.api.rules import Trained, View
from raysim.methods.mifl import RHO_LIMIT, logits_of
from raysim.methods.mifl import mutual_information as gaussian_information
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Tensors

MOST_CLIENTS = 1000
"""Most clients with outputs on their training samples; more clients are evenly spaced."""


def _predictions(view: View, trained: Trained) -> Tensors:
    """Return labels [n] and predicted classes [n] of the client's training samples, and moments."""
    logits = logits_of(view, view.params, trained.data)
    predicted = trained.data.scoring.predict(logits)
    labels = trained.data.y
    moments = _moments(logits, labels)
    return {"labels": labels.int(), "predicted": predicted.int(), "moments": moments}


def _of_probe(view: View, trained: Trained) -> Tensors:
    """Return the moments of the logits of the probe, and its labels."""
    probe = view.broadcast["probe"]
    logits = [part.logits for part in outputs(view, view.params, probe["x"])]
    return {"moments": _moments(torch.cat(logits), probe["y"])}


def _moments(logits: Tensor, labels: Tensor) -> Tensor:
    """Return sums over samples of 1, y, f, y f, y^2, f^2 [6, C] of logits f [n, C] and labels y."""
    f = logits.double()
    if f.shape[-1] == 1:
        y = labels.double().reshape(-1, 1)
    else:
        y = F.one_hot(labels.long(), f.shape[-1]).double()
    return torch.stack([torch.ones_like(f), y, f, y * f, y * y, f * f]).sum(dim=1)


def _gaussian(moments: Array) -> float:
    """Return -1/2 log(1 - rho^2) of labels and logits, given their moments [6, C]."""
    count, y, f, both, squared_y, squared_f = moments
    covariance = (both - y * f / count).sum()
    scale = (squared_y - y * y / count).sum() * (squared_f - f * f / count).sum()
    rho = covariance / np.sqrt(scale) if scale > 0 else 0.0
    return float(-0.5 * np.log(1 - min(abs(rho), RHO_LIMIT) ** 2))


def _information(view: View, trained: Trained) -> Tensors:
    """Return -1/2 log(1 - rho^2) of the logits of the trained and of the received model."""
    data = trained.data
    after, received = (logits_of(view, tensors, data) for tensors in (view.params, view.start))
    return {"information": gaussian_information(after, received, data)}


class LabelInformation(Analysis):
    """Mutual information of labels with predicted classes and with logits, in nats.

    The one with logits takes both for Gaussian; on test samples it uses the probe's.
    """

    needs: ClassVar[tuple[Need, ...]] = ("classes", "predicted_classes")

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return one row: `train`, `test`, and of logits `train_gaussian` and `test_gaussian`."""
        everyone = evaluated.everyone
        places = np.linspace(0, len(everyone) - 1, min(len(everyone), MOST_CLIENTS))
        clients = [everyone[place] for place in places.astype(np.int64)]
        measured = [*evaluated.measure(_predictions, clients).values()]
        if not measured:
            return {}
        moments = np.stack([values["moments"].numpy() for values in measured])
        groups = {"probe": evaluated.probe}
        [probed] = evaluated.measure(_of_probe, clients[:1], groups).values()
        labels, predicted = (
            np.concatenate([values[name].numpy() for values in measured])
            for name in ("labels", "predicted")
        )
        return {
            "train": np.array([mutual_information(joint_counts(labels, predicted))]),
            "test": np.array(
                [mutual_information(joint_counts(evaluated.targets, evaluated.predicted))]
            ),
            "train_gaussian": np.array([_gaussian(moments.sum(axis=0))]),
            "test_gaussian": np.array([_gaussian(probed["moments"].numpy())]),
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
