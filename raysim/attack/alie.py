"""A little is enough: a shift within the spread of the updates, coordinate by coordinate.

Source: Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed
Learning", NeurIPS 2019.

    d_k <- mean - z * std             of all bad clients, std with the divisor of a population
    z = Phi^-1((m - f - s) / (m - f)),  s = floor(m/2 + 1) - f      with z=none

The formula asks that s honest clients lie farther out than the bad ones, so that a majority would
support these; it is 0, no attack, at m = 10 and f = 2, and 0.29 at m = 100 and f = 20. The authors'
code takes a given z of 1.5, and mean and std of the bad clients' own honest updates (`of=own`),
which are 0 apart for a single bad client; blades takes the honest clients' updates (`of=honest`), a
plus in place of the minus (a negative z), and the divisor of a sample.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack, KnownUpdates


class Alie(Attack):
    """Shift each coordinate of the mean by z standard deviations: hard to tell from honest updates.

    Made to pass the median, the trimmed mean and Krum; the clients' own spread hides it, so it is
    strongest on unequal data. Costs a file of each update.
    """

    z: float | None = Field(
        default=1.5, description="standard deviations of the shift; none: by the formula"
    )
    of: Literal["own", "honest"] = Field(
        default="own", description="updates for mean and spread: its own, or the honest ones"
    )

    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the shifted mean [n]."""
        rows = known.own if self.of == "own" else known.honest
        f = len(known.own)
        z = largest_z(f + len(known.honest), f) if self.z is None else self.z
        return rows.mean(dim=0) - z * rows.std(dim=0, correction=0)


def largest_z(m: int, f: int) -> float:
    """Return z by the formula; 0 if the bad clients are a majority, or find no supporters.

    Args:
        m: Clients of a pass.
        f: Bad clients of them.
    """
    support = m // 2 + 1 - f
    if not 0 < support < m - f:
        return 0.0
    return NormalDist().inv_cdf((m - f - support) / (m - f))
