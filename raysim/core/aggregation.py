"""Interface of an aggregation of a pass's updates into one update.

The mean is an exact sum, and needs no single update. Other aggregations see the updates one by one,
in blocks of coordinates: each worker writes the updates of its clients into files, and reads blocks
of all clients afterwards, so that no process ever holds all updates.

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
        differences: Changes of the clients' tensors, in float64 [m, n]; complex values are pairs of
            reals. Rows are by client, ascending.
        samples: The clients' samples [m].
    """

    differences: Tensor
    samples: npt.NDArray[np.int64]


class Aggregation(Component):
    """Aggregation; its fields are its settings."""

    _lasting: ClassVar[str] = "an aggregation keeps nothing between rounds"
    revision: ClassVar[int] = 1
    """Raised when the same settings give other bits; a run resumes in its own revision only."""
    sees_updates: ClassVar[bool] = True
    """Whether `combine` replaces the mean, at the cost of a file per update."""

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
