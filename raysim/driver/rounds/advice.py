"""Notes on what a run's figures say and a user may not see in them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from raysim.api.method import Method
from raysim.api.scoring import CLASSIFICATION
from raysim.config import LocalSettings, Settings
from raysim.federation.federation import Federation, open_samples
from raysim.federation.opened import OpenedSamples
from raysim.numbers.arrays import Floats
from raysim.numbers.seeds import seeded
from raysim.samples.client_indices import class_counts
from raysim.storage.recorder import Row
from raysim.storage.summary import LOST
from raysim.training.network import Network

ROUNDS = 10
"""Evaluated rounds after which a run that has learned nothing is noted."""
CLOSE = 1.1
"""Largest accuracy, or macro F1, that counts as guessing, as a multiple of that of guessing."""
EQUAL = 0.05
"""Largest relative change of a loss that counts as none."""
STILL = 1e-3
"""The same, of a test loss between all rounds, if the model is hardly moved."""
STEADY = 0.8
"""Least part of the rounds in which a test loss falls, if it is moved into one direction."""
GROWN = 2.0
"""Growth of the training loss in a round, as a multiple of the first one, from too long steps."""
RISEN = 1.2
"""The same, of the mean of the later half of the rounds."""
CLIENTS = 50
"""Clients whose classes are counted."""
DEVIATIONS = 4.0
"""Standard deviations by which these differ more than by chance."""
BELOW = 0.99
"""Largest multiple of the loss of guessing that a loss has if inputs tell of the class."""
HINDERS = {
    "temperature": ("less", 10.0),
    "weight_decay": ("less", 0.1),
    "label_smoothing": ("less", 0.9),
    "eps": ("less", 0.01),
    "clip_norm": ("more", 0.1),
}
"""Settings of clients that hold them back where they are this large or small, and the way out."""
BLOCKS, BLOCK = 5, 50
"""Blocks of test samples on which the loss before training is taken, and samples of each."""


def guessing_note(
    rows: Sequence[Row], federation: Federation, network: nn.Module, settings: Settings
) -> str:
    """Return a note on test accuracies that guessing reaches, with the likely cause; "" on others.

    Guessing is to answer the most frequent class of the test set always. Answers that do not look
    at the inputs have a macro F1 of 1 / C at most; where one class has most samples, they are known
    by that. The cause is read from how losses move from that of the network before training
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
    return said + _cause(rows, began, shares, settings, federation)


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
    return not (changed or settings.aggregation.sees_updates or settings.method.privacy)


def _cause(
    rows: Sequence[Row],
    began: float,
    shares: Floats,
    settings: Settings,
    federation: Federation,
) -> str:
    """Return the likely cause, from the loss before training and those since; "" if unknown.

    In order: a train loss that has grown is of too long steps. A test loss that creeps is of a
    server whose steps are too short, where clients learn, or else of what holds clients back: a
    setting such as weight decay, or too short or too few steps. Where the train loss falls and the
    test loss does not, the mean of models of clients with other classes learns nothing; where both
    still fall, the model learns slowly. In all other cases the cause is unknown. So it is where
    the test loss falls towards that of guessing, as it does if labels have nothing to do with
    inputs, too.

    Args:
        rows: The rows of the rounds so far.
        began: The loss before training.
        shares: Shares of the classes in the test set [C].
        settings: The settings.
        federation: The samples.
    """
    losses, tests = (
        [loss for row in rows if (loss := row.get(name)) is not None]
        for name in ("train_loss", "test_loss")
    )
    if min(len(losses), len(tests)) < ROUNDS or not math.isfinite(began):
        return ""
    late, clients = _late(losses), _rate("local.", "lr", settings.local)
    server = [*_rates_of_server(settings)]
    rates = [clients, *server]
    short = [rate for rate in rates if rate.value < rate.usual] or rates
    held, guessed = [*_hindering(settings.local)], -float(shares @ np.log(shares))
    known = not BELOW * guessed <= _late(tests) <= (1 + EQUAL) * guessed
    said, still = "", _late(tests) > (1 - EQUAL) * began
    creeps = still and (_stays(tests) or (known and _creeps(tests)))
    learns = late < (1 - EQUAL) * began
    if max(losses) > GROWN * began or late > RISEN * began:
        long = [rate for rate in rates if rate.value > rate.usual] or rates
        said = f", at most {max(losses):.3g}: steps may be too long; try less than {_either(long)}"
    elif creeps and server and (learns or clients not in short):
        said = f": the server hardly moves the model; try more than {_either(server)}"
    elif creeps and abs(late - began) < EQUAL * began:
        more = f"more than {_either(short)}, or more {_work(settings.local)}"
        said = f": clients learn nothing yet; try {_either(held) if held else more}"
    elif learns and still and _differ(federation):
        said = (
            ": clients learn their own samples, and the mean of their models does not; try"
            f" {_either(_closer(settings))}"
        )
    elif known and late < began and _falls(losses) and _falls(tests):
        said = ", and the test loss falls as well: the model learns slowly; try more rounds"
        if held:
            said += f", or {_either(held)}"
        elif began < GROWN * np.log(len(shares)):  # else steps may be long already
            said += f", or more than {_either(short)}"
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


