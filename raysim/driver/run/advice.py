"""Notes on what a run's figures say and a user may not see in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from raysim.config import Settings
from raysim.core.scoring import CLASSIFICATION
from raysim.federation.federation import Federation
from raysim.storage.recorder import Row
from raysim.storage.summary import LOST

ROUNDS = 10
"""Evaluated rounds after which a run that has learned nothing is noted."""
CLOSE = 1.1
"""Largest accuracy that counts as guessing, as a multiple of that of the most frequent class."""
EQUAL = 0.05
"""Largest relative distance of a training loss from that of guessing that counts as none."""


def guessing_note(rows: Sequence[Row], federation: Federation, settings: Settings) -> str:
    """Return a note on test accuracies that guessing reaches, with the likely cause; "" on others.

    Guessing is to answer the most frequent class of the test set always. The cause is read from the
    training loss: far above the entropy of the classes, steps are too long; at it, clients do not
    learn, either; below it they do, and the mean of their models does not.

    Args:
        rows: The rows of the rounds so far; only the last of ROUNDS evaluated ones has a note.
        federation: The samples.
        settings: The settings.
    """
    if rows[-1].get("test_accuracy") is None:
        return ""
    evaluated = (a for row in rows if (a := row.get("test_accuracy")) is not None)
    accuracies = [*islice(evaluated, ROUNDS + 1)]  # of a long run, no more rows than that takes
    if len(accuracies) != ROUNDS:
        return ""
    counts = np.unique(federation.test_targets, return_counts=True)[1]
    shares = counts / counts.sum()
    if len(shares) < 2 or max(accuracies) > CLOSE * shares.max():
        return ""
    cause = ""
    losses = [loss for row in rows if (loss := row["train_loss"]) is not None]
    if losses and federation.scoring.losses is CLASSIFICATION.losses:
        cause = _cause(losses, float(-(shares * np.log(shares)).sum()), settings)
    return (
        f"after {ROUNDS} evaluations the best test accuracy is {max(accuracies):.2%}; always"
        f" answering the most frequent class has {shares.max():.2%}{cause}"
    )


def _cause(losses: Sequence[float], guessing: float, settings: Settings) -> str:
    """Return the likely cause, from the training losses and that of guessing."""
    lr, last = f"local.lr={settings.local.lr:g}", losses[-1]
    found = f"; the train loss is {last:.3f}, that of guessing {guessing:.3f}"
    if max(losses) > (1 + EQUAL) * guessing:
        return f"{found}: it was {max(losses):.3g}, steps may be too long; try less than {lr}"
    if last > (1 - EQUAL) * guessing:
        return f"{found}: clients learn nothing yet; try more than {lr}, or more local.epochs"
    return (
        f"{found}: clients learn their own samples, and the mean of their models does not; try a"
        f" larger fraction, fewer local.epochs or less than {lr}"
    )


def deadline_note(rows: Sequence[Row], settings: Settings) -> str:
    """Return a note on a deadline that no client missed; "" where one did, or without any.

    Args:
        rows: The rows of all rounds.
        settings: The settings.
    """
    policy = settings.clock.server_policy
    if policy.name != "deadline" or any(row.get(LOST) for row in rows):
        return ""
    longest = max(row["virtual_seconds"] for row in rows)
    return (
        f"clock.deadline={policy.deadline:g}: no client missed it; the longest round took"
        f" {longest:.1f} virtual seconds"
    )
