"""Exact sums, independent of order, chunking and number of workers.

Floating-point addition is not associative, integer addition is. Each client's contribution is
rounded once, to round(p * value * 2^46) in int64, where p is its fraction of the weight; these
integers are added exactly. The resolution is 2^-46 = 1.4e-14. The arrived weight is an integer,
too, and is divided out once, so dropped clients need no second pass.

A magnitude above 1.3e5 would overflow. It is added to a coarser sum of its tensor, the one with the
least k such that |value| <= 1.3e5 * 2^(16k), as round(p * value * 2^(46 - 16k)). The fractions add
up to 1, so no sum overflows; a coarser sum exists only if needed, and the mean adds the sums in
ascending order of k. Every finite value has a sum; each contribution is rounded to 2^-46 of its
value or better.

Complex tensors are summed as pairs of reals; integer tensors (BatchNorm's counters) take the
maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.errors import RunError
from raysim.numbers.arrays import Integers
from raysim.numbers.tensors.later import read_later
from raysim.numbers.tensors.magnitudes import LIMIT, STEP, by_magnitude
from raysim.numbers.tensors.packed import as_tensor
from raysim.numbers.tensors.packed_totals import Parts, join, split
from raysim.numbers.tensors.sets import Layout, Tensors

SCALE = 2.0**46
BLOCK = 32_768
"""Number of values to round or scale at a time on a CPU, so that intermediate values stay in cache.

All at once, 0.2M values took 1.2 times as long, 11M values 2.3 times.
"""
STACK_BLOCK = 2**28
"""Largest bytes of float64 values of a stack that are rounded at a time on a GPU."""
ROUNDER = 1.5 * 2.0**52
"""Addend that rounds a float64 x, |x| at most 2^51, to an integer in the last bits of the sum.

