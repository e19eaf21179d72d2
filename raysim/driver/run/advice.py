"""Notes on what a run's figures say and a user may not see in them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.core.scoring import CLASSIFICATION
from raysim.core.seeds import seeded
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.storage.recorder import Row
from raysim.storage.summary import LOST
from raysim.training.network import Network

ROUNDS = 10
"""Evaluated rounds after which a run that has learned nothing is noted."""
CLOSE = 1.1
"""Largest accuracy, or macro F1, that counts as guessing, as a multiple of that of guessing."""
EQUAL = 0.05
"""Largest relative change of a loss that counts as none."""
GROWN = 2.0
"""Growth of the training loss in a round, as a multiple of the first one, from too long steps."""
RISEN = 1.2
"""The same, of the mean of the later half of the rounds."""
BLOCKS, BLOCK = 5, 50
"""Blocks of test samples on which the loss before training is taken, and samples of each."""


def guessing_note(
    rows: Sequence[Row], federation: Federation, network: nn.Module, settings: Settings
) -> str:
    """Return a note on test accuracies that guessing reaches, with the likely cause; "" on others.

    Guessing is to answer the most frequent class of the test set always. Answers that do not look
    at the inputs have a macro F1 of 1 / C at most, which tells them from others where one class has
    most samples. The cause is read from how losses move from that of the network before training
    (`_cause`). A model that no client deploys is not noted.

    Args:
        rows: The rows of the rounds so far; only the last of ROUNDS evaluated ones has a note.
        federation: The samples.
        network: The network as it was built.
        settings: The settings.
    """
    if rows[-1].get("test_accuracy") is None or settings.method.deploys_client_models:
        return ""
    evaluated = (row for row in rows if row.get("test_accuracy") is not None)
    scored = [*islice(evaluated, ROUNDS + 1)]  # of a long run, no more rows than that takes
    if len(scored) != ROUNDS:
        return ""
    counts = np.unique(federation.test_targets, return_counts=True)[1]
    shares = counts / counts.sum()
    best = max(row["test_accuracy"] for row in scored)
    macro = max(row.get("test_macro_f1") or 0.0 for row in scored)
    if len(shares) < 2 or best > CLOSE * shares.max() or macro > CLOSE / len(shares):
        return ""
    said = (
        f"after {ROUNDS} evaluations the best test accuracy is {best:.2%}; always answering the"
        f" most frequent class has {shares.max():.2%}"
    )
    if shares.max() > 0.5 and macro:
        guessed = 2 * shares.max() / (1 + shares.max()) / len(shares)
        said += (
            f" (test_macro_f1: {macro:.2%} and {guessed:.2%}; it tells more where one class has"
            " most samples)"
        )
    if federation.scoring.losses is not CLASSIFICATION.losses or not _is_plain(settings):
        return said
    began = _loss_before(federation, network, settings.seed)
    return said + _cause(rows, began, len(shares), settings)


def _loss_before(federation: Federation, network: nn.Module, seed: int) -> float:
    """Return the loss of a network before training, on some test samples, as it would train."""
    samples, count = OpenedSamples(federation, torch.device("cpu")), len(federation.test_targets)
    copied = Network(copy.deepcopy(network)).train()
    losses = list[Tensor]()
    with seeded(seed, "advice"), torch.no_grad():
        for start in range(0, count, max(count // BLOCKS, BLOCK)):
            part = samples.test(start, min(start + BLOCK, count))
            if len(part.y) > 1:  # BatchNorm does not train on one
                losses.append(part.losses(copied(part.x.clone()).in_float32().logits))
    return float(torch.cat(losses).mean()) if losses else float("nan")


def _is_plain(settings: Settings) -> bool:
    """Return whether nothing but clients' training and its mean moves the model."""
    changed = settings.attack.acts or settings.stages or settings.down_stages
    return not changed and not settings.aggregation.sees_updates


def _cause(rows: Sequence[Row], began: float, classes: int, settings: Settings) -> str:
    """Return the likely cause, from the loss before training and those since; "" if unknown.

    In order: a train loss that has grown is of too long steps; one that has not moved is of too
    short or too few. Where it falls and the test loss does not, the mean of the clients' models
    learns nothing; where both still fall, the model learns slowly.

    Args:
        rows: The rows of the rounds so far.
        began: The loss before training.
        classes: Number of classes of the test set.
        settings: The settings.
    """
    losses, tests = (
        [loss for row in rows if (loss := row.get(name)) is not None]
        for name in ("train_loss", "test_loss")
    )
    if min(len(losses), len(tests)) < ROUNDS or not isfinite(began):
        return ""
    said, late, rates = "", _late(losses), _either(_rates(settings))
    if max(losses) > GROWN * began or late > RISEN * began:
        said = f", at most {max(losses):.3g}: steps may be too long; try less than {rates}"
    elif abs(late - began) < EQUAL * began:
        said = f": clients learn nothing yet; try more than {rates}, or more {_work(settings)}"
    elif late < began and _late(tests) > (1 - EQUAL) * began:
        said = (
            ": clients learn their own samples, and the mean of their models does not; try"
            f" {_either(_closer(settings))}"
        )
    elif late < began and _falls(losses) and _falls(tests):
        said = ", and the test loss falls as well: the model learns slowly; try more rounds"
        if began < GROWN * np.log(classes):  # else inputs may be large, and steps long already
            said += f", or more than {rates}"
    if not said:
        return ""
    return f"; the train loss was {began:.3g} before training and is {losses[-1]:.3g}{said}"


def _late(losses: Sequence[float]) -> float:
    """Return the mean of the later half."""
    return float(np.mean(losses[len(losses) // 2 :]))


def _falls(losses: Sequence[float]) -> bool:
    """Return whether the mean of the last third is below that of the third before it."""
    third = len(losses) // 3
    return float(np.mean(losses[-third:])) < 0.99 * float(np.mean(losses[-2 * third : -third]))


def _rates(settings: Settings) -> Iterator[str]:
    """Yield the learning rates of clients, and of the method."""
    yield f"local.lr={settings.local.lr:g}"
    for name, value in settings.method:
        if "lr" in name.split("_"):
            yield f"method.{name}={value:g}"


def _work(settings: Settings) -> str:
    return "local.epochs" if settings.local.steps is None else "local.steps"


def _closer(settings: Settings) -> Iterator[str]:
    """Yield what brings the models of a round's clients closer to each other."""
    if settings.cohort_size < len(settings.participants):
        yield "a larger fraction"
    if (settings.local.steps or settings.local.epochs) > 1:
        yield f"fewer {_work(settings)}"
    yield f"less than local.lr={settings.local.lr:g}"


def _either(ways: Iterable[str]) -> str:
    *others, last = ways
    return f"{', '.join(others)} or {last}" if others else last


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
