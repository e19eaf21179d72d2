"""Weights of clients in means, as whole numbers, so that their sums are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysim.api.components import called
from raysim.api.method import Method
from raysim.config import Settings
from raysim.errors import DataError, SettingsError
from raysim.federation.federation import Federation, open_samples
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.client_tables import read_table, rows_of
from raysim.numbers.tensors.packed import as_tensor
from raysim.user_input.limits import MOST

Weights = Integers
TOKENS = "tokens"
"""Value of `weighting`: a client's targets that count in the loss."""
STEPS = 2**24
"""Steps of weights that are no whole numbers; the largest weight is this many steps."""


def weights_file(weighting: str) -> Path | None:
    """Return the file that `weighting` names; None if it names none."""
    return None if weighting in ("examples", "uniform", TOKENS) else Path(weighting)


def weights_by_client(settings: Settings, federation: Federation) -> Weights | None:
    """Return the weights of a table or of tokens [K]; None without either.

    Raises:
        RaysimError: the file cannot be read, or there are no tokens.
    """
    if settings.weighting == TOKENS:
        return _of_tokens(federation)
    return _of_file(settings.weighting, settings.clients)


def _of_tokens(federation: Federation) -> Weights:
    """Return the number of each client's training targets that count in the loss [K].

    Raises:
        SettingsError: samples of the task count alike.
        DataError: a client has no target that counts.
    """
    if federation.scoring.weights is None:
        raise SettingsError(
            f"weighting={TOKENS}: the task's samples have no tokens that count; use"
            " weighting=examples"
        )
    counts = federation.scoring.weights(as_tensor(open_samples(federation.train).y)).numpy()
    held, holdout = federation.client_indices, federation.holdout
    weights = np.zeros(len(held.sizes), dtype=np.float64)
    for client in range(len(weights)):
        rows = held[client]
        trained = rows[holdout.divide(client, len(rows))[0]] if holdout.fraction else rows
        weights[client] = counts[trained].sum()
    if not weights.all():
        who = federation.named(int(np.argmin(weights)))
        raise DataError(f"weighting={TOKENS}: client {who} has no target that counts in the loss")
    return in_whole_numbers(weights)


def _of_file(weighting: str, clients: int) -> Weights | None:
    """Return the weights [K] from a user's table; None without one.

    Raises:
        DataError: the file cannot be read, lacks a client or lists it twice, or a weight is not
            finite or not above 0.
    """
    path = weights_file(weighting)
    if path is None:
        return None
    table = read_table(path, "weighting")
    if {*table} != {"client", "weight"}:
        raise DataError(f"weighting={path}: must have the columns client, weight; has {[*table]}")
    values = table["weight"][rows_of(path, "weighting", table["client"], clients)]
    weights = values.astype(np.float64)
    if bad := _bad(weights):
        client, value = bad
        raise DataError(f"weighting={path}: weight of client {client} is {value:g}; {ALLOWED}")
    return in_whole_numbers(weights)


ALLOWED = f"must be above 0, at most {MOST:g}"


def _bad(values: Floats) -> tuple[int, float] | None:
    """Return position and value of the first weight that is not allowed."""
    good = np.isfinite(values) & (values > 0) & (values <= MOST)
    place = int(np.argmin(good))
    return None if good.all() else (place, float(values[place]))


def in_whole_numbers(values: Floats) -> Weights:
    """Return whole numbers as they are, and other weights in STEPS of the largest one."""
    if not np.equal(np.floor(values), values).all():
        values = np.maximum(np.rint(values / values.max() * STEPS), 1)
    return values.astype(np.int64)


def weights_of(
    weighting: str | Mapping[int, Any],
    method: Method,
    sizes: Weights,
    table: Weights | None,
    clients: Sequence[int],
) -> Weights:
    """Return the weights of clients of a pass [n].

    Args:
        weighting: The weighting of the pass or of the run.
        method: The run's method.
        sizes: Training samples of each client [K].
        table: Weights from a user's table, or by tokens [K]; None without either.
        clients: The clients [n].

    Raises:
        SettingsError: the pass has weights by client and lacks one, or one is no number above 0.
    """
    if isinstance(weighting, Mapping):
        return _own_weights(weighting, method, clients)
    asked = np.asarray(clients, dtype=np.int64)
    if weighting == "uniform":
        return np.ones(len(asked), dtype=np.int64)
    return sizes[asked] if table is None or weighting == "examples" else table[asked]


def _own_weights(weighting: Mapping[int, Any], method: Method, clients: Sequence[int]) -> Weights:
    where = f"{called(method)}: Pass.weighting"
    try:
        scale = np.array([float(weight) for weight in weighting.values()])
        values = np.array([float(weighting[int(client)]) for client in clients])
    except KeyError as error:
        raise SettingsError(f"{where} has no weight for client {error}") from error
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where}: must have a number for each client") from error
    if bad := _bad(scale):
        raise SettingsError(f"{where}: the weight of a client is {bad[1]:g}; {ALLOWED}")
    whole = np.equal(np.floor(scale), scale).all()
    return (
        in_whole_numbers(values)
        if whole
        else in_whole_numbers(np.append(values, scale.max()))[: len(values)]
    )
