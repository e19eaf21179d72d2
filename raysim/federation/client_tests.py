"""Test samples of single clients of a user's own task: `Task.client_tests`, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.core.client_indices import ListedIndices
from raysim.core.data import Split
from raysim.core.errors import DataError
from raysim.federation.federation import LocalTest

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
NAME = "Task.client_tests"


def local_test_of(
    client_tests: Sequence[Any], train: Split, clients: int, read: Callable[[str, Any], Arrays]
) -> LocalTest | None:
    """Return the test samples that clients have of their own; None where no client has any.

    Args:
        client_tests: Per client, a pair of inputs and targets, or None; empty where none has any.
        train: The training samples of all clients, which these must be like.
        clients: Number of clients K.
        read: Returns a pair, of which a name is given, as arrays.

    Raises:
        DataError: they are not one entry a client, not like the training samples, or all empty.
    """
    if not len(client_tests):
        return None
    if len(client_tests) != clients:
        raise DataError(
            f"{NAME}: {len(client_tests)} entries for {clients} clients; give one a client, None"
            " where it has no test samples"
        )
    named = [(f"{NAME}, client {number}", pair) for number, pair in enumerate(client_tests)]
    pairs = [None if pair is None else read(name, pair) for name, pair in named]
    filled = [(named[n][0], pair) for n, pair in enumerate(pairs) if pair and len(pair[1])]
    if not filled:
        raise DataError(f"{NAME}: no client has a sample; leave it out, or give one client some")
    for name, pair in filled:
        for what, found, like in zip(("inputs", "targets"), pair, (train.x, train.y), strict=True):
            if (found.shape[1:], found.dtype) != (like.shape[1:], like.dtype):
                raise DataError(
                    f"{name}: {what} {found.dtype}{[*found.shape[1:]]} a sample; must be"
                    f" {like.dtype}{[*like.shape[1:]]}, as in Task.clients"
                )
    x, y = (np.concatenate([pair[part] for _, pair in filled]) for part in (0, 1))
    sizes = [len(pair[1]) if pair else 0 for pair in pairs]
    rows = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return LocalTest(ListedIndices.of_some(rows), Split(x, y))
