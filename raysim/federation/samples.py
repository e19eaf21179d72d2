"""Reading of a user's samples into arrays: pairs, datasets and loaders of torch.

An error is one line that names the client and the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from raysim.api.rules import Batch
from raysim.errors import DataError, MachineError, RunError, visible
from raysim.federation.named_columns import ColumnOrder
from raysim.numbers.arrays import Array

Inputs = Array | dict[str, Array] | tuple[Array, ...]
"""Inputs of samples, along the first dimension of one array or of each of several."""


def read_pair(
    name: str, pair: Any, columns: ColumnOrder | None = None
) -> tuple[Inputs, Array | None]:
    """Return inputs [N, ...] and targets [N, ...] as arrays.

    Args:
        name: Name of the samples in errors: `client 3`.
        pair: A pair of inputs and targets, a torch `Dataset` of such pairs, or a `DataLoader`.
            Inputs may be a mapping or a tuple of several, targets None.
        columns: Order of the columns of DataFrames, of all sets of samples; None: of this one.

    Raises:
        DataError: the samples cannot be read, do not match, or are not finite.
    """
    x, y = parts_of(name, pair)
    columns = columns or ColumnOrder()
    targets = None
    if y is not None:
        targets = _as_torch_has(_stacked(name, "targets", columns.ordered(name, "targets", y)))
    if isinstance(x, Mapping):
        inputs: Inputs = {
            str(n): _read_inputs(name, input_values, columns, f" {n}")
            for n, input_values in x.items()
        }
    elif type(x) is tuple:
        inputs = tuple(
            _read_inputs(name, input_values, columns, f" {n}") for n, input_values in enumerate(x)
        )
    else:
        inputs = _read_inputs(name, x, columns)
    several = [*inputs.values()] if isinstance(inputs, dict) else inputs
    arrays = [*several] if isinstance(inputs, dict | tuple) else [inputs]
    if not arrays:
        raise DataError(f"{name}: has no inputs")
    for values in (*arrays[1:], *([] if targets is None else [targets])):
        if not arrays[0].ndim or not values.ndim or len(arrays[0]) != len(values):
            what = "inputs" if values is not targets else "targets"
            raise DataError(
                f"{name}: inputs {arrays[0].shape} and {what} {values.shape} do not match"
            )
    if targets is not None and (problem := not_finite("target", targets)):
        raise DataError(f"{name}, {problem}")
    return inputs, targets


def _read_inputs(name: str, values: Any, columns: ColumnOrder, which: str = "") -> Array:
    """Return inputs of samples as an array of numbers."""
    part = f"inputs{which}"
    x = _as_torch_has(_stacked(name, part, columns.ordered(name, part, values)))
    if x.dtype.kind not in "fiubc":
        row = next((row for row, value in enumerate(x) if not _is_number(value)), 0)
        shown = visible(str(x[row].tolist()))
        raise DataError(f"{name}, sample {row}: inputs{which} must be numbers; these are {shown}")
    if problem := not_finite(f"input{which}", x):
        raise DataError(f"{name}, {problem}")
    return x


def not_finite(
    part: str, values: Array, place_of: Callable[[int], str] = "sample {}".format
) -> str:
    """Return the place of the first value that is not finite; empty if all are.

    Args:
        part: Name of the values in errors.
        values: The values [N, ...].
        place_of: Returns the name of a row.
    """
    if values.dtype.kind not in "fc" or not values.size:
        return ""
    extremes = values if values.dtype.kind == "c" else np.array([values.min(), values.max()])
    if np.isfinite(extremes).all():  # the minimum is NaN if any value is
        return ""
    row, *place = np.argwhere(~np.isfinite(values))[0].tolist()
    column = f", column {place[0] if len(place) == 1 else place}" if place else ""
    shown = values[(row, *place)]
    return f"{place_of(row)}{column}: the {part} is not finite ({shown} in {values.dtype})"


@contextmanager
def blaming_samples(samples: Batch) -> Iterator[None]:
    """Name a sample that is not finite if the body refuses the result of training.

    Samples on disk are not checked in advance, which takes long for a dataset larger than memory.

    Raises:
        DataError: a sample is not finite.
    """
    try:
        yield
    except MachineError:
        raise
    except RunError as error:
        if problem := problem_of(samples):
            raise DataError(f"its {problem}; counted from 0 in its training samples") from error
        raise


def problem_of(samples: Batch) -> str:
    """Return the place of the first value that is not finite; empty if all are."""
    arrays = {"input": as_array(samples.x), "target": as_array(samples.y)}
    return next(filter(None, (not_finite(*named_array) for named_array in arrays.items())), "")


def parts_of(name: str, source: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets."""
    if isinstance(source, DataLoader):
        if (dataset := _dataset_of(source)) is None:  # its batches, in the order it gives them
            batches = [_pair_of(name, f"batch {i}", batch) for i, batch in enumerate(source)]
            return _joined(f"{name}, batch", batches, _chained)
        source = dataset
    if type(source) is TensorDataset and len(source.tensors) == 2:
        source = source.tensors
    elif isinstance(source, Dataset):
        samples = enumerate(samples_of(name, source))
        pairs = [_pair_of(name, f"sample {i}", sample) for i, sample in samples]
        return _joined(f"{name}, sample", pairs, list)
    return _pair_of(name, "", source)


