"""Tensors of several clients as stacks along a first axis.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from raysim.errors import RunError
from raysim.numbers.tensors import Layout, Tensors, flatten
from raysim.numbers.tensors.torch_private import foreach_copy_
from raysim.training.job import ClientJob

Tree = Mapping[str, Any]


def split_by_layout(jobs: Sequence[ClientJob]) -> list[list[int]]:
    """Group the positions of the jobs that can share a stack.

    They have the same epochs, and the names and shapes of their clients' own tensors and of the
    broadcast ones are equal.
    """

    def kind(number: int) -> str:
        job = jobs[number]
        groups = (flatten(group) for group in (job.state, job.personal, job.broadcast))
        # By name: tensors read from a file are in another order than the network's.
        layouts = [Layout.of(dict(sorted(tensors.items()))) for tensors in groups]
        return repr([job.epochs, layouts])

    return [list(same) for _, same in groupby(sorted(range(len(jobs)), key=kind), key=kind)]


def stack_trees(trees: Sequence[Tree]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stack trees of tensors, except shared tensors; return the stacks with their axes."""
    stacked: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    for key, first in trees[0].items():
        leaves = [tree[key] for tree in trees]
        if isinstance(first, Mapping):
            stacked[key], axes[key] = stack_trees(leaves)
        elif all(leaf is first for leaf in leaves):
            stacked[key], axes[key] = first, None
        else:
            stacked[key], axes[key] = torch.stack(leaves), 0
    return stacked, axes


def leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the paths and tensors of a tree, without its numbers."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        elif isinstance(value, Tensor):
            yield (*path, key), value


def copy_tree(tree: Tree, copies: dict[int, Tensor] | None = None) -> dict[str, Any]:
    """Return a tree with copies of its tensors; a tensor used twice is copied once."""
    copies = {} if copies is None else copies
    copied: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            copied[key] = copy_tree(value, copies)
        elif isinstance(value, Tensor):
            copied[key] = copies.setdefault(id(value), value.detach().clone())
        else:
            copied[key] = value
    return copied


def stack_sets(sets: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return new tensors [K, ...] that stack all tensors of K sets."""
    return {name: torch.stack([tensors[name].detach() for tensors in sets]) for name in sets[0]}


def side_by_side(sets: Sequence[Tensors]) -> Tensors:
    """Return tensors [K, ...] of K sets, which nobody may change: views if they are one set."""
    if all(tensors is sets[0] for tensors in sets):
        return {n: t.detach().expand(len(sets), *t.shape) for n, t in sets[0].items()}
    return stack_sets(sets)


def assign(tree: Tree, values: Tree) -> None:
    """Copy values into the tensors at the same paths of a tree; they may be each other's.

    Raises:
        RunError: a value has another dtype.
    """
    values_by_path = dict(leaves(values))
    pairs = []
    for path, tensor in leaves(tree):
        if (value := values_by_path[path]) is tensor:
            continue
        if value.dtype != tensor.dtype:
            raise RunError(
                f"the next state {path[-1]!r} of {path[-2]!r} is {value.dtype} after"
                f" {tensor.dtype}: a state must keep its dtype"
            )
        pairs.append((tensor, value))
    held = {tensor.untyped_storage().data_ptr() for tensor, _ in pairs}
    new = [v.clone() if v.untyped_storage().data_ptr() in held else v for _, v in pairs]
    if new:
        foreach_copy_([tensor for tensor, _ in pairs], new)
