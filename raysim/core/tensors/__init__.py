"""Tensors: named sets, packing for transport, exact sums; and torch's private parts.

In: tensors of methods and networks. Out: sets, flat buffers and sums, the same bits in any order.
Imported by all of raysim; imports only errors.
"""

from raysim.core.tensors.normal import standard_normal
from raysim.core.tensors.sets import (
    CPU,
    Groups,
    Layout,
    Tensors,
    add_scaled,
    add_scaled_,
    aligned,
    as_real,
    at_least_float32,
    buffer_names,
    clip_factor,
    contiguous,
    flatten,
    frozen_names,
    inner_products,
    is_finite,
    like,
    nbytes,
    norm,
    only,
    parameter_names,
    state_of,
    unflatten,
    without,
    zeros_like,
)

__all__ = [
    "CPU",
    "Groups",
    "Layout",
    "Tensors",
    "add_scaled",
    "add_scaled_",
    "aligned",
    "as_real",
    "at_least_float32",
    "buffer_names",
    "clip_factor",
    "contiguous",
    "flatten",
    "frozen_names",
    "inner_products",
    "is_finite",
    "like",
    "nbytes",
    "norm",
    "only",
    "parameter_names",
    "standard_normal",
    "state_of",
    "unflatten",
    "without",
    "zeros_like",
]
