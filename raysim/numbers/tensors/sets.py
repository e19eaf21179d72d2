"""Named tensors, and flat buffers for their transport.

`Tensors` is one named set (a model, a control variate); `Groups` names several such sets. For
transport a set is packed into one flat buffer per dtype: one copy in, aligned views out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from raysim.numbers.tensors.base import is_base
from raysim.numbers.tensors.torch_private import foreach_add, foreach_add_, foreach_norm

ALIGNMENT = 64
"""Alignment of tensors in bytes, as in torch's own allocations.

At other addresses, some products of the same values have other bits, for example MKL's on Zen 4.
"""
CPU = torch.device("cpu")
Tensors = Mapping[str, Tensor]
Groups = Mapping[str, Tensors]


def zeros_like(tensors: Tensors) -> dict[str, Tensor]:
    """Return zeros in the shapes of `tensors`."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def only(tensors: Tensors, names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors that have one of the names."""
    return {name: tensor for name, tensor in tensors.items() if name in names}


def without(tensors: Tensors, names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors except the named ones."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def nbytes(groups: Groups) -> int:
    """Return the bytes of the tensors of all groups."""
    return sum(
        tensor.numel() * tensor.element_size()
        for group in groups.values()
        for tensor in group.values()
    )


def add_scaled(tensors: Tensors, others: Tensors, scale: float | Tensor = 1.0) -> dict[str, Tensor]:
    """Return `tensors + scale * others`, by the names in `tensors`; a scale may be a tensor []."""
    added = foreach_add([*tensors.values()], [others[name] for name in tensors], scale)
    return dict(zip(tensors, added, strict=True))


def add_scaled_(tensors: Tensors, others: Tensors, scale: float | Tensor = 1.0) -> Tensors:
    """Add `scale * others` to `tensors` in place, by the names in `tensors`, and return it."""
    foreach_add_([*tensors.values()], [others[name] for name in tensors], scale)
    return tensors


def as_real(tensor: Tensor) -> Tensor:
    """Return complex values [...] as pairs of reals [..., 2], a view; other values unchanged."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def like(values: Tensor, tensor: Tensor) -> Tensor:
    """Undo `as_real`: return values as complex if a tensor is complex."""
    # a slice of a flat vector may begin at an odd place, where torch allows no complex view
    return torch.complex(*values.unbind(-1)) if tensor.is_complex() else values


def number_beside(tensors: Tensors, value: float = 0.0) -> Tensor:
    """Return a number [] on the device of tensors, in float32, or float64 if the first is.

    Flags and whole numbers among them do not count.
    """
    first = next(t for t in map(as_real, tensors.values()) if t.is_floating_point())
    return first.new_tensor(value, dtype=at_least_float32(first.new_zeros(())).dtype)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or unchanged if it is float64 or complex."""
    return tensor if tensor.is_complex() or tensor.dtype == torch.float64 else tensor.float()


def inner_products(tensors: Tensors, others: Tensors) -> Tensor:
    """Return the inner product of each tensor with the other of its name, in order of `tensors`.

    Complex values are pairs of reals. One pass over both, without temporaries, for use in every
    step.
    """
    first = [as_real(tensor).reshape(-1) for tensor in tensors.values()]
    second = first if others is tensors else [as_real(others[n]).reshape(-1) for n in tensors]
    return torch.stack([torch.dot(a, b) for a, b in zip(first, second, strict=True)])


def norm(tensors: Tensors) -> float:
    """Return the Euclidean norm of all tensors as one vector, independent of their order."""
    return float(norm_tensor(tensors))


def norm_tensor(tensors: Tensors) -> Tensor:
    """Return the result of `norm` as a tensor [], without a wait for a GPU."""
    # By name: a resumed run has them in the order of the file, which would change the last bits.
    norms = foreach_norm([tensors[name].detach() for name in sorted(tensors)])
    length: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return length


def clip_factor(length: float, limit: float) -> float:
    """Return the factor that scales a norm down to a limit; 1 for a norm within it."""
    return 1.0 if length <= limit else limit / length


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters and buffers of a network, detached, in definition order.

    Those of its base are left out.
    """
    tensors = {n: p.detach() for n, p in network.named_parameters() if not is_base(p)}
    return tensors | {n: b for n, b in network.named_buffers() if not is_base(b)}


def parameter_names(network: nn.Module) -> frozenset[str]:
    """Return the names of a network's trainable parameters."""
    return frozenset(name for name, p in network.named_parameters() if p.requires_grad)


def buffer_names(network: nn.Module) -> frozenset[str]:
    """Return the names of a network's buffers that are not of its base."""
    return frozenset(name for name, buffer in network.named_buffers() if not is_base(buffer))


@dataclass(frozen=True)
class Layout:
    """Names, dtypes and shapes of a set of tensors, in packing order."""

    entries: tuple[tuple[str, torch.dtype, torch.Size], ...]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """Return the layout of a set of tensors."""
        return cls(tuple((name, t.dtype, t.shape) for name, t in tensors.items()))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(shape.numel() * dtype.itemsize for _, dtype, shape in self.entries)

    def with_dtypes(self, dtypes: Mapping[str, torch.dtype]) -> Layout:
        """Return this layout with other dtypes, by name."""
        if not dtypes:
            return self
        return Layout(tuple((n, dtypes.get(n, dtype), shape) for n, dtype, shape in self.entries))

    def flats(
        self, tensors: Tensors, stack: tuple[int, ...] = ()
    ) -> dict[torch.dtype, list[Tensor]]:
        """Return the tensors per dtype, flat and detached, copied only if not contiguous.

        Zeros between them keep each tensor aligned in a buffer of them all.

        Args:
            tensors: The tensors [...], or of K sets [K, ...].
            stack: () or (K,).
        """
        parts: dict[torch.dtype, list[Tensor]] = {}
        for name, dtype, _ in self.entries:
            flat = tensors[name].detach().reshape(*stack, -1)
            own = parts.setdefault(dtype, [])
            own.append(flat)
            size = flat.shape[-1]
            if padding := _padded(size, dtype) - size:
                zeros = _zeros(dtype, flat.device).expand(*stack, -1)
                own.append(zeros[..., :padding])
        return parts

    def pack(self, tensors: Tensors) -> dict[torch.dtype, Tensor]:
        """Copy the tensors into one flat buffer per dtype, each at an aligned position."""
        return {dtype: torch.cat(flats) for dtype, flats in self.flats(tensors).items()}

    def unpack(self, buffers: Mapping[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """Return the named tensors as views of flat buffers."""
        views: dict[str, Tensor] = {}
        offsets = dict.fromkeys(buffers, 0)
        for name, dtype, shape in self.entries:
            start, size = offsets[dtype], shape.numel()
            views[name] = buffers[dtype][start : start + size].view(shape)
            offsets[dtype] = start + _padded(size, dtype)
        return views


@cache
def _zeros(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that fill ALIGNMENT bytes, made once: on a GPU each would be a kernel."""
    return torch.zeros(ALIGNMENT // dtype.itemsize, dtype=dtype, device=device)


def _padded(elements: int, dtype: torch.dtype) -> int:
    """Round a number of elements up to a multiple of ALIGNMENT bytes."""
    step = ALIGNMENT // dtype.itemsize
    return -(-elements // step) * step


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if it is not aligned to ALIGNMENT bytes."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite, in a ninth of the time of `Tensor.isfinite`."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    return all(map(math.isfinite, read_pair(as_real(tensor.detach().resolve_conj()).aminmax())))


def read_pair(pair: Sequence[Tensor]) -> list[float]:
    """Return two numbers [] of a device; a GPU is waited for once."""
    return torch.stack([*pair]).tolist() if pair[0].is_cuda else [*map(float, pair)]


def not_finite(tensors: Tensors) -> list[str]:
    """Return the names of tensors with values that are not finite.

    A GPU is waited for once a dtype, if all are finite.
    """
    bad = [name for name, t in tensors.items() if not (t.is_cuda or is_finite(t))]
    there = {
        n: t for n, t in tensors.items() if t.is_cuda and (t.is_floating_point() or t.is_complex())
    }
    flats: dict[torch.dtype, list[Tensor]] = {}
    for tensor in there.values():
        real = as_real(tensor.detach().resolve_conj()).reshape(-1)
        flats.setdefault(real.dtype, []).append(real)
    if all(is_finite(torch.cat(parts)) for parts in flats.values()):
        return bad
    return [*bad, *(name for name, tensor in there.items() if not is_finite(tensor))]


def contiguous(tensors: Tensors) -> dict[str, Tensor]:
    """Return contiguous copies that share no memory, as safetensors requires."""
    return {n: t.detach().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}


def flatten(groups: Groups) -> dict[str, Tensor]:
    """Return all groups as one set of tensors, named `group/name`."""
    return {f"{g}/{name}": t for g, group in groups.items() for name, t in group.items()}


def unflatten(tensors: Tensors) -> dict[str, dict[str, Tensor]]:
    """Return the groups of a set of tensors named `group/name`."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups
