"""Reading and checks of `Task.client_tests`, the test samples of single clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysim.errors import DataError
from raysim.federation.federation import CLIENT_TESTS as NAME
from raysim.federation.federation import LocalTest
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Split

PARTS = {"x": "inputs", "y": "targets"}


def names_of(client_tests: Sequence[Any] | None, clients: int) -> dict[int, str]:
    """Return the names in errors of the clients' test samples, by client with test samples.

    Args:
        client_tests: Per client, samples or None; empty where no client has any.
        clients: Number of clients K.

    Raises:
        DataError: there is not one entry per client.
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
    with_tests = (number for number, pair in enumerate(client_tests) if pair is not None)
    return {number: f"{NAME}, client {number}" for number in with_tests}


def local_test_of(
    names: Mapping[int, str], sets: Mapping[str, Split], train: Split, clients: int
) -> LocalTest | None:
    """Return the clients' own test samples; None if none are given.

    Args:
        names: Names of the sets of test samples, by client.
        sets: Samples by name.
        train: The training samples of all clients; test samples must have their shapes and dtypes.
        clients: Number of clients K.

    Raises:
        DataError: shapes or dtypes differ from the training samples', or all sets are empty.
    """
    if not names:
        return None
    filled = {name: sets[name] for name in names.values() if len(sets[name])}
    if not filled:
        raise DataError(f"{NAME}: no client has a sample; leave it out, or give one client some")
    for name, samples in filled.items():
        for part, title in PARTS.items():
            array, like = getattr(samples, part), getattr(train, part)
            if (array.shape[1:], array.dtype.kind) != (like.shape[1:], like.dtype.kind):
                raise DataError(
                    f"{name}: {title} {array.dtype}{[*array.shape[1:]]} a sample; must be"
                    f" {like.dtype}{[*like.shape[1:]]}, as in Task.clients"
                )
    x, y = (np.concatenate([getattr(each, part) for each in filled.values()]) for part in PARTS)
    sizes = [len(sets[names[number]]) if number in names else 0 for number in range(clients)]
    rows = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return LocalTest(ListedIndices.of_some(rows), Split(x, y), "local")
