"""Differences of uploads, which stages of the channel change, and their way back into tensors.

A client adds `start + d` in float64 to the exact sum, which is cast after the mean. A tensor with
an unchanged difference is sent with its own bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.api.rules import CHANGE, Bases, Upload
from raysim.numbers.arrays import Floats
from raysim.numbers.tensors import Groups, Layout, Tensors, as_real, flatten, like, unflatten

Values = npt.NDArray[np.float32] | Floats
NO_TENSORS: Tensors = MappingProxyType({})


@dataclass(frozen=True)
class Differences:
    """Differences of the tensors of some groups.

    Attributes:
        sums: The groups.
        starts: The tensors that groups with a base have moved from.
        changes: The differences, in float64, complex ones as pairs of reals.
        params: The client's parameters; clients send in their dtypes.
    """

    sums: Groups
    starts: Groups
    changes: dict[str, dict[str, Tensor]]
    params: Tensors

    @classmethod
    def of(
        cls,
        sums: Groups,
        bases: Bases,
        broadcast: Groups,
        *,
        params: Tensors = NO_TENSORS,
    ) -> Differences:
        """Return the differences of groups.

        Args:
            sums: The groups.
            bases: For each group, the broadcast group that it has moved from, or CHANGE.
            broadcast: The broadcast groups.
            params: The client's parameters; clients send in their dtypes.
        """
        starts = {group: broadcast.get(base, {}) for group, base in bases.items() if base != CHANGE}
        changes: dict[str, dict[str, Tensor]] = {}
        for group in sorted(sums.keys() & bases.keys()):  # draws are taken in this order
            tensors = sums[group]
            names = moving_names(tensors, starts.get(group))
            moved = {n: _difference(tensors[n], starts.get(group, {}).get(n)) for n in names}
            if moved:
                changes[group] = moved
        return cls(sums, starts, changes, params)

    @property
    def layout(self) -> Layout:
        """Layout of the tensors that have differences, as a client would send them.

        A change may be in float64, so that its sum is exact; it is sent in the parameter's dtype.
        """
        moved = {group: [*changed] for group, changed in self.changes.items()}
        return _layout(self.sums, moved, self.params)

    def with_changes(self, changed: Groups) -> tuple[Groups, dict[str, torch.dtype]]:
        """Return the groups with other differences, and the dtypes of tensors now in float64.

        Args:
            changed: The differences; may be `changes` itself, changed in place. Where a difference
                is equal, the tensor keeps its bits.
        """
        differ: dict[str, dict[str, Tensor]] = {}
        for group, moved in changed.items():
            starts = self.starts.get(group, {})
            differ[group] = {
                name: difference
                for name, difference in moved.items()
                if not torch.equal(
                    difference.double(), _difference(self.sums[group][name], starts.get(name))
                )
            }
        return self._with(differ)

    def _with(self, changed: Groups) -> tuple[Groups, dict[str, torch.dtype]]:
        """Return the result of `with_changes`, without comparing differences."""
        sums = {group: dict(tensors) for group, tensors in self.sums.items()}
        dtypes: dict[str, torch.dtype] = {}
        for group, moved in changed.items():
            for name, difference in moved.items():
                was, value = self.sums[group][name], difference.double()
                if group in self.starts:
                    value = _copied(self.starts[group][name]).add_(value)
                sums[group][name] = like(value.contiguous(), was)
                dtypes[f"{group}/{name}"] = was.dtype
        return sums, dtypes

    def means_with(self, changed: Groups) -> dict[str, dict[str, Tensor]]:
        """Return the groups with other differences, in their own dtypes."""
        return _in_dtypes(*self.with_changes(changed))

    def moved_to(self, bases: Bases, broadcast: Groups) -> dict[str, dict[str, Tensor]]:
        """Return the groups as if their differences had another start, in their own dtypes.

        Args:
            bases: The bases of the groups.
            broadcast: The tensors of the new start.
        """
        starts = {group: broadcast[base] for group, base in bases.items() if base != CHANGE}
        return _in_dtypes(*replace(self, starts=starts)._with(self.changes))


def layout_of(sums: Groups, bases: Bases, broadcast: Groups, *, params: Tensors) -> Layout:
    """Return the layout of the differences of groups, without computing them.

    See `Differences.of` for the arguments.
    """
    moved = {}
    for group in sums.keys() & bases.keys():
        start = None if bases[group] == CHANGE else broadcast.get(bases[group], {})
        moved[group] = moving_names(sums[group], start)
    return _layout(sums, moved, params)


def _layout(sums: Groups, moved: Mapping[str, Collection[str]], params: Tensors) -> Layout:
    entries = []
    for group in sorted(moved):
        for name in sorted(moved[group]):
            tensor = sums[group][name]
            entries.append((f"{group}/{name}", params.get(name, tensor).dtype, tensor.shape))
    return Layout(tuple(entries))


def split_stored(
    upload: Upload, bases: Bases, broadcast: Groups
) -> tuple[Upload, dict[str, Tensor]]:
    """Return an upload without the tensors that are kept one by one, and those, by `group/name`.

    Args:
        upload: The upload.
        bases: The bases of the groups that are kept.
        broadcast: The broadcast groups.
    """
    kept: dict[str, Tensor] = {}
    sums: dict[str, Tensors] = {}
    for group, tensors in upload.sums.items():
        base = bases.get(group)
        start = None if base == CHANGE else broadcast.get(base or "", NO_TENSORS)
        moved = moving_names(tensors, start)
        kept |= {f"{group}/{name}": tensors[name] for name in moved}
        sums[group] = {name: t for name, t in tensors.items() if name not in moved}
    left = {key: dtype for key, dtype in upload.dtypes.items() if key not in kept}
    sent = upload.sent_bytes()
    ordered = dict(sorted(kept.items()))
    return replace(upload, sums=sums, dtypes=left, bytes_up=sent), ordered


def flat_values(tensors: Tensors, layout: Layout) -> Values:
    """Return tensors as one vector [N], in float32, or in float64 where a dtype needs it.

    Args:
        tensors: The tensors, in the order of the layout.
        layout: Their layout as they would be sent; it has the dtypes to cast to.
    """
    wide = any(dtype in (torch.float64, torch.complex128) for _, dtype, _ in layout.entries)
    kind = torch.float64 if wide else torch.float32
    parts = [
        as_real(tensors[name].detach().to(dtype).resolve_conj()).reshape(-1).to(kind)
        for name, dtype, _ in layout.entries
    ]
    values: Values = torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.float32)
    return values


def of_flat_values(values: Values, layout: Layout) -> dict[str, Tensor]:
    """Return the tensors of a layout from one vector [N]."""
    tensors, at = {}, 0
    for name, dtype, shape in layout.entries:
        size = shape.numel() * (2 if dtype.is_complex else 1)
        part = torch.from_numpy(values[at : at + size].copy())
        pairs = part.reshape(*shape, 2) if dtype.is_complex else part.reshape(shape)
        tensors[name] = (torch.view_as_complex(pairs) if dtype.is_complex else pairs).to(dtype)
        at += size
    return tensors


def same_shapes(groups: Groups, others: Groups) -> bool:
    """Return whether groups have the same names and shapes of floating-point tensors."""
    one, other = flatten(groups), flatten(others)
    return one.keys() == other.keys() and all(
        isinstance(tensor, Tensor)
        and tensor.shape == other[name].shape
        and tensor.is_floating_point()
        for name, tensor in one.items()
    )


def moving_names(tensors: Tensors, start: Tensors | None) -> list[str]:
    """Return the names of a group's tensors that have differences, sorted.

    Args:
        tensors: The group.
        start: The tensors that the group has moved from; None if it is a change itself.
    """
    return [
        name
        for name, tensor in sorted(tensors.items())
        if (tensor.is_floating_point() or tensor.is_complex()) and (start is None or name in start)
    ]


def _difference(tensor: Tensor, start: Tensor | None) -> Tensor:
    """Return a tensor's difference from its start as a new tensor; of a change, a copy."""
    return _copied(tensor) if start is None else _copied(tensor).sub_(_reals(start))


def _in_dtypes(sums: Groups, dtypes: Mapping[str, torch.dtype]) -> dict[str, dict[str, Tensor]]:
    tensors = flatten(sums)
    return unflatten(tensors | {key: tensors[key].to(d) for key, d in dtypes.items()})


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in float64, a complex one as pairs of reals.

    Work in place on it is a third faster than with further temporary tensors.
    """
    return _reals(tensor).to(torch.float64, copy=True)


def _reals(tensor: Tensor) -> Tensor:
    """Return the tensor, complex values as pairs of reals. torch promotes it to float64."""
    return as_real(tensor.detach().resolve_conj())
