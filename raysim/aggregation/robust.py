"""Parts of robust aggregations: the number of clients that may be bad, and distances of updates.

Legend: m clients of a pass, f of them bad.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from raysim.api.aggregation import Aggregation, ArrivedUpdates
from raysim.errors import SettingsError


class Robust(Aggregation):
    """Base of aggregations that withstand f bad clients among the m arrived ones."""

    byzantine: int = Field(
        default=1, ge=0, description="f, the bad clients of a round that it withstands"
    )

    def tolerates(self, arrived: int) -> int:
        """Return f."""
        return self.byzantine

    def check(self, arrived: ArrivedUpdates, least: int, bound: str) -> None:
        """Check that enough updates have arrived.

        Args:
            arrived: The updates.
            least: Fewest updates.
            bound: That number as a formula, for the error.

        Raises:
            SettingsError: fewer have arrived.
        """
        m = len(arrived.clients)
        if m < least:
            raise SettingsError(
                f"aggregation.byzantine={self.byzantine}: {self.title} needs at least {least}"
                f" updates in a round, {bound}; there are {m}: choose more clients a round, or a"
                " smaller aggregation.byzantine"
            )


def inner_products(rows: Tensor) -> Tensor:
    """Return the inner products of the rows of a block [m, m].

    They add up over blocks. Rows are not centred: one far from all others would then spoil the
    distances of these.
    """
    products = rows @ rows.T
    return (products + products.T) / 2


def squared_distances(products: Tensor) -> Tensor:
    """Return the squared distances of rows, from their inner products [m, m]."""
    norms = products.diagonal()
    distances = (norms[:, None] + norms - 2 * products).clamp(min=0)
    return distances.fill_diagonal_(0)
