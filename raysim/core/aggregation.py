"""The interface of an aggregation: how the updates of a pass become one.

The mean is an exact sum, and needs no update for itself. Other aggregations see the updates one by
one, in blocks of coordinates: each worker writes the updates of its clients into files, and takes
blocks of all of them afterwards, so that no process ever holds all.

Legend: m clients of a pass, n coordinates of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from raysim.core.components import Component, Registry
from raysim.core.rules import Weighting


@dataclass(frozen=True)
class Updates:
    """Updates of a pass, in a block of coordinates.

    Attributes:
        differences: What the clients' tensors have moved by, in float64 [m, n]; complex values are
            pairs of reals. Rows are by client, ascending.
        samples: The clients' samples [m].
    """

    differences: Tensor
    samples: npt.NDArray[np.int64]


class Aggregation(Component):
    """An aggregation; its fields are its settings."""

    _lasting: ClassVar[str] = "an aggregation keeps nothing between rounds"
    revision: ClassVar[int] = 1
    """Raised when the same settings give other bits; a run goes on in its own revision alone."""
    sees_updates: ClassVar[bool] = True
    """Whether `combine` takes the place of the mean; costs a file of each client's update."""

    def combine(self, updates: Updates) -> Tensor:
        """Return the aggregate of the updates in a block of coordinates [n]."""
        raise NotImplementedError

    @property
    def weights(self) -> Weighting | None:
        """Weights of the mean; None takes those of the pass."""
        return None

    def factor(self, arrived: int, expected: float) -> float:
        """Return the factor of the mean differences.

        Args:
            arrived: Clients whose updates arrived.
            expected: C*K, the expected number of clients of a round.
        """
        return 1.0


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", Aggregation)
AGGREGATIONS.default = "mean"
