"""Decision regions in the plane of the inputs, of the clients' models and of the global one.

Source: FLex&Chill, section 3.1.3 and figure 3. Chosen here: a square grid of GRID x GRID points
over the range of some test samples, widened by MARGIN of it, and at most SHOWN samples of a client.

Legend: n samples, N points of the grid.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raysim.analysis.base import (
    Analysis,
    ClientPart,
    Columns,
    Extra,
    MeasuredRound,
    Need,
    at_equal_distances,
    outputs,
)
from raysim.api.rules import Trained, View
from raysim.numbers.tensors import Tensors

GRID, MARGIN, SHOWN = 60, 0.1, 100
GLOBAL = -1
"""Number of the global model among the clients."""


class DecisionRegions(Analysis):
    """Predicted classes on a grid over inputs of two numbers, by client and global model.

    Rows of `kind` "point" have the predicted class at a point of the grid, rows of "sample" a
    training sample with its class; the client is -1 for the global model after the round.
    """

    needs: ClassVar[tuple[Need, ...]] = ("classes", "two_inputs")
    classes: ClassVar[tuple[str, ...]] = ("label",)
    extras: ClassVar[tuple[Extra, ...]] = ("probe",)

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of the client's trained model, and some of its samples."""
        return _of_client

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per model and point, and per client and sample."""
        if not evaluated.trained:
            return {}
        shared = evaluated.measure(
            partial(_predicted, "model"), evaluated.cohort[:1], {"probe": evaluated.probe}
        )
        models = {client: t["predicted"] for client, t in sorted(evaluated.trained.items())}
        for figures in shared.values():
            models[GLOBAL] = figures["predicted"]
        points = grid(evaluated.probe["x"].flatten(1))
        rows = [(c, "point", points, predicted) for c, predicted in models.items()]
        rows += [(c, "sample", t["x"], t["y"]) for c, t in sorted(evaluated.trained.items())]
        return {
            "client": np.concatenate([np.full(len(y), client) for client, _, _, y in rows]),
            "kind": np.concatenate([np.full(len(y), kind) for _, kind, _, y in rows]),
            "x1": np.concatenate([x[:, 0].numpy() for _, _, x, _ in rows]),
            "x2": np.concatenate([x[:, 1].numpy() for _, _, x, _ in rows]),
            "label": np.concatenate([y.numpy() for *_, y in rows]),
        }


def grid(x: Tensor) -> Tensor:
    """Return points [N, 2] over the range of inputs [n, 2]; the first coordinate changes last."""
    low, high = x.amin(0), x.amax(0)
    margin = MARGIN * (high - low)
    axes = [
        torch.linspace(float(a), float(b), GRID, dtype=x.dtype)
        for a, b in zip(low - margin, high + margin, strict=True)
    ]
    return torch.cartesian_prod(*axes)


def _of_client(view: View, trained: Trained) -> Tensors:
    """Return predictions of the client's model [N], and samples x [n, 2] of classes y [n]."""
    samples = at_equal_distances(trained.data, SHOWN)
    return {**_predicted("", view, trained), "x": samples.x.flatten(1), "y": samples.y}


def _predicted(group: str, view: View, trained: Trained) -> Tensors:
    """Return the classes [N] that a model predicts: of a broadcast group, or else the client's."""
    probe = view.broadcast["probe"]["x"]
    points = grid(probe.flatten(1).cpu()).to(probe.device).view(-1, *probe.shape[1:])
    tensors = view.broadcast[group] if group else view.params
    predict = trained.samples.scoring.predict
    classes = [predict(output.logits) for output in outputs(view, tensors, points)]
    return {"predicted": torch.cat(classes)}