def _chained(batches: Sequence[Any]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def _joined(
    place: str, pairs: Sequence[tuple[Any, Any]], join: Callable[[Sequence[Any]], list[Any]]
) -> tuple[Any, Any]:
    """Join the inputs and the targets of samples or batches.

    Args:
        place: Name of a sample or batch in errors, without its number.
        pairs: Its inputs and targets, for each.
        join: Joins the values of all.

    Raises:
        DataError: some are of another kind than the first.
    """
    inputs, targets = zip(*pairs, strict=True) if pairs else ((), ())
    for part, values in (("inputs", inputs), ("targets", targets)):
        kinds = [_kind_of(value) for value in values]
        for row, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise DataError(
                    f"{place} {row}: {part} are {_shown(kind)}; must be {_shown(kinds[0])} as"
                    f" in {place.rpartition(' ')[2]} 0"
                )
    return _by_input(inputs, join), _by_input(targets, join)


def _kind_of(value: Any) -> Any:
    """Return the keys of a mapping, the number of a tuple's parts, None, or "one" for others."""
    if isinstance(value, Mapping):
        return {*value}
    return len(value) if type(value) is tuple else None if value is None else "one"


def _shown(kind: Any) -> str:
    if isinstance(kind, set):
        return visible(f"a mapping of {', '.join(sorted(map(str, kind))) or 'nothing'}")
    if isinstance(kind, int):
        return f"a tuple of {kind}"
    return "None" if kind is None else "a single value"


def _by_input(values: Sequence[Any], join: Callable[[Sequence[Any]], list[Any]]) -> Any:
    """Join values of samples or batches of one kind: each of several inputs by itself."""
    first = values[0] if values else None
    if first is None and values:
        return None
    if isinstance(first, Mapping):
        return {key: join([value[key] for value in values]) for key in first}
    if type(first) is tuple:
        return tuple(join(input_values) for input_values in zip(*values, strict=True))
    return join(values)


def _dataset_of(loader: DataLoader[Any]) -> Dataset[Any] | None:
    """Return the samples of a loader in their own order; None if its batches must be read."""
    if loader.batch_size is None and loader.batch_sampler is None:  # it gives single samples
        order: Any = loader.sampler
        whole = isinstance(loader.dataset, IterableDataset)
        return loader.dataset if whole else Subset(loader.dataset, [*order])
    batches: Any = loader.batch_sampler
    plain = loader.collate_fn is default_collate and type(batches) is BatchSampler
    if not plain or batches.drop_last or isinstance(loader.dataset, IterableDataset):
        return None
    if type(order := batches.sampler) is SubsetRandomSampler:
        return Subset(loader.dataset, sorted(order.indices))
    size = len(loader.dataset)  # type: ignore[arg-type]
    all_once = type(order) is RandomSampler and not order.replacement and len(order) == size
    return loader.dataset if all_once or type(order) is SequentialSampler else None


def samples_of(name: str, dataset: Any) -> Iterator[Any]:
    """Yield the samples of a dataset.

    Raises:
        DataError: the dataset has no length, or fails; the message names the sample.
    """
    if isinstance(dataset, IterableDataset):
        yield from dataset
        return
    try:
        # Not a `for` loop, which may have no end: `__getitem__` may take any number.
        size = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise DataError(f"{name}: the {type(dataset).__name__} has no length") from error
    for row in range(size):
        try:
            sample = dataset[row]
        except Exception as error:  # a user's dataset may raise anything
            reason = f"{type(error).__name__}: {visible(' '.join(str(error).split()))}"
            raise DataError(f"{name}, sample {row}: cannot be read: {reason}") from error
        yield sample


def _pair_of(name: str, which: str, pair: Any) -> tuple[Any, Any]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    place = f"{name}, {which}" if which else name
    many = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
    raise DataError(
        f"{place}: must be a pair of inputs and targets, a torch Dataset of pairs or a DataLoader;"
        f" is a {type(pair).__name__}{many}"
    )


def _stacked(name: str, part: str, values: Any) -> Array:
    """Return values of samples as one array.

    Raises:
        DataError: the values are no array; the message names the first sample that differs.
    """
    _check_dense(name, part, values)
    if isinstance(values, Mapping):
        keys = visible(", ".join(map(str, values)))
        raise DataError(
            f"{name}: {part} are a {type(values).__name__} ({keys}); must be one array, with the"
            " samples along its first dimension: stack them"
        )
    try:
        if isinstance(values, Sequence) and any(isinstance(value, Tensor) for value in values):
            values = [as_array(value) for value in values]
        mixed = isinstance(values, Sequence) and len({isinstance(v, str) for v in values}) > 1
        array = (
            np.array(values, object) if mixed else as_array(values)
        )  # NumPy would make words of numbers
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(_uneven(name, part, values) or f"{name}: {part}: {error}") from error
    if array.dtype == object and array.ndim:
        if problem := _uneven(name, part, array):
            raise DataError(problem)
        if not any(isinstance(value, str) for value in array.flat):
            array = np.array([*map(as_array, array)]) if array.ndim == 1 else array
        if array.dtype == object and all(map(_is_number, array.flat)):
            array = array.astype(np.float64)
    return array


def _check_dense(name: str, part: str, values: Any) -> None:
    if problem := _not_dense(values):
        raise DataError(f"{name}: {part} {problem}")
    for row, value in enumerate(values if isinstance(values, Sequence) else ()):
        if problem := _not_dense(value):
            raise DataError(f"{name}, sample {row}: {part} {problem}")


def _not_dense(values: Any) -> str:
    """Return why values are no dense array, as NumPy would misread them; empty if they are."""
    kind = type(values).__name__
    if isinstance(values, np.ma.MaskedArray) and len(places := np.argwhere(values.mask)):
        first = f", the first in sample {places[0][0]}" if values.ndim > 1 else ""
        return f"have {len(places)} masked values{first}: fill them first, as by .filled(0)"
    if isinstance(values, Tensor):
        sparse = "sparse" in str(values.layout)
        return "are a sparse tensor; must be dense: call .to_dense()" if sparse else ""
    if hasattr(values, "toarray"):
        return f"are a {kind}, which is sparse; must be dense: call .toarray()"
    if isinstance(values, Iterator):
        return f"are a {kind}; must be an array or a list, not a generator: call list()"
    return ""


def _as_torch_has(values: Array) -> Array:
    """Return numbers in a type that torch has, in this machine's byte order."""
    dtype = values.dtype
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        with np.errstate(over="ignore"):  # checked as infinite
            return values.astype(np.float64 if dtype.kind == "f" else np.complex128)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def as_array(values: Any) -> Array:
    """Return a tensor, an array or nested lists as an array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
        return np.asarray(values.numpy())
    return np.asarray(values)


def _uneven(name: str, part: str, values: Any) -> str:
    """Describe the first sample whose values differ in shape from sample 0's; empty if none."""
    shapes = []
    for row, value in enumerate(values):
        try:
            shapes.append(list(as_array(value).shape))
        except (ValueError, TypeError, RuntimeError):
            return f"{name}, sample {row}: its {part} are no array: lists in it differ in length"
        if shapes[-1] != shapes[0]:
            return (
                f"{name}, sample {row}: {part} have shape {shapes[-1]}, but sample 0 has"
                f" {shapes[0]}; all samples must have one shape: pad or cut them"
            )
    return ""


def _is_number(value: Any) -> bool:
    return bool(np.asarray(value).dtype.kind in "fiub") or (
        isinstance(value, np.ndarray) and all(map(_is_number, value.flat))
    )
