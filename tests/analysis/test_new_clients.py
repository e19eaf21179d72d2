"""Clients that join train longer as long as their mean accuracy rises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysim.analysis.accuracy import NewClient

START = {3: 0.25, 8: 0.5}
"""Accuracy of the clients that join before they train."""


def joined(gains: dict[int, dict[int, float]]) -> dict[int, list[int]]:
    """Return the epochs that each client trained; gains are by epochs and client."""

    def accuracy(client: int, epochs: int) -> Any:
        gained = sum(each[client] for number, each in gains.items() if number <= epochs)
        return {"accuracy": torch.tensor(START[client] + gained, dtype=torch.float64)}

    found: Any = SimpleNamespace(
        new_clients=lambda most: [*START],
        measure=lambda part, clients, *_: {c: accuracy(c, 0) for c in clients},
        train=lambda part, client, epochs: {client: accuracy(client, epochs)},
    )
    columns = NewClient().rows(found)
    for client, epochs, figure in zip(
        columns["client"], columns["epochs"], columns["accuracy"], strict=True
    ):
        assert figure == accuracy(client, epochs)["accuracy"]
    return {c: columns["epochs"][columns["client"] == c].tolist() for c in START}


DOUBLED = [0, 1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("gains", "last"),
    [
        ({}, 16),
        ({8: {3: 0.25, 8: 0.25}}, 16),
        ({16: {3: 0.02, 8: 0.02}}, 32),
        ({16: {3: 0.009, 8: 0.009}}, 16),
        ({16: {3: 0.05, 8: -0.05}}, 16),  # the mean of the clients decides
        ({16: {3: 0.03, 8: 0.0}, 32: {3: 0.0, 8: 0.03}}, 64),
        ({number: {3: 0.02, 8: 0.02} for number in (16, 32, 64, 128)}, 128),
        ({number: {3: 0.02, 8: 0.02} for number in (16, 64, 128)}, 32),
    ],
)
def test_epochs_double_until_the_mean_accuracy_has_converged(gains, last):
    expected = DOUBLED[: DOUBLED.index(last) + 1]
    assert joined(gains) == {3: expected, 8: expected}
