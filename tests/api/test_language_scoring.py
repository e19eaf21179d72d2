"""Scoring of language models, by hand: tokens that count, exact answers, choices by likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim
from raysim.api.scoring import IGNORED, LANGUAGE_MODEL, NO_QUESTION, multiple_choice

P = [0.5, 0.25, 0.125, 0.125]
"""Probabilities of the four tokens at every position."""


def logits_of(rows, positions):
    return torch.tensor(P, dtype=torch.float64).log().expand(rows, positions, len(P))


def scores(scoring, targets, positions):
    figures = scoring.compared(logits_of(len(targets), positions), targets).numpy()
    metrics = scoring.metrics.items()
    return {name: metric(figures, targets.numpy()) for name, metric in metrics}


def test_a_batch_s_loss_is_divided_by_its_tokens_that_count():
    targets = torch.tensor([[0, 1, 2, IGNORED], [IGNORED, 0, IGNORED, IGNORED], [IGNORED] * 4])
    batch = raysim.Batch(torch.zeros(3, 4), targets, scoring=LANGUAGE_MODEL)
    bits = np.log(2) * np.array([1 + 2 + 3, 1, 0])
    assert batch.losses(logits_of(3, 4)).tolist() == pytest.approx(bits.tolist())
    assert float(batch.loss(logits_of(3, 4))) == pytest.approx(bits.sum() / 4)
    padded = batch._replace(weights=torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))
    assert float(padded.loss(logits_of(3, 4))) == pytest.approx(np.log(2))
    nothing = batch._replace(y=torch.full((3, 4), IGNORED))
    assert float(nothing.loss(logits_of(3, 4))) == 0
    assert batch.losses(logits_of(3, 3)).tolist() == pytest.approx(bits.tolist())  # cut
    found = scores(LANGUAGE_MODEL, targets, 3)
    assert found == pytest.approx({"perplexity": 2**1.75, "accuracy": 2 / 4, "exact_match": 1 / 2})
    empty = scores(LANGUAGE_MODEL, nothing.y, 4)
    assert np.isnan([*empty.values()]).all()


@pytest.mark.parametrize(("by_length", "right"), [(True, 1 / 2), (False, 0)])
def test_the_likeliest_answer_is_chosen(by_length, right):
    rows = [  # question 7: 3 bits of one token, 2 a token of two; question 2: the first of a tie
        ([2, IGNORED, IGNORED], 7, 0),
        ([0, 2, IGNORED], 7, 1),
        ([1, IGNORED, 1], 2, 0),
        ([1, 1, IGNORED], 2, 1),
        ([0, 0, 0], NO_QUESTION, 1),
    ]
    order = [4, 0, 2, 3, 1]
    targets = torch.tensor([[*tokens, question, good] for tokens, question, good in rows])[order]
    scoring = multiple_choice(by_length=by_length)
    found = scores(scoring, targets, 3)
    assert found["choice_accuracy"] == right
    tokens = 1 + 3 + 2 + 2 + 1 + 1 + 1  # bits of the right answers
    assert found["perplexity"] == pytest.approx(2 ** (tokens / 7))
    assert found["exact_match"] == 1 / 3
    batch = raysim.Batch(torch.zeros(5, 3), targets, scoring=scoring)
    assert float(batch.loss(logits_of(5, 3))) == pytest.approx(np.log(2) * tokens / 7)
