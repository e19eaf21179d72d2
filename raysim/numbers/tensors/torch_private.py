"""Private and deprecated parts of torch, each with a public replacement.

No other module names one. Parts are looked up when this module is imported; if one is missing, its
public replacement returns the same bits in more time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn


def _part(path: str) -> Any:
    """Return the part of torch at a dotted path, or None if it is missing."""
    try:
        return attrgetter(path)(torch)
    except AttributeError:
        return None


_foreach_add = _part("_foreach_add")
_foreach_add_ = _part("_foreach_add_")
_foreach_copy_ = _part("_foreach_copy_")
_foreach_mul = _part("_foreach_mul")
_foreach_norm = _part("_foreach_norm")
_innermost_transform = _part("_C._functorch.peek_interpreter_stack")
_run_backward = _part("autograd.Variable._execution_engine.run_backward")
_DispatchMode = _part("utils._python_dispatch.TorchDispatchMode")
_CompilationUnit = _part("jit.CompilationUnit")
_is_optimized = _part("_C._get_graph_executor_optimize")
_set_optimized = _part("_C._set_graph_executor_optimize")
_set_grad_mode = _part("_C._set_grad_enabled")
_has_mkldnn = _part("_C._get_mkldnn_enabled")
_set_mkldnn = _part("_C._set_mkldnn_enabled")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_A_PROCESS = re.compile(
    r" at 0x[0-9a-f]+|\.___torch_mangle_\d+| # \S+:\d+:\d+$|= [^=]*?\[ \w+Type\{.*?\} \]",
    re.MULTILINE,
)
"""Addresses, lines of sources and values of tensors in the text of a TorchScript module."""
FOREACH = "_foreach_"
"""Part of the names of operations on lists of tensors, which apply another one to each."""

Operation = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]


def _runs_foreach(function: Any) -> bool:
    """Return whether a foreach function exists and runs here, as none does under vmap."""
    return function is not None and _innermost_transform is not None and not _innermost_transform()


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return of each tensor a number that its changes in place raise, but through `.data`.

    Views share it with their tensor. Tensors of an inference mode have none: 0.
    """
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def foreach_add(
    tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float | Tensor
) -> list[Tensor]:
    """Return `tensor + alpha * other` for each pair; alpha may be a tensor []."""
    if isinstance(alpha, Tensor):
        return [a + alpha * b for a, b in zip(tensors, others, strict=True)]
    if _runs_foreach(_foreach_add):
        return list(_foreach_add(tensors, others, alpha=alpha))
    return [torch.add(a, b, alpha=alpha) for a, b in zip(tensors, others, strict=True)]


def foreach_add_(
    tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float | Tensor
) -> None:
    """Add `alpha * other` to every tensor in place; alpha may be a tensor []."""
    if isinstance(alpha, Tensor):
        for tensor, other in zip(tensors, others, strict=True):
            tensor.add_(alpha * other)
        return
    if _runs_foreach(_foreach_add_):
        _foreach_add_(tensors, others, alpha=alpha)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=alpha)


