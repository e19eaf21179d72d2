"""Scoring: losses of batches, padded or not, and metrics of sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.api.rules import Batch
from raysim.api.scoring import (
    CLASSIFICATION,
    Scoring,
    accuracy,
    balanced_weights,
    predicted_classes,
)


def squared_errors(outputs, targets):
    return (outputs[:, 0] - targets).square()


REGRESSION = Scoring(squared_errors)
OUTPUTS, TARGETS = torch.tensor([[1.0], [4.0], [9.0]]), torch.tensor([0.0, 2.0, 6.0])


def test_a_batch_has_the_loss_of_its_objective():
    batch = Batch(torch.zeros(3, 2), TARGETS, scoring=REGRESSION)
    assert batch.losses(OUTPUTS).tolist() == [1, 4, 9]
    assert batch.loss(OUTPUTS) == pytest.approx(14 / 3)


def test_padding_does_not_count_in_the_loss():
    batch = Batch(torch.zeros(3, 2), TARGETS, torch.tensor([1.0, 0.0, 1.0]), REGRESSION)
    assert batch.loss(OUTPUTS) == pytest.approx((1 + 9) / 2)
    assert batch.size() == 2


def test_a_batch_of_fractions_has_a_whole_size():
    size = Batch(torch.zeros(3, 2), TARGETS, scoring=REGRESSION).size()
    assert size == 3 and size.dtype == torch.int64


def test_a_classification_may_have_a_loss_of_its_own():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])

    def focal(logits, labels):
        p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
        return -(1 - p).square() * p.log()

    batch = Batch(torch.zeros(2, 2), labels, scoring=replace(CLASSIFICATION, losses=focal))
    p = logits.softmax(1)[:, 0]
    assert torch.allclose(batch.loss(logits), (-(1 - p).square() * p.log()).mean())
    assert not torch.allclose(batch.loss(logits), F.cross_entropy(logits, labels))


def test_balanced_weights():
    assert balanced_weights(np.array([0, 1, 0, 0])) == (4 / (2 * 3), 4 / (2 * 1))
    assert balanced_weights(np.array([3, 1, 3, 3, 3])) == (0.0, 5 / (2 * 1), 0.0, 5 / (2 * 4))


def test_predictions_of_an_objective():
    assert REGRESSION.predict(OUTPUTS) is OUTPUTS
    assert predicted_classes(torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0]])).tolist() == [1, 0]
    assert predicted_classes(torch.tensor([[0.1], [-0.1], [0.0]])).tolist() == [1, 0, 0]
    assert accuracy(np.array([1, 0, 2]), np.array([1, 1, 2])) == 2 / 3
