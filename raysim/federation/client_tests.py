"""Test samples of single clients of a user's own task: `Task.client_tests`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysim.core.client_indices import ListedIndices
from raysim.core.data import Split
from raysim.core.errors import DataError
from raysim.federation.federation import CLIENT_TESTS as NAME
from raysim.federation.federation import LocalTest

PARTS = {"x": "inputs", "y": "targets"}


def names_of(client_tests: Sequence[Any] | None, clients: int) -> dict[int, str]:
    """Return what the test samples of each client that has some are called in errors.

    Args:
        client_tests: Per client, samples or None; empty where no client has any.
        clients: Number of clients K.

    Raises:
        DataError: they are not one entry a client.
    """
    if client_tests is None:
        return {}
    if not isinstance(client_tests, list | tuple):
        raise DataError(f"{NAME}: must be a list of one entry a client; is {client_tests!r:.80}")
    if len(client_tests) not in (0, clients):
        raise DataError(
            f"{NAME}: {len(client_tests)} entries for {clients} clients; give one a client, None"
            " where it has no test samples"
        )
    given = (number for number, pair in enumerate(client_tests) if pair is not None)
    return {number: f"{NAME}, client {number}" for number in given}


def local_test_of(
    names: Mapping[int, str], sets: Mapping[str, Split], train: Split, clients: int
) -> LocalTest | None:
    """Return the test samples that clients have of their own; None where none is given.

    Args:
        names: Names of those sets, by client.
        sets: Samples by name.
        train: The training samples of all clients, which these must be like.
        clients: Number of clients K.

    Raises:
        DataError: they are not like the training samples, or all empty.
    """
    if not names:
        return None
    filled = {name: sets[name] for name in names.values() if len(sets[name])}
    if not filled:
        raise DataError(f"{NAME}: no client has a sample; leave it out, or give one client some")
    for name, found in filled.items():
        for part, what in PARTS.items():
            each, like = getattr(found, part), getattr(train, part)
            if (each.shape[1:], each.dtype.kind) != (like.shape[1:], like.dtype.kind):
                raise DataError(
                    f"{name}: {what} {each.dtype}{[*each.shape[1:]]} a sample; must be"
                    f" {like.dtype}{[*like.shape[1:]]}, as in Task.clients"
                )
    x, y = (np.concatenate([getattr(each, part) for each in filled.values()]) for part in PARTS)
    sizes = [len(sets[names[number]]) if number in names else 0 for number in range(clients)]
    rows = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return LocalTest(ListedIndices.of_some(rows), Split(x, y))
