"""Labels in words, numbered for a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raysim.errors import DataError, visible
from raysim.federation.samples import Array

WORDS = "UO"
"""Kinds of arrays of words, which pandas holds as objects."""


def number_words(targets: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Number labels in words, the same for all sets of samples.

    Args:
        targets: Labels [N] of each set, by the name of the set in errors.

    Returns:
        Class numbers, and the words in the order of their numbers; empty if labels are numbers.

    Raises:
        DataError: some labels are words and some are numbers.
    """
    worded = [name for name, y in targets.items() if _are_words(name, y)]
    if not worded:
        return dict(targets), ()
    if others := [name for name, y in targets.items() if name not in worded and len(y)]:
        raise DataError(f"{others[0]}: labels are numbers, those of {worded[0]} are words")
    words = sorted({str(word) for y in targets.values() for word in y.flat})
    place: Callable[[Any], int] = {word: number for number, word in enumerate(words)}.__getitem__
    numbered = {
        name: np.array([place(str(word)) for word in y.flat], np.int64).reshape(y.shape)
        for name, y in targets.items()
    }
    return numbered, tuple(words)


def _are_words(name: str, y: Array) -> bool:
    """Return whether labels are words.

    Raises:
        DataError: only some labels are words, or one is neither a word nor a number.
    """
    if y.dtype.kind not in WORDS or not y.size:
        return False
    for row, label in enumerate(y.flat):
        if not isinstance(label, str):
            raise DataError(f"{name}, sample {row}: its label {visible(repr(label))} is no word")
    return True