def _stays(losses: Sequence[float]) -> bool:
    """Return whether a loss stays where it is."""
    return float(np.ptp(losses)) < STILL * abs(losses[0])


def _creeps(losses: Sequence[float]) -> bool:
    """Return whether a loss falls in nearly every round."""
    return float(np.mean(np.diff(losses) < 0)) >= STEADY


def _differ(federation: Federation) -> bool:
    """Return whether clients have other shares of the classes than chance would give them."""
    labels, held = open_samples(federation.train).y, federation.client_indices
    some = np.arange(min(len(held.sizes), CLIENTS))
    counts = class_counts(held, labels, int(labels.max()) + 1, some)
    counts = counts[:, counts.any(axis=0)][counts.any(axis=1)]
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    squared = float(((counts - expected) ** 2 / expected).sum())  # by chance: chi-squared
    return bool(squared > freedom + DEVIATIONS * math.sqrt(2 * freedom))


class _Rate(NamedTuple):
    """A learning rate: its setting, value, and default, NaN without one."""

    key: str
    value: float
    usual: float

    def __str__(self) -> str:
        return f"{self.key}={self.value:g}"


def _rates_of_server(settings: Settings) -> Iterator[_Rate]:
    if settings.server.rate is not None:
        yield _rate("server.", "lr", settings.server)
    yield from _rates_of(settings.method)


def _rates_of(method: Method, prefix: str = "method.") -> Iterator[_Rate]:
    """Yield the learning rates of a method's server, and of those that it is made of."""
    if method.server_rate:
        yield _rate(prefix, method.server_rate, method)
    for name, value in method:
        parts = value.items() if isinstance(value, Mapping) else ()
        for title, part in parts:
            if isinstance(part, Method):
                yield from _rates_of(part, f"{prefix}{name}.{title}.")


def _rate(prefix: str, name: str, group: BaseModel) -> _Rate:
    value, usual = getattr(group, name), type(group).model_fields[name].default
    return _Rate(prefix + name, value, usual if type(usual) in (int, float) else math.nan)


def _hindering(local: LocalSettings) -> Iterator[str]:
    """Yield the way out of settings that hold clients back, if they are far from their defaults."""
    for name, (way, limit) in HINDERS.items():
        value = getattr(local, name)
        if value is not None and (value <= limit if way == "more" else value >= limit):
            yield f"{way} than {_rate('local.', name, local)}"


def _work(local: LocalSettings) -> str:
    return "local.epochs" if local.steps is None else "local.steps"


def _closer(settings: Settings) -> Iterator[str]:
    """Yield what brings the models of a round's clients closer to each other."""
    if settings.cohort_size < len(settings.participants):
        yield "a larger fraction"
    if (settings.local.steps or settings.local.epochs) > 1:
        yield f"fewer {_work(settings.local)}"
    yield f"less than {_rate('local.', 'lr', settings.local)}"


def _either(ways: Iterable[object]) -> str:
    *others, last = map(str, ways)
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
