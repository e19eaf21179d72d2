"""Operations of a step below autograd, as source of TorchScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raysim.numbers.tensors.torch_private import FOREACH, watch_operations

READS = frozenset(
    {
        *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__),
        *(Tensor.__repr__, Tensor.__format__, Tensor.__reduce_ex__),
        *(Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage),
        *(Tensor.apply_, Tensor.map_, Tensor.map2_),
    }
)
"""Functions of Python that read or set a tensor's values without an operation.

Other such functions are recognised by their result: a string, bytes or an array.
"""
SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
"""Replaces the memory of a tensor, which is no operation either."""
SPLITS = frozenset({torch.tensor_split, Tensor.tensor_split})
"""Functions that read a tensor of positions without an operation below autograd."""
PACKS = "aten::_pack_padded_sequence"
"""Returns batch sizes that recurrent layers read; torch does not tag it."""
VALUE_DEPENDENT = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Tags of operations that return a number or a shape that depends on values."""
ALIASES = frozenset({"aten::alias", "aten::detach"})
"""Operations that return their argument."""
ELEMENTWISE = frozenset({"aten::add", "aten::sub", "aten::mul", "aten::div"})
"""Operations that can write their result over their first argument, under a name that ends in _.

A call on lists of tensors is recorded as one call for each tensor.
"""
_NAMES = """
_cdist_forward _log_softmax _log_softmax_backward_data _prelu_kernel _prelu_kernel_backward
_safe_softmax _softmax _softmax_backward_data _to_copy _unsafe_view abs adaptive_max_pool2d
adaptive_max_pool2d_backward add add_ addcmul addmm amax amin aminmax any arange argmax atanh
avg_pool2d avg_pool2d_backward avg_pool3d bernoulli bernoulli_ binary_cross_entropy
binary_cross_entropy_backward binary_cross_entropy_with_logits bitwise_not bmm cat celu clamp
clamp_min clamp_min_ clone constant_pad_nd convolution convolution_backward copy_ cos cumprod
cumsum detach div div_ dot elu elu_backward embedding embedding_dense_backward empty empty_like
eq erf exp expand expm1 fill_ flip floor full_like gather gelu gelu_backward gt hardsigmoid
hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward huber_loss
huber_loss_backward hypot index index_add index_put index_select isnan le leaky_relu
leaky_relu_backward lerp linalg_vector_norm log log1p log_sigmoid_backward log_sigmoid_forward
logical_and logical_and_ logical_or_ logspace logsumexp lt masked_fill masked_fill_ max
max_pool2d_with_indices max_pool2d_with_indices_backward maximum mean min minimum mish
mish_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward mm mse_loss mse_loss_backward mul mul_
multi_margin_loss multi_margin_loss_backward mv native_batch_norm native_batch_norm_backward
native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward ne neg
new_empty new_full new_zeros nll_loss_backward nll_loss_forward ones ones_like permute
pixel_shuffle pixel_unshuffle pow prod rand_like randn_like reciprocal reflection_pad2d relu
relu_ remainder repeat roll round rsqrt rsub scalar_tensor scatter scatter_ scatter_add select
select_backward sgn sigmoid sigmoid_ sigmoid_backward sign silu silu_backward sin slice
slice_backward smooth_l1_loss smooth_l1_loss_backward softplus softplus_backward sort split sqrt
squeeze stack std sub sub_ sum t tanh tanh_ tanh_backward threshold_backward transpose
transpose_ tril triu unbind unsafe_split unsqueeze upsample_bilinear2d upsample_nearest2d var
view where xlogy zeros zeros_like
"""
TESTED = frozenset(f"aten::{name}" for name in _NAMES.split())
"""Operations with the same bits on tensors with and without gradient (`tests/training`).

A script runs all of them on tensors without gradient. An operation for a whole layer, as of an
encoder layer, may run other code with a gradient, and two batches need not show it.
"""
CONSTANT = bool | int | float | str | torch.dtype | torch.layout | torch.memory_format | None


class UnrecordableError(Exception):
    """Error of a step that cannot be recorded."""


