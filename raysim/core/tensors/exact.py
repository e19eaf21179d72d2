"""Exact sums, independent of order, chunking and number of workers.

Floating-point addition is not associative, integer addition is. Each client's contribution is
rounded once, to round(p * value * 2^46) in int64, p being its fraction of the weight; these
integers are added exactly. The resolution is 2^-46 = 1.4e-14, the range 1.3e5. The weight that
arrived is an integer too and is divided out once, so dropped clients need no second pass.
Integer tensors (BatchNorm's counters) take the maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.core.errors import RunError
from raysim.core.tensors.packed import as_tensor
from raysim.core.tensors.sets import Layout, Tensors

SCALE = 2.0**46
LIMIT = 1.3e5
BLOCK = 32_768
"""Values that are rounded or scaled at a time on a CPU, so that intermediate values stay in cache.

All at once, 0.2M values took 1.2 times as long, 11M 2.3 times.
"""
ROUNDER = 1.5 * 2.0**52
"""Added to a float64 x, |x| at most 2^51, it leaves x rounded to an integer in the last bits.

The bits, taken as an integer, are then those of ROUNDER plus that integer; ties go to even.
"""
ROUNDER_BITS = int(np.float64(ROUNDER).view(np.int64))


@dataclass(frozen=True)
class Addend:
    """Checked tensors of one client, not copied: valid until they change.

    Attributes:
        layout: Their layout.
        flats: Per dtype, flat tensors [n] in the order of the layout.
        largest: The greatest magnitude in them.
    """

    layout: Layout
    flats: Mapping[torch.dtype, Sequence[Tensor]]
    largest: float

    @classmethod
    def of(cls, layout: Layout, tensors: Tensors) -> Addend:
        """Check that one client's tensors can be added.

        Raises:
            RunError: a value is not finite or exceeds the range; it names the tensor.
        """
        flats = layout.flats(tensors)
        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            flats = {dtype: [torch.cat(parts)] for dtype, parts in flats.items()}
        extremes = [
            extreme.item()
            for dtype, parts in flats.items()
            for part in parts
            if dtype.is_floating_point and part.numel()
            for extreme in torch.aminmax(part)
        ]
        if not all(-LIMIT <= extreme <= LIMIT for extreme in extremes):
            raise RunError(_describe(tensors))
        return cls(layout, flats, max(map(abs, extremes), default=0.0))


class ExactSum:
    """The weighted sum of sets of tensors of one layout, exact whatever the order of adding."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._totals: dict[torch.dtype, Tensor] = {}
        self._rounders: Counter[torch.dtype] = Counter()  # that are in the totals

    def add(self, addend: Addend, fraction: float) -> None:
        """Add one client's tensors with its fraction p of the total weight, 0 < p <= 1."""
        for dtype, flats in addend.flats.items():
            if not dtype.is_floating_point:
                self._accumulate(dtype, torch.cat([flat.to(torch.int64) for flat in flats]))
                continue
            if dtype not in self._totals:
                size = sum(map(len, flats))
                self._totals[dtype] = flats[0].new_zeros(size, dtype=torch.int64)
            totals, factor = self._totals[dtype], fraction * SCALE
            if totals.device.type == "cpu" and addend.largest * factor <= 2.0**51:
                _add_with_rounder(totals, flats, factor)
                self._rounders[dtype] += 1
            else:
                scaled = torch.cat([*flats]).to(torch.float64).mul_(factor)
                totals += scaled.round_().to(torch.int64)

    def totals(self) -> dict[torch.dtype, Tensor]:
        """Return the sum per dtype: int64 [n], of floats times SCALE, of integers the maximum.

        Tensors lie in it as `Layout.flats` lays them out.
        """
        for dtype, times in self._rounders.items():
            surplus = (times * ROUNDER_BITS + 2**63) % 2**64 - 2**63  # as int64 wraps around
            self._totals[dtype].numpy()[:] -= surplus
        self._rounders.clear()
        return self._totals

    def finish(self) -> None:
        """Move the totals to the CPU; on a GPU, what is under way ends before this can."""
        self._totals = {dtype: flat.cpu() for dtype, flat in self.totals().items()}

    def merge(self, other: ExactSum) -> None:
        """Add another sum of the same layout."""
        for dtype, flat in other.totals().items():
            self._accumulate(dtype, flat)

    def __getstate__(self) -> tuple[Layout, dict[torch.dtype, npt.NDArray[Any]]]:
        """Return layout and totals; Ray's object store maps arrays without a copy, tensors not."""
        self.finish()
        return self.layout, {dtype: flat.numpy() for dtype, flat in self._totals.items()}

    def __setstate__(self, state: tuple[Layout, dict[torch.dtype, npt.NDArray[Any]]]) -> None:
        self.layout, arrays = state
        self._totals = {dtype: as_tensor(array) for dtype, array in arrays.items()}
        self._rounders = Counter()

    def mean(self, arrived: int, total: int) -> dict[str, Tensor]:
        """Return the mean, in the tensors' own dtypes.

        Args:
            arrived: The weight that was added.
            total: The weight that the fractions p refer to; `arrived` is less after drops.
        """
        scale = total / arrived / SCALE
        buffers = {
            dtype: _scaled(flat, scale, dtype) if dtype.is_floating_point else flat.to(dtype)
            for dtype, flat in self.totals().items()
        }
        return self.layout.unpack(buffers)

    def _accumulate(self, dtype: torch.dtype, flat: Tensor) -> None:
        if dtype not in self._totals:
            self._totals[dtype] = flat.clone()
        elif dtype.is_floating_point:
            self._totals[dtype] += flat
        else:
            torch.maximum(self._totals[dtype], flat, out=self._totals[dtype])


def _add_with_rounder(totals: Tensor, flats: Sequence[Tensor], factor: float) -> None:
    """Add the values times the factor, each rounded, and ROUNDER_BITS each, to int64 totals.

    A block goes on where a tensor ends: of a small network's many are smaller. NumPy's int64 sums
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


def _describe(tensors: Tensors) -> str:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"its update is not finite (tensor {name}): try a smaller local.lr"
        if tensor.is_floating_point() and tensor.abs().max().item() > LIMIT:
            largest = tensor.abs().max().item()
            return (
                f"its update is out of range (tensor {name} reaches {largest:.3g}, at most"
                f" {LIMIT:.3g} is allowed): try a smaller local.lr"
            )
    raise AssertionError("called for tensors that are finite and in range")