The sum's bits, read as an integer, are the bits of ROUNDER plus that integer; ties go to even.
"""
ROUNDER_BITS = int(np.float64(ROUNDER).view(np.int64))


class Coarse(NamedTuple):
    """Coarser sum of one tensor.

    Attributes:
        dtype: The tensor's dtype.
        start: Position of the tensor in the flat buffer of this dtype.
        k: Exponent of the sum, which adds round(p * value * 2^(46 - 16k)).
    """

    dtype: torch.dtype
    start: int
    k: int


@dataclass(frozen=True)
class Addend:
    """Checked tensors of one client, not copied: valid until they change.

    Attributes:
        layout: Layout of the tensors.
        flats: Per dtype, flat tensors [n] in the order of the layout; complex ones as reals.
        largest: Largest magnitude in `flats`.
        coarse: Larger values by coarser sum, with zeros for the other values of the tensor.
    """

    layout: Layout
    flats: Mapping[torch.dtype, Sequence[Tensor]]
    largest: float
    coarse: Mapping[Coarse, Tensor] = field(default_factory=dict)

    @classmethod
    def later(cls, layout: Layout, tensors: Tensors) -> Callable[[], Addend]:
        """Begin to check that one client's tensors can be added.

        Returns:
            A function that ends the check and returns them; a GPU is not waited for until then. It
            raises RunError if a value is not finite; the message names the tensor.
        """
        parts = flats = {d: [*map(_reals, flat)] for d, flat in layout.flats(tensors).items()}
        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            flats = {dtype: [torch.cat(values)] for dtype, values in parts.items()}
        asked = [
            _magnitudes(part)
            for dtype, own in flats.items()
            for part in own
            if _is_summed(dtype) and part.numel()
        ]

        def read() -> Addend:
            magnitudes = [magnitude for each in asked for magnitude in each()]
            if all(magnitude <= LIMIT for magnitude in magnitudes):
                return cls(layout, flats, max(magnitudes, default=0.0))
            return cls._with_coarse(layout, tensors, parts)

        return read

    @classmethod
    def _with_coarse(
        cls, layout: Layout, tensors: Tensors, parts: Mapping[torch.dtype, Sequence[Tensor]]
    ) -> Addend:
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise RunError(f"its update is not finite (tensor {name}): try a smaller local.lr")
        fine, coarse = _finest_and_coarse(parts)
        return cls(layout, fine, LIMIT, coarse)


@dataclass(frozen=True)
class StackAddend:
    """Checked tensors of K clients, stacked; as `Addend`, but without larger values.

    Attributes:
        layout: Layout of one client's tensors.
        rows: Per dtype, flat tensors [K, n].
        largest: Largest magnitude of each client.
    """

    layout: Layout
    rows: Mapping[torch.dtype, Tensor]
    largest: Sequence[float]

    @classmethod
    def later(cls, tensors: Tensors) -> Callable[[], StackAddend | None]:
        """Begin to check that tensors [K, ...] of clients can be added.

        Returns:
            A function that returns them; None if a client's must be looked at by itself. A GPU is
            not waited for until then.
        """
        stack = next(iter(tensors.values())).shape[:1]
        layout = Layout(tuple((name, t.dtype, t.shape[1:]) for name, t in tensors.items()))
        rows = {
            dtype: torch.cat([*map(_reals, flats)], dim=-1)
            for dtype, flats in layout.flats(tensors, tuple(stack)).items()
        }
        asked = [
            read_later(torch.linalg.vector_norm(flat, torch.inf, dim=1))
            for dtype, flat in rows.items()
            if _is_summed(dtype) and flat.numel()
        ]

        def read() -> StackAddend | None:
            magnitudes = [each().tolist() for each in asked]
            largest = [max(each) for each in zip(*magnitudes, [0.0] * stack[0], strict=True)]
            finite = all(m <= LIMIT for of_dtype in magnitudes for m in of_dtype)
            return cls(layout, rows, largest) if finite else None

        return read

    def of_client(self, k: int) -> Addend:
        """Return the addend of one client."""
        return Addend(self.layout, {d: [flat[k]] for d, flat in self.rows.items()}, self.largest[k])


class ExactSum:
    """Weighted sum of sets of tensors of one layout, exact in any order of adding.

    Attributes:
        layout: The layout.
        leaves_node: Whether it is pickled for another node, in six bytes per total.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.leaves_node = layout, False
        self._totals: dict[torch.dtype, Tensor] = {}
        self._coarse: dict[Coarse, Tensor] = {}
        self._rounders: Counter[torch.dtype] = Counter()  # the number of them in the totals

    def add(self, addend: Addend, fraction: float) -> None:
        """Add one client's tensors with its fraction p of the total weight, 0 < p <= 1."""
        for dtype, flats in addend.flats.items():
            if not _is_summed(dtype):
                self._take_maximum(dtype, torch.cat([flat.to(torch.int64) for flat in flats]))
                continue
            if dtype not in self._totals:
                size = sum(map(len, flats))
                self._totals[dtype] = flats[0].new_zeros(size, dtype=torch.int64)
            totals, factor = self._totals[dtype], fraction * SCALE
            if addend.largest * factor <= 2.0**51:
                if totals.is_cuda:
                    scaled = _joined(flats).to(torch.float64, copy=True).mul_(factor)
                    totals += scaled.add_(ROUNDER).view(torch.int64)
                else:
                    _add_with_rounder(totals, flats, factor)
                self._rounders[dtype] += 1
            else:
                totals += _rounded(_joined(flats), factor)
        for key, values in addend.coarse.items():
            _add(self._coarse, key, _rounded(values, fraction * SCALE * 2.0 ** (-STEP * key.k)))

    def add_stack(self, addend: StackAddend, fractions: Sequence[float]) -> None:
        """Add the tensors of several clients with their fractions of the total weight; see `add`.

        On a GPU all at once, in blocks of at most STACK_BLOCK bytes.
        """
        first = next(iter(addend.rows.values()))
        if not first.is_cuda:
            for k, fraction in enumerate(fractions):
                self.add(addend.of_client(k), fraction)
            return
        factors = np.array(fractions) * SCALE
        rounds = bool((np.array(addend.largest) * factors <= 2.0**51).all())
        column = torch.from_numpy(factors).pin_memory().to(first.device, non_blocking=True)
        added = {
            dtype: _sum_of_rows(rows, column, rounds=rounds)
            if _is_summed(dtype)
            else rows.to(torch.int64).amax(0)
            for dtype, rows in addend.rows.items()
        }
        for dtype, flat in added.items():  # not before memory has sufficed for all
            if _is_summed(dtype):
                if (total := self._totals.setdefault(dtype, flat)) is not flat:
                    total += flat
                self._rounders[dtype] += len(fractions) * rounds
            else:
                self._take_maximum(dtype, flat)

    def totals(self) -> dict[torch.dtype, Tensor]:
        """Return the total per dtype, int64 [n]: sums of floats times SCALE, maxima of integers.

        Tensors are laid out as by `Layout.flats`, with zeros for values above LIMIT.
        """
        for dtype, times in self._rounders.items():
            surplus = (times * ROUNDER_BITS + 2**63) % 2**64 - 2**63  # as int64 wraps around
            totals = self._totals[dtype]
            if totals.is_cuda:
                totals -= surplus
            else:
                totals.numpy()[:] -= surplus
        self._rounders.clear()
        return self._totals

    def finish(self) -> None:
        """Move the totals to the CPU, which waits for a GPU's pending operations."""
        self._totals = {dtype: flat.cpu() for dtype, flat in self.totals().items()}
        self._coarse = {key: flat.cpu() for key, flat in self._coarse.items()}

    def merge(self, other: ExactSum) -> None:
        """Add another sum of the same layout."""
        for dtype, flat in other.totals().items():
            if _is_summed(dtype):
                _add(self._totals, dtype, flat)
            else:
                self._take_maximum(dtype, flat.clone())
        for key, flat in other._coarse.items():
            _add(self._coarse, key, flat)

    def __getstate__(self) -> tuple[Layout, dict[torch.dtype, Parts], dict[Coarse, Integers]]:
        """Return layout and totals as arrays, which Ray's object store maps without a copy."""
        self.finish()
        arrays = {dtype: flat.numpy() for dtype, flat in self._totals.items()}
        parts = {d: split(a) if self.leaves_node else (a,) for d, a in arrays.items()}
        return self.layout, parts, {key: flat.numpy() for key, flat in self._coarse.items()}

    def __setstate__(
        self, state: tuple[Layout, dict[torch.dtype, Parts], dict[Coarse, Integers]]
    ) -> None:
        self.layout, arrays, coarse = state
        self.leaves_node = False
        self._totals = {dtype: as_tensor(join(parts)) for dtype, parts in arrays.items()}
        self._coarse = {key: as_tensor(array) for key, array in coarse.items()}
        self._rounders = Counter()

    def mean(self, arrived: int, total: int) -> dict[str, Tensor]:
        """Return the mean, in the tensors' own dtypes.

        Args:
            arrived: The weight of the added clients.
            total: The weight of all clients, to which the fractions p refer; more than `arrived` if
                clients were dropped.
        """
        scale = total / arrived / SCALE
        buffers = {
            dtype: _scaled(flat, scale, dtype.to_real()) if _is_summed(dtype) else flat.to(dtype)
            for dtype, flat in self.totals().items()
        }
        for (dtype, start, size), sums in self._coarse_by_tensor().items():
            at = slice(start, start + size)
            values = self._totals[dtype][at].to(torch.float64) * scale
            for k in sorted(sums):
                values += sums[k].to(torch.float64) * (scale * 2.0 ** (STEP * k))
            largest = torch.finfo(dtype).max  # rounding may have exceeded it
            buffers[dtype][at] = values.clamp(-largest, largest)
        return self.layout.unpack({dtype: flat.view(dtype) for dtype, flat in buffers.items()})

    def _coarse_by_tensor(self) -> dict[tuple[torch.dtype, int, int], dict[int, Tensor]]:
        """Return the coarser sums by k, by dtype, start and size of their tensor."""
        by_tensor: dict[tuple[torch.dtype, int, int], dict[int, Tensor]] = {}
        for (dtype, start, k), flat in self._coarse.items():
            by_tensor.setdefault((dtype, start, len(flat)), {})[k] = flat
        return by_tensor

    def _take_maximum(self, dtype: torch.dtype, flat: Tensor) -> None:
        if dtype in self._totals:
            torch.maximum(self._totals[dtype], flat, out=self._totals[dtype])
        else:
            self._totals[dtype] = flat