def foreach_copy_(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Copy every other tensor into the tensor at its place; their dtypes may differ."""
    pairs = [*zip(tensors, others, strict=True)]
    if not _runs_foreach(_foreach_copy_):
        for tensor, other in pairs:
            tensor.copy_(other)
        return
    alike: dict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for tensor, other in pairs:  # CUDA's fast kernel looks at the dtype of one tensor alone
        alike.setdefault((tensor.dtype, other.dtype), []).append((tensor, other))
    for group in alike.values():
        _foreach_copy_(*zip(*group, strict=True))


def foreach_squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the squares of every tensor's values."""
    if _runs_foreach(_foreach_mul):
        return list(_foreach_mul(tensors, tensors))
    return [tensor.square() for tensor in tensors]


def foreach_mixed(
    tensors: Sequence[Tensor],
    others: Sequence[Tensor],
    weights: Sequence[float],
    own: Sequence[float],
) -> list[Tensor]:
    """Return `weight * tensor + own * other` for each pair and its weights."""
    if _runs_foreach(_foreach_mul) and _foreach_add_ is not None:
        mixed = list(_foreach_mul(tensors, weights))
        _foreach_add_(mixed, _foreach_mul(others, own))
        return mixed
    pairs = zip(tensors, others, weights, own, strict=True)
    return [weight * tensor + share * other for tensor, other, weight, share in pairs]


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of every tensor."""
    if _runs_foreach(_foreach_norm):
        return list(_foreach_norm(tensors))
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def gradients_of(value: Tensor, points: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a value; zeros if it does not depend on a point.

    The Python checks of `torch.autograd.grad` took a tenth of a small network's step.
    """
    if _run_backward is None:
        return [*torch.autograd.grad(value, points, allow_unused=True, materialize_grads=True)]
    gradients = _run_backward(
        (value,),
        (torch.ones_like(value),),
        False,
        False,
        tuple(points),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    pairs = zip(gradients, points, strict=True)
    return [torch.zeros_like(p) if gradient is None else gradient for gradient, p in pairs]


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module may have hooks, which run only when the module is called."""
    return any(getattr(module, hooks, True) for hooks in _HOOKS)


def forward_pre_hooks(module: nn.Module) -> list[Any]:
    """Return the forward pre-hooks of a module, which torch does not list publicly."""
    return [*getattr(module, "_forward_pre_hooks", {}).values()]


def tensor_hooks(tensor: Tensor) -> list[Any]:
    """Return the hooks of a tensor's gradient, which torch does not list publicly."""
    return [*(getattr(tensor, "_backward_hooks", None) or {}).values()]


def is_script(module: nn.Module) -> bool:
    """Return whether a module is a TorchScript module, which torch deprecates."""
    return isinstance(module, torch.jit.ScriptModule)


def script_text(module: nn.Module) -> str:
    """Return the code and the attributes of a TorchScript module, without its tensors."""
    dump = getattr(getattr(module, "_c", None), "dump_to_str", None)
    text = str(dump(True, True, False) if dump else getattr(module, "code", ""))
    return _OF_A_PROCESS.sub("", text)


def is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` made a module; the given one is a module within it."""
    return type(module).__module__.startswith("torch._dynamo")


def buffers_of(module: nn.Module) -> Any:
    """Return a module's own buffers by name, including None, which torch leaves out."""
    return getattr(module, "_buffers", {})


def transient_buffers(module: nn.Module) -> frozenset[str]:
    """Return the names of a module's own buffers that are not persistent."""
    return frozenset(getattr(module, "_non_persistent_buffers_set", ()))


def can_record_steps() -> bool:
    """Return whether operations can be watched and TorchScript can run, without a replacement."""
    parts = (_DispatchMode, _CompilationUnit, _is_optimized, _set_optimized, _set_grad_mode)
    return all(part is not None for part in parts)


def watch_operations(seen: Operation) -> AbstractContextManager[Any]:
    """Return a context that calls `seen(function, args, kwargs, out)` below autograd."""

    class Watch(_DispatchMode):  # type: ignore[misc,valid-type]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch's compiler is imported to be disabled: two seconds

        def __torch_dispatch__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            out = function(*args, **(kwargs or {}))
            seen(function, args, kwargs or {}, out)
            return out

    return Watch()


@lru_cache(64)  # runs in one process often take the same steps
def compile_script(source: str, name: str) -> Callable[..., Sequence[Tensor]]:
    """Compile a function of TorchScript, without optimisations, which may change bits.

    The function may change the grad mode, which is then as it was before.
    """
    script = getattr(_CompilationUnit(source), name)

    def run(*args: Tensor) -> Sequence[Tensor]:
        optimized, grad_mode = _is_optimized(), torch.is_grad_enabled()
        _set_optimized(False)
        try:
            return script(*args)  # type: ignore[no-any-return]
        finally:
            _set_optimized(optimized)
            _set_grad_mode(grad_mode)

    return run


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """Run the body without oneDNN: its fused LSTM is one operation that torch does not count."""
    if _has_mkldnn is None or _set_mkldnn is None:
        with torch.backends.mkldnn.flags(enabled=False):  # torch warns of TF32 even without it
            yield
        return
    before = _has_mkldnn()
    _set_mkldnn(False)
    try:
        yield
    finally:
        _set_mkldnn(before)