def source_of(step: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> str:
    """Take a step and return the source of a function `step` that does the same.

    Args:
        step: Function that takes the step and returns tensors.
        inputs: The tensors that the step may read, in the order of the function's arguments.

    Raises:
        UnrecordableError: the step cannot be recorded.
    """
    script = _ScriptSource(inputs)
    with _ReadGuard(script), watch_operations(script.write):
        returned = step()
    results = ", ".join(script.argument(tensor) for tensor in returned)
    if script.unsupported_reason:
        raise UnrecordableError(script.unsupported_reason)
    arguments = ", ".join(f"{script.argument(tensor)}: Tensor" for tensor in inputs)
    lines = script.lines([*inputs, *returned])
    return "\n    ".join([f"def step({arguments}):", *lines, f"return {results}\n"])


def from_elsewhere(step: Callable[[], object], inputs: Sequence[Tensor]) -> str:
    """Take a step; describe the first tensor from outside it; return an empty text without one.

    Args:
        step: Function that takes the step.
        inputs: The tensors that it may read.
    """
    known, found = {_memory(tensor) for tensor in inputs}, list[str]()

    def see(function: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        read = _tensors([*args, *kwargs.values()])
        found.extend(
            f"a tensor {tuple(tensor.shape)} is from elsewhere; register it as a buffer"
            for tensor in read
            if tensor.dim() and tensor.numel() and _memory(tensor) not in known
        )
        known.update(map(_memory, _tensors(out)))

    with watch_operations(see):
        step()
    return next(iter(found), "")


@dataclass
class _Call:
    """Call below autograd: its source, and its tensors."""

    name: str
    arguments: str
    returned: Sequence[str]
    args: Sequence[Any]
    given: Sequence[Tensor]
    out: Sequence[Any]
    grad_mode: bool

    def line(self, in_place: bool) -> str:
        """Return the source; `in_place` writes the result over the first argument."""
        result = f"{', '.join(self.returned)} = " if self.returned else ""
        function = f"torch.ops.{self.name.replace('::', '.')}{'_' * in_place}"
        return f"{result}{function}({self.arguments})"

    def may_overwrite(self) -> bool:
        """Return whether the result may overwrite the first argument, if unused later."""
        if self.name not in ELEMENTWISE or self.args[0] is not self.given[0]:
            return False
        first, *others = self.given
        kinds = [(each.dtype, each.shape, each.stride()) for each in (first, *self.out)]
        return kinds[0] == kinds[1] and _memory(first) not in map(_memory, others)


class _ScriptSource:
    """Calls of a step, and the names of their tensors."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.unsupported_reason: str | None = None
        self._calls: list[_Call] = []
        self._named: dict[
            int, tuple[str, Tensor]
        ] = {}  # holds the tensors, so that their ids stay theirs
        for tensor in inputs:
            self._name(tensor)

    def write(self, function: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """Add a call and its result."""
        name = function.name().partition(".")[0]
        if name in ALIASES:
            self._named[id(out)] = (self.argument(args[0]), out)
            return
        if name.replace(FOREACH, "") not in TESTED:
            self.unsupported_reason = f"{name} may take other kernels without gradient"
        if not VALUE_DEPENDENT.isdisjoint(function.tags) or name == PACKS:
            self.unsupported_reason = f"{name} depends on values"
        outs = [out] if isinstance(out, Tensor) else out or ()
        single = name.replace(FOREACH, "")
        if single == name or single.rstrip("_") not in ELEMENTWISE:
            self._add(name, args, kwargs, outs)
            return
        for index, first in enumerate(args[0]):  # a script takes no list's `alpha` as it is
            arguments = [
                argument[index] if isinstance(argument, list | tuple) else argument
                for argument in args
            ]
            self._add(single, arguments, kwargs, [outs[index] if outs else first])

    def _add(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Any]
    ) -> None:
        arguments = [self.argument(value) for value in args]
        arguments += [f"{key}={self.argument(value)}" for key, value in kwargs.items()]
        returned = [self._name(value) for value in outs]
        tensors = _tensors([*args, *kwargs.values()])
        mode = torch.is_grad_enabled()
        self._calls.append(_Call(name, ", ".join(arguments), returned, args, tensors, outs, mode))

    def lines(self, kept: Sequence[Tensor]) -> list[str]:
        """Return a line for each call; all tensors but the kept ones may be overwritten.

        Some operations take other kernels where autograd is off, so a line sets the mode of the
        calls after it.

        An elementwise call writes its result over its first argument if no later call reads that:
        the same bits, and the memory of a new tensor would not be in the cache.
        """
        last_use: dict[int, int] = {}
        for number, call in enumerate(self._calls):
            last_use |= {_memory(tensor): number for tensor in (*call.given, *_tensors(call.out))}
        last_use |= {_memory(tensor): len(self._calls) for tensor in kept}
        texts: list[str] = []
        mode: bool | None = None
        for number, call in enumerate(self._calls):
            if call.grad_mode != mode:
                mode = call.grad_mode
                texts.append(f"torch.set_grad_enabled({mode})")
            unused = call.may_overwrite() and last_use[_memory(call.given[0])] == number
            texts.append(call.line(in_place=unused))
        return texts

    def argument(self, value: Any) -> str:
        """Return the source of a value."""
        if isinstance(value, Tensor):
            if id(value) not in self._named:
                self.unsupported_reason = f"a tensor {tuple(value.shape)} is from elsewhere"
                return ""
            return self._named[id(value)][0]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        if isinstance(value, CONSTANT):
            return repr(value)
        self.unsupported_reason = f"{type(value).__name__} cannot be recorded"
        return ""

    def _name(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return "_"
        return self._named.setdefault(id(value), (f"t{len(self._named)}", value))[0]


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, or in lists of values."""
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, Tensor) else []


def _memory(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, which views share, while the tensor exists."""
    return tensor.untyped_storage().data_ptr()


class _ReadGuard(TorchFunctionMode):
    """Mode that notes functions which read or set values without an operation."""

    def __init__(self, script: _ScriptSource) -> None:
        super().__init__()
        self._script = script

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function == SET_DATA:
            self._script.unsupported_reason = "the memory of a tensor is replaced"
        result = function(*args, **(kwargs or {}))
        splits = function in SPLITS and len(_tensors([*args, *(kwargs or {}).values()])) > 1
        if function in READS or splits or isinstance(result, str | bytes | np.ndarray):
            self._script.unsupported_reason = f"{function.__name__} reads values"
        return result
