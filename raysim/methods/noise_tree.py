"""Noise of prefix sums by a binary tree, and Honaker's estimate of it.

Sources: Dwork, Naor, Pitassi and Rothblum, "Differential Privacy under Continual Observation", STOC
2010; Honaker, "Efficient Use of Differentially Private Binary Trees", TPDP 2015, the estimate from
below, as Kairouz et al. 2021 use it.

    prefix of t rounds:  one node of each height h where t has a binary digit 1
    plain:               sum over them of z_h                   z of a node N(0, 1)
    efficient:           sum over them of y_h / (2 - 2^-h)      y_0 = z_0, y_h = z_h + (y + y') / 2

y and y' belong to the node's children. A node of height h thus has variance 1 / (2 - 2^-h) and not
1, because its children estimate its sum, too.

Legend: d coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor

Nodes = Mapping[int, Tensor]
"""Noise of the nodes that make up a prefix, by their heights [d]."""
Draws = Callable[[], Tensor]
"""Returns the next draws from N(0, 1) [d]."""


def next_prefix(nodes: Nodes, draws: Draws, efficient: bool) -> dict[int, Tensor]:
    """Return the nodes of the prefix that is a round longer."""
    return _merged(nodes, 0, draws(), draws, efficient)


def completed(nodes: Nodes, draws: Draws, efficient: bool) -> dict[int, Tensor]:
    """Return the root of the tree that rounds without clients complete.

    A node with such rounds alone has no release: one draw with the variance of y_h.
    """
    nodes_left = dict(nodes)
    while len(nodes_left) > 1:
        height = min(nodes_left)
        deviation = math.sqrt(2 - 2.0**-height)
        nodes_left = _merged(nodes_left, height, deviation * draws(), draws, efficient)
    return nodes_left


def noise_of(nodes: Nodes, efficient: bool) -> Tensor:
    """Return the noise of a prefix, of at least one round [d]."""
    first, *others = (
        nodes[height] / (2 - 2.0**-height) if efficient else nodes[height]
        for height in sorted(nodes)
    )
    return sum(others, first)


def _merged(
    nodes: Nodes, height: int, value: Tensor, draws: Draws, efficient: bool
) -> dict[int, Tensor]:
    """Return nodes with a further one, merged with its sibling and so on."""
    merged = dict(nodes)
    while height in merged:
        sibling = merged.pop(height)
        height += 1
        value = draws() + (sibling + value) / 2 if efficient else draws()
    merged[height] = value
    return merged
