"""Notes on figures of a run that a user may overlook."""

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
from raysim.clock.base import Clock
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
"""Evaluated rounds after which a run that has learned nothing gets a note."""
CLOSE = 1.1
"""Largest accuracy or macro F1 that counts as guessing, as a multiple of the guesser's."""
EQUAL = 0.05
"""Largest relative change of a loss that counts as no change."""
STILL = 1e-3
"""Largest relative range of a test loss over the rounds if the model hardly moves."""
STEADY = 0.8
"""Least fraction of rounds in which a test loss falls if the model moves in one direction."""
GROWN = 2.0
"""Largest loss of a round, as a multiple of the loss before training, without too long steps."""
RISEN = 1.2
"""Largest mean loss of the later half of the rounds, as a multiple of that before training."""
CLIENTS = 50
"""Clients whose classes are counted."""
DEVIATIONS = 4.0
"""Standard deviations beyond which the clients' class counts differ by more than chance."""
BELOW = 0.99
"""Largest multiple of the guesser's loss that shows that inputs tell of the class."""
HINDERS = {
    "temperature": ("less", 10.0),
    "weight_decay": ("less", 0.1),
    "label_smoothing": ("less", 0.9),
    "eps": ("less", 0.01),
    "clip_norm": ("more", 0.1),
}
"""Local settings that hold clients back at this value or beyond, with the remedy."""
BLOCKS, BLOCK = 5, 50
"""Blocks of test samples for the loss before training, and samples of each."""


def guessing_note(
    rows: Sequence[Row], federation: Federation, network: nn.Module, settings: Settings
) -> str:
    """Return a note if guessing reaches the run's test accuracy, with the likely cause.

    A guesser always answers the most frequent class of the test set. Answers that ignore the inputs
    have a macro F1 of at most 1 / C, so the macro F1 detects them where one class has most samples.
    The cause follows from the losses before and during training (`_cause`). The note is empty if
    the accuracy is higher, or if no client deploys the model.

    Args:
        rows: The rows of the rounds so far; the last of ROUNDS evaluated rounds gets the note.
        federation: The samples.
        network: The network as it was built.
        settings: The settings.
    """
    if rows[-1].get("test_accuracy") is None or settings.method.deploys_client_models:
        return ""
    evaluated = (row for row in rows if row.get("test_accuracy") is not None)
    scored = [*islice(evaluated, ROUNDS + 1)]  # a long run has many more rows
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
    """Return the loss of an untrained network on test samples, in training mode."""
    samples, count = OpenedSamples(federation, torch.device("cpu")), len(federation.test_targets)
    copied = Network(copy.deepcopy(network))
    copied.train_only(None)  # copies share the base, whose statistics stay as they are
    losses = list[Tensor]()
    with seeded(seed, "advice"), torch.no_grad():
        for start in range(0, count, max(count // BLOCKS, BLOCK)):
            part = samples.test(start, min(start + BLOCK, count))
            if len(part.y) > 1:  # BatchNorm needs two samples in training mode
                losses.append(part.losses(copied(part.x.clone()).in_float32().logits))
    return float(torch.cat(losses).mean()) if losses else float("nan")


def _is_plain(settings: Settings) -> bool:
    """Return whether only the mean of the clients' training moves the model."""
    changed = settings.attack.acts or settings.stages or settings.down_stages
    return not (changed or settings.aggregation.sees_updates or settings.method.privacy)


def _cause(
    rows: Sequence[Row],
    began: float,
    shares: Floats,
    settings: Settings,
    federation: Federation,
) -> str:
    """Return the likely cause, from the losses before and during training; "" if unknown.

    The causes, in order:

    - The training loss has grown: the steps are too long.
    - The test loss hardly moves and clients learn: the server's steps are too short.
    - The test loss hardly moves and clients do not learn: a setting such as weight decay holds them
      back, or their steps are too short or too few.
    - The training loss falls and the test loss does not: clients have different classes, and the
      mean of their models learns nothing.
    - Both losses still fall: the model learns slowly.

    The cause is unknown otherwise. It is also unknown if the test loss falls towards the guesser's,
    because that happens with labels that do not depend on the inputs, too.

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
        elif began < GROWN * np.log(len(shares)):  # otherwise steps may be too long already
            said += f", or more than {_either(short)}"
    if not said:
        return ""
    return f"; the train loss was {began:.3g} before training and is {losses[-1]:.3g}{said}"


def _late(losses: Sequence[float]) -> float:
    """Return the mean of the later half of the losses."""
    return float(np.mean(losses[len(losses) // 2 :]))


def _falls(losses: Sequence[float]) -> bool:
    """Return whether the mean of the last third is below the mean of the third before it."""
    third = len(losses) // 3
    return float(np.mean(losses[-third:])) < 0.99 * float(np.mean(losses[-2 * third : -third]))


def _stays(losses: Sequence[float]) -> bool:
    """Return whether a loss hardly changes."""
    return float(np.ptp(losses)) < STILL * abs(losses[0])


def _creeps(losses: Sequence[float]) -> bool:
    """Return whether a loss falls in nearly every round."""
    return float(np.mean(np.diff(losses) < 0)) >= STEADY


def _differ(federation: Federation) -> bool:
    """Return whether the clients' shares of classes differ by more than chance."""
    labels, held = open_samples(federation.train).y, federation.client_indices
    some = np.arange(min(len(held.sizes), CLIENTS))
    counts = class_counts(held, labels, int(labels.max()) + 1, some)
    counts = counts[:, counts.any(axis=0)][counts.any(axis=1)]
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    squared = float(((counts - expected) ** 2 / expected).sum())  # by chance: chi-squared
    return bool(squared > freedom + DEVIATIONS * math.sqrt(2 * freedom))


class _Rate(NamedTuple):
    """A learning rate: its setting, its value, and its default, or NaN without one."""

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
    """Yield the rates of a method's server, and of the methods that it combines."""
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
    """Yield remedies for settings that hold clients back."""
    for name, (way, limit) in HINDERS.items():
        value = getattr(local, name)
        if value is not None and (value <= limit if way == "more" else value >= limit):
            yield f"{way} than {_rate('local.', name, local)}"


def _work(local: LocalSettings) -> str:
    return "local.epochs" if local.steps is None else "local.steps"


def _closer(settings: Settings) -> Iterator[str]:
    """Yield remedies that bring the models of a round's clients closer to each other."""
    if settings.cohort_size < len(settings.participants):
        yield "a larger fraction"
    if (settings.local.steps or settings.local.epochs) > 1:
        yield f"fewer {_work(settings.local)}"
    yield f"less than {_rate('local.', 'lr', settings.local)}"


def _either(ways: Iterable[object]) -> str:
    *others, last = map(str, ways)
    return f"{', '.join(others)} or {last}" if others else last


def deadline_note(rows: Sequence[Row], clock: Clock) -> str:
    """Return a note if no client missed the deadline; "" if one did, or without a deadline.

    Args:
        rows: The rows of all rounds.
        clock: The run's clock.
    """
    policy = clock.server_policy
    if policy.name != "deadline" or any(row.get(LOST) for row in rows):
        return ""
    longest = max(row["virtual_seconds"] for row in rows)
    return (
        f"clock.deadline={policy.deadline:g}: no client missed it; the longest round took"
        f" {longest:.1f} virtual seconds"
    )
