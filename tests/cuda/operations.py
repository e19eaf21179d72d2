"""What CUDA does at operations: kernels, waits, and refusals in deterministic mode.

Numbers of kernels are those of CUDA 12 and 13 within one or two; what matters is that they change
with the code that is counted.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

NONDETERMINISTIC = {
    *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("adaptive_max_pool2d_backward", "avg_pool3d_backward", "max_pool3d_with_indices_backward"),
    *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    *("max_unpool2d", "max_unpool3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward"),
    *("upsample_bicubic2d_backward", "upsample_trilinear3d_backward"),
    *(f"re{kind}_pad{n}d_backward" for kind in ("flection", "plication") for n in (1, 2, 3)),
    *("nll_loss2d_forward", "nll_loss2d_backward", "_ctc_loss_backward"),
    *("put_", "kthvalue", "scatter_reduce", "_embedding_bag_backward"),
}
"""Operations without a deterministic kernel, of any values; see `use_deterministic_algorithms`."""
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"),
    *("unique_dim", "_unique2", "unique_consecutive", "bincount", "histc"),
    *("_linalg_svd", "_linalg_eigh", "linalg_eig"),
}
"""Operations whose results the host reads, or whose sizes it must know."""
NO_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("_unsafe_view", "is_same_size", "set_", "resize_", "lift", "_local_scalar_dense"),
}
KERNELS = {
    **{"convolution": 2, "convolution_backward": 3, "linalg_qr": 6, "topk": 4, "sort": 4},
    **{"randperm": 4, "nonzero": 3, "index_put_": 5, "embedding_dense_backward": 6},
    "constant_pad_nd": 2,
}
"""Kernels of operations of more than one."""
FOREACH = 36
"""Tensors that a kernel of a foreach operation takes."""
OWN_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations that take indices of the host, and copy them."""
NO_HOST_SCALARS = {"cat", "stack", "index_select", "gather", "scatter", "index_copy", "index_add"}
"""Operations that refuse tensors [] of the host, which others take as numbers."""


@cache
def name_of(func: Any) -> str:
    """Return an operation's name without namespace and overload."""
    return str(func._schema.name).removeprefix("aten::")


@cache
def is_view(func: Any) -> bool:
    """Return whether an operation only returns a view of an argument."""
    schema = func._schema
    return not schema.is_mutable and any(each.alias_info for each in schema.returns)


def kernels(func: Any, args: tuple[Any, ...]) -> int:
    """Return how many kernels an operation launches."""
    name = name_of(func)
    if name in NO_KERNEL or is_view(func):
        return 0
    if name.startswith("_foreach"):
        return max(1, math.ceil(len(args[0]) / FOREACH))
    return KERNELS.get(name, 1)


def waits(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the host waits for an operation."""
    masks = func._overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_)
    return name_of(func) in WAITING or (
        masks and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
    )


def is_nondeterministic(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operation has no deterministic kernel for these arguments."""
    name = name_of(func)
    if name in ("cumsum", "histc"):
        return bool(args[0].is_floating_point())
    if name in ("median", "nanmedian"):  # of all values there are no indices
        return "dim" in func._overloadname
    if name == "bincount":
        return len(args) > 1 and args[1] is not None
    return name in NONDETERMINISTIC
