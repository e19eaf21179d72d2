"""Tensors: named sets of them, packed for travel, added exactly; and torch's private parts.

In: tensors of methods and networks. Out: sets, flat buffers and sums, the same bits in any order.
Imported by all of raysim; knows nothing but errors.
"""

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
    contiguous,
    flatten,
    frozen_names,
    inner_products,
    like,
    nbytes,
    norm,
    parameter_names,
    state_of,
    unflatten,
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
    "contiguous",
    "flatten",
    "frozen_names",
    "inner_products",
    "like",
    "nbytes",
    "norm",
    "parameter_names",
    "state_of",
    "unflatten",
    "zeros_like",
]