def _add_with_rounder(totals: Tensor, flats: Sequence[Tensor], factor: float) -> None:
    """Add the values times the factor, each rounded, and ROUNDER_BITS each, to int64 totals.

    A block may span several tensors, as many of a small network's are smaller. NumPy's int64 sums
    are twice as fast as torch's.
    """
    sums, scaled, at, filled = totals.numpy(), np.empty(BLOCK), 0, 0
    bits = scaled.view(np.int64)
    for flat in flats:
        values = (flat if flat.dtype in (torch.float32, torch.float64) else flat.float()).numpy()
        start = 0
        while start < len(values):
            n = min(len(values) - start, BLOCK - filled)
            # A product of float32 in float64 is cast in small pieces.
            scaled[filled : filled + n] = values[start : start + n]
            start, filled = start + n, filled + n
            if filled == BLOCK or at + filled == len(sums):
                product, total = scaled[:filled], sums[at : at + filled]
                product *= factor
                product += ROUNDER
                total += bits[:filled]
                at, filled = at + filled, 0


def _scaled(totals: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Return int64 totals times the factor, multiplied in float64."""
    result, sums, scaled = torch.empty_like(totals, dtype=dtype), totals.numpy(), np.empty(BLOCK)
    for start in range(0, len(sums), BLOCK):
        block = sums[start : start + BLOCK]
        n = len(block)
        np.multiply(block, factor, out=scaled[:n])
        result[start : start + n] = torch.from_numpy(scaled[:n])
    return result


def _sum_of_rows(rows: Tensor, factors: Tensor, *, rounds: bool) -> Tensor:
    """Return the sum [n] of rows [K, n] times factors [K], each value rounded to int64.

    Args:
        rows: The rows.
        factors: The factors, in float64.
        rounds: Whether values are rounded by ROUNDER, whose bits the sum then has once a row.
    """
    total = rows.new_zeros(rows.shape[1], dtype=torch.int64)
    for some, part in _blocks(*rows.shape):
        scaled = rows[some, part].to(torch.float64, copy=True).mul_(factors[some, None])
        integers = scaled.add_(ROUNDER).view(torch.int64) if rounds else scaled.round_().long()
        total[part] += integers.sum(0)
    return total


def _blocks(clients: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks of a matrix [clients, size] that take at most STACK_BLOCK bytes each."""
    columns = min(size, STACK_BLOCK // 8)
    rows = max(1, STACK_BLOCK // (8 * max(columns, 1)))
    for start in range(0, size, max(columns, 1)):
        for first in range(0, clients, rows):
            yield slice(first, first + rows), slice(start, start + columns)


def _magnitudes(part: Tensor) -> Callable[[], list[float]]:
    """Return a function that returns the extremes without sign, or the largest magnitude.

    They are NaN if a value is. A GPU is not waited for until then.
    """
    if part.is_cuda:
        largest = read_later(torch.linalg.vector_norm(part, torch.inf))
        return lambda: [float(largest())]
    extremes = [abs(float(extreme)) for extreme in torch.aminmax(part)]
    return lambda: extremes


def _is_summed(dtype: torch.dtype) -> bool:
    """Return whether tensors of a dtype are summed, not maximised."""
    return dtype.is_floating_point or dtype.is_complex


def _reals(flat: Tensor) -> Tensor:
    """Return complex values [..., n] as pairs of reals [..., 2n]; other values unchanged."""
    return torch.view_as_real(flat.resolve_conj()).flatten(-2) if flat.is_complex() else flat


def _finest_and_coarse(
    parts: Mapping[torch.dtype, Sequence[Tensor]],
) -> tuple[dict[torch.dtype, list[Tensor]], dict[Coarse, Tensor]]:
    """Return flat tensors with zeros for values above LIMIT, and these values by coarser sum."""
    fine: dict[torch.dtype, list[Tensor]] = {dtype: [] for dtype in parts}
    coarse: dict[Coarse, Tensor] = {}
    for dtype, flats in parts.items():
        start = 0
        for flat in flats:
            by_k = by_magnitude(flat) if _is_summed(dtype) and flat.numel() else {0: flat}
            fine[dtype].append(by_k.pop(0))
            coarse |= {Coarse(dtype, start, k): values for k, values in by_k.items()}
            start += len(flat)
    return fine, coarse


def _joined(flats: Sequence[Tensor]) -> Tensor:
    """Return flat tensors as one, a copy unless there is only one."""
    return torch.cat([*flats]) if flats[1:] else flats[0]


def _rounded(values: Tensor, factor: float) -> Tensor:
    """Return values times the factor, multiplied in float64, as int64."""
    return values.to(torch.float64, copy=True).mul_(factor).round_().to(torch.int64)


def _add(totals: dict[Any, Tensor], key: Any, flat: Tensor) -> None:
    """Add to the total of a key, or create it."""
    if key in totals:
        totals[key] += flat
    else:
        totals[key] = flat.clone()
