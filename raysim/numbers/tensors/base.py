"""Base of a network: the frozen tensors that no round changes.

They are the parameters that are frozen when the network is built, the buffers of modules without a
trained parameter, and constants. They are no part of a model that travels: `state_of` leaves them
out. Copies of a network share them.

A module without parameters is of the part of the network around it. There BatchNorm without weights
counts statistics, which move if that part is trained. Its constants are the buffers of real or
complex numbers that are not persistent, such as the frequencies of rotary position embeddings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raysim.numbers.tensors.torch_private import transient_buffers


class BaseParameter(nn.Parameter):
    """Parameter of a base; a copy of its module has the same one.

    Attributes:
        file: The file whose mapped memory its values are in; None without one.
        started: Whether its values are those of `start_from`, not those that it was built with.
    """

    file: Path | None = None
    started: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> BaseParameter:
        return self


class BaseBuffer(Tensor):
    """Buffer of a base; see `BaseParameter`."""

    file: Path | None = None
    started: bool = False

    # As of a parameter: its operations return plain tensors, and cost no more.
    __torch_function__ = nn.Parameter.__torch_function__

    def __deepcopy__(self, memo: dict[int, Any]) -> BaseBuffer:
        return self


def is_base(tensor: object) -> TypeGuard[BaseParameter | BaseBuffer]:
    """Return whether a tensor belongs to a base."""
    return isinstance(tensor, BaseParameter | BaseBuffer)


def base_of(network: nn.Module) -> dict[str, BaseParameter | BaseBuffer]:
    """Return the tensors of a network's base, in definition order."""
    tensors = (*network.named_parameters(), *network.named_buffers())
    return {name: tensor for name, tensor in tensors if is_base(tensor)}


def set_base(network: nn.Module, moved: Collection[str] = ()) -> None:
    """Make the frozen tensors of a network its base.

    A parameter that shares its memory with a trained one is trained, too.

    Args:
        network: The network.
        moved: Names of frozen parameters that a method's server changes, which are no part of it.
    """
    trained = _freeze(dict(network.named_parameters()), moved)
    for buffer in _unmoved_buffers(network, trained):
        if type(buffer) is Tensor:
            buffer.__class__ = BaseBuffer


def rebase(network: nn.Module, moved: Collection[str]) -> None:
    """Let the base of a model, of which a method has made a network, follow what it has frozen.

    Parameters that it has frozen are of the base, those that it trains are not. Its own buffers are
    none of the base's.

    Args:
        network: The network.
        moved: As of `set_base`.

    Raises:
        ValueError: it trains a frozen parameter of which it has another copy; the copies are one.
    """
    parameters = dict(network.named_parameters())
    everywhere = [id(p) for _, p in network.named_parameters(remove_duplicate=False)]
    for name, parameter in parameters.items():
        if is_base(parameter) and (parameter.requires_grad or name in moved):
            if everywhere.count(id(parameter)) > 1:
                raise ValueError(name)
            unset: Any = parameter
            unset.__class__ = nn.Parameter
    trained = _freeze(parameters, moved)
    unmoved = {id(buffer) for buffer in _unmoved_buffers(network, trained)}
    for buffer in network.buffers():
        if is_base(buffer) and id(buffer) not in unmoved:
            unset = buffer
            unset.__class__ = Tensor


def unset_base(network: nn.Module) -> None:
    """Make the tensors of a network's base plain ones again, which copies do not share."""
    tensor: Any
    for tensor in base_of(network).values():
        tensor.__class__ = nn.Parameter if isinstance(tensor, BaseParameter) else Tensor


def base_on(network: nn.Module, device: torch.device) -> None:
    """Move a network's base to a device, in tensors of its own; copies made before keep theirs."""
    moved: dict[int, Tensor] = {}
    for module in network.modules():
        own = (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        )
        for name, tensor in own:
            if is_base(tensor) and tensor.device != device:
                if id(tensor) not in moved:
                    moved[id(tensor)] = _like(tensor, tensor.detach().to(device))
                setattr(module, name, moved[id(tensor)])


def resting(network: nn.Module) -> list[nn.Module]:
    """Return the modules that stay in evaluation mode: all of their own tensors are a base's.

    Modules with buffers alone that are not persistent are not among them, as they may be of a
    trained part, nor are recurrent ones: cuDNN has no backward pass for them in evaluation mode.
    """
    found = []
    for module in network.modules():
        buffers = dict(module.named_buffers(recurse=False))
        own = [*module.parameters(recurse=False), *buffers.values()]
        lasting = len(own) - len(transient_buffers(module) & buffers.keys())
        if lasting and all(map(is_base, own)) and not isinstance(module, nn.RNNBase):
            found.append(module)
    return found


def _freeze(parameters: Mapping[str, nn.Parameter], moved: Collection[str]) -> _Memory:
    """Make frozen parameters a base's; return the memory of the trained ones."""
    trained = _Memory(p for p in parameters.values() if p.requires_grad)
    for name, parameter in parameters.items():
        if parameter.requires_grad or name in moved or trained.holds(parameter):
            continue
        if type(parameter) is nn.Parameter:
            parameter.__class__ = BaseParameter
    return trained


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return values as a parameter or a buffer of a base, as the tensor is."""
    if isinstance(tensor, BaseParameter):
        return BaseParameter(values, requires_grad=False)
    values.__class__ = BaseBuffer
    return values


class _Memory:
    """Memory of some tensors; lazy ones have none yet."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        ranges = sorted(_range(tensor) for tensor in tensors if not is_lazy(tensor))
        self._starts = [start for start, _ in ranges]
        self._ends = [*accumulate((end for _, end in ranges), max)]

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor shares a part of the memory, or has none yet."""
        if is_lazy(tensor):
            return True
        start, end = _range(tensor)
        before = bisect_left(self._starts, end)  # tensors that begin before its end
        return before > 0 and self._ends[before - 1] > start


def _range(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor's values, and the one after the last."""
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _unmoved_buffers(network: nn.Module, trained: _Memory) -> Iterator[Tensor]:
    """Yield the buffers of modules without a trained parameter, and constants.

    Args:
        network: The network.
        trained: The memory of the trained parameters.
    """
    untrained: dict[str, bool] = {}  # by a module's name; those around it come first
    for name, module in network.named_modules():
        parameters, transient = [*module.parameters()], transient_buffers(module)
        around = untrained.get(name.rpartition(".")[0], False) if name else False
        untrained[name] = (
            not any(p.requires_grad or trained.holds(p) for p in parameters)
            if parameters
            else around
        )
        for key, buffer in module.named_buffers(recurse=False):
            is_real = buffer.is_floating_point() or buffer.is_complex()
            is_constant = not parameters and key in transient and is_real
            if (untrained[name] or is_constant) and not trained.holds(buffer):
                yield buffer
