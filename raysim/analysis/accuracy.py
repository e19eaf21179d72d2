"""Accuracies of clients on their own test samples.

Sources: FLex&Chill, figure 7 (accuracy before and after the aggregation); FedFusion, figure 6 (a
client that joins). `evaluation.clients` gives clients their own test samples.

Legend: n clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from raysim.analysis.base import (
    Analysis,
    ClientPart,
    Columns,
    Extra,
    MeasuredRound,
    Need,
    outputs,
    own_test,
)
from raysim.api.columns import Column
from raysim.api.rules import Trained, View
from raysim.numbers.tensors import Tensors

NEW_CLIENTS, EPOCHS = 3, (1, 2, 4, 8, 16, 32, 64, 128)
"""Clients that join, drawn by the seed among clients that never took part; their local epochs."""
LEAST_EPOCHS, CONVERGED = 16, 0.01
"""Least number of epochs, and the gain of the mean accuracy below which training has converged: by
the last doubling, and to the largest mean."""


def own_accuracy(view: View, trained: Trained) -> Tensors:
    """Return the accuracy of the client's present model on its own test samples."""
    samples = own_test(view)
    if not samples:
        return {}
    logits = torch.cat([output.logits for output in outputs(view, view.params, samples["x"])])
    predicted = trained.data.scoring.predict(logits)
    return {"accuracy": (predicted == samples["y"]).double().mean()}


class AggregationDrop(Analysis):
    """Accuracy of each client before and after the aggregation.

    Before it, a participant has its trained model, any other client the global model of the
    previous round; after it, all have the new global model. Models that clients keep for themselves
    (Ditto) are left out: they are not aggregated. A client of the cohort has no row if it was
    dropped, or if its trained model could not be measured.
    """

    needs: ClassVar[tuple[Need, ...]] = ("classes", "client_accuracy")
    extras: ClassVar[tuple[Extra, ...]] = ("own_test",)
    columns = (
        Column("accuracy_before", "larger", "%"),
        Column("accuracy_after", "larger", "%"),
    )

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of the trained model's accuracy."""
        return own_accuracy

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per evaluated client: whether it took part, and both accuracies."""
        after = evaluated.accuracy()
        participants = {
            client: float(values["accuracy"]) for client, values in evaluated.trained.items()
        }
        others = evaluated.accuracy_before().items()
        before = participants | {c: value for c, value in others if c not in evaluated.cohort}
        clients = [client for client in sorted(after) if client in before]
        return {
            "client": np.array(clients),
            "participant": np.array([client in participants for client in clients]),
            "accuracy_before": np.array([before[client] for client in clients]),
            "accuracy_after": np.array([after[client] for client in clients]),
        }


class NewClient(Analysis):
    """Accuracy of clients that never took part, by the epochs that they train when they join.

    A client starts from the global model and trains alone, by the method's own rules. The last
    model that it trains is measured: its own where the method trains one (Ditto). The number of
    epochs doubles until the mean accuracy has converged. There are no rows once all clients have
    taken part.
    """

    needs: ClassVar[tuple[Need, ...]] = ("classes", "client_accuracy")
    columns = (Column("epochs", "smaller"), Column("accuracy", "larger", "%"))

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per new client and number of epochs, from 0."""
        clients = [*evaluated.new_clients(NEW_CLIENTS)]
        if not clients:
            return {}
        measured = evaluated.measure(own_accuracy, clients, {}, ("own_test",))
        accuracies = {
            (client, 0): float(figures["accuracy"]) for client, figures in measured.items()
        }
        mean = math.nan
        for epochs in EPOCHS:
            joined = _joined(evaluated, clients, epochs)
            accuracies |= {(client, epochs): share for client, share in joined.items()}
            before, mean = mean, fmean(joined.values()) if joined else math.nan
            if epochs >= LEAST_EPOCHS and mean - before < CONVERGED:
                break
        keys = sorted(accuracies)
        return {
            "client": np.array([client for client, _ in keys]),
            "epochs": np.array([epochs for _, epochs in keys]),
            "accuracy": np.array([accuracies[key] for key in keys]),
        }


def _joined(evaluated: MeasuredRound, clients: Sequence[int], epochs: int) -> dict[int, float]:
    """Return the accuracy of each client that joins, after `epochs` local epochs."""
    values: dict[int, float] = {}
    for client in clients:
        trained = evaluated.train(own_accuracy, client, epochs)
        if client in trained:
            values[client] = float(trained[client]["accuracy"])
    return values
