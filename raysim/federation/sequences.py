"""Sequences of unequal length as one array, padded on the right.

Tokens are padded with NO_TOKEN, [N, T]; a module makes its mask of them, `x >= 0`. Values [N, T, D]
get a mask as one value more of each position, [N, T, D + 1]; the module gets it as a second
argument, `forward(x, mask)`.

Legend: N samples, T positions, D values of a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from raysim.api.rules import padded_length
from raysim.api.scoring import IGNORED, NO_TOKEN, Scoring
from raysim.errors import DataError
from raysim.federation.samples import as_array, parts_of
from raysim.numbers.arrays import Array, Integers

ROWS = 65_536
"""Sequences whose lengths are read at once."""
MASKED = "_raysim_masked"
"""Attribute of a module that takes values and mask."""


def lengths_of(x: Any) -> Integers:
    """Return the lengths of padded sequences [N]; a position before another one is no padding.

    Args:
        x: The padded sequences: an array, or several files that are read on demand.
    """
    parts = [_lengths(np.asarray(x[first : first + ROWS])) for first in range(0, len(x), ROWS)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _lengths(x: Array) -> Integers:
    filled = x != NO_TOKEN if x.ndim == 2 else x[..., -1] != 0
    lengths: Integers = filled.shape[1] - filled[:, ::-1].argmax(1)
    return np.where(filled.any(1), lengths, 0)


def padded(sets: Mapping[str, Any], scoring: Scoring) -> dict[str, tuple[Array, Any]]:
    """Return sets of sequences as arrays of one shape, with their targets.

    Targets with one value for each position are padded with IGNORED; others stay. Targets that are
    None are the next tokens, unless they must be class numbers.

    Args:
        sets: Inputs and targets of each set, by its name in errors, as `read_pair` takes them.
        scoring: The task's scoring; it may have targets with columns after those of positions.

    Raises:
        DataError: the inputs are no sequences of one kind.
    """
    parts = {name: parts_of(name, pair) for name, pair in sets.items()}
    inputs = {name: _sequences(name, x) for name, (x, _) in parts.items()}
    every = [(name, row, each) for name, x in inputs.items() for row, each in enumerate(x)]
    if not every:
        raise DataError("Task.sequences=True: there is no sequence")
    first = every[0][2]
    for name, row, each in every:
        if each.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{name}, sample {row}: a sequence {[*each.shape]}; the first one is"
                f" {[*first.shape]}: all must have one kind of position"
            )
    length = padded_length(np.array([len(each) for _, _, each in every]))
    targets = {name: y for name, (_, y) in parts.items()}
    more = scoring.columns_after_tokens or 0
    if not (scoring.classifies or more) and first.ndim == 1:
        targets = {n: _next(inputs[n]) if y is None else y for n, y in targets.items()}
    kinds = {n: _by_position(inputs[n], y, more) for n, y in targets.items() if inputs[n]}
    if by_position := [name for name, is_so in kinds.items() if is_so]:
        if others := [name for name, is_so in kinds.items() if not is_so]:
            raise DataError(
                f"{others[0]}: targets must be one whole number for each position, as those of"
                f" {by_position[0]} are"
            )
        targets = {name: _targets(y, length, more) for name, y in targets.items()}
    return {name: (_stacked(x, length, first), targets[name]) for name, x in inputs.items()}


def _sequences(name: str, x: Any) -> list[Array]:
    """Return the sequences of a set, tokens [t] or values [t, D].

    Raises:
        DataError: a sample is none.
    """
    if isinstance(x, Mapping | tuple):
        raise DataError(
            f"{name}: Task.sequences=True takes one input, a list of sequences; this is a"
            f" {type(x).__name__}"
        )
    sequences = []
    for row, each in enumerate(x):
        try:
            values = as_array(each)
        except (ValueError, TypeError, RuntimeError):
            values = np.empty(0, dtype=object)
        is_tokens = values.ndim == 1 and (values.dtype.kind in "iu" or not values.size)
        if not is_tokens and not (values.ndim == 2 and values.dtype.kind in "fiub"):
            raise DataError(
                f"{name}, sample {row}: Task.sequences=True takes whole numbers [t] or values"
                f" [t, D] of a sample; this is {values.dtype}{[*values.shape]}"
            )
        if not len(values):
            raise DataError(f"{name}, sample {row}: a sequence must have at least one position")
        if is_tokens and values.min() < NO_TOKEN:
            raise DataError(f"{name}, sample {row}: token {values.min()}; must be from 0 up")
        sequences.append(values)
    return sequences


def _next(sequences: Sequence[Array]) -> list[Array]:
    """Return the next token at each position of tokens; none counts after the last."""
    shifted = [np.append(each[1:], IGNORED) for each in sequences]
    return [np.where(each == NO_TOKEN, IGNORED, each) for each in shifted]


def _by_position(sequences: Sequence[Array], targets: Any, more: int) -> bool:
    """Return whether targets are whole numbers, one for each position, and so many more."""
    if targets is None or len(targets) != len(sequences):
        return False
    try:
        values = [as_array(each) for each in targets]
    except (ValueError, TypeError, RuntimeError):
        return False
    pairs = zip(values, sequences, strict=True)
    return all(v.shape == (len(each) + more,) and v.dtype.kind in "iu" for v, each in pairs)


def _targets(targets: Any, length: int, more: int) -> Integers:
    """Return targets by position [N, T], with `more` columns after them."""
    rows = [as_array(each) for each in targets]
    tokens = _filled([each[: len(each) - more] for each in rows], length, IGNORED)
    after = [each[len(each) - more :] for each in rows]
    return np.concatenate([tokens, np.array(after, np.int64).reshape(len(rows), more)], axis=1)


def _filled(values: Any, length: int, filling: int) -> Integers:
    rows = [np.pad(each, (0, length - len(each)), constant_values=filling) for each in values]
    return np.array(rows, dtype=np.int64).reshape(-1, length)


def _stacked(sequences: Sequence[Array], length: int, first: Array) -> Array:
    """Return sequences as one array; values with their mask."""
    if first.ndim == 1:
        return _filled(sequences, length, NO_TOKEN)
    x = np.zeros((len(sequences), length, first.shape[1] + 1), np.result_type(first, np.float32))
    for row, each in enumerate(sequences):
        x[row, : len(each), :-1] = each
        x[row, : len(each), -1] = 1
    return x


def attach_mask(module: nn.Module) -> nn.Module:
    """Have a module's `forward` take values and mask apart, of padded values."""
    if not hasattr(module, MASKED):
        module.register_forward_pre_hook(_apart)
        setattr(module, MASKED, True)
    return module


def _apart(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return values [B, T, D] and mask [B, T]; a call with both passes them on."""
    if len(args) != 1:
        return args
    return args[0][..., :-1], args[0][..., -1] > 0
