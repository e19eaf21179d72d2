"""Sign flip: the opposite of an update.

    of=own:     d_k <- -scale * d_k
    of=honest:  d_k <- -scale * mean of the honest d_i, all with equal weights

Public codes mean different things by the name: byzfl negates the mean of the honest (`honest`),
many others a client's own update (`own`); blades has a bad client negate every local gradient,
which climbs the loss and is not offered here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack, KnownUpdates
from raysim.api.rules import Upload, View
from raysim.attack.differences import changed


class SignFlip(Attack):
    """Send the negative of the own update, or of the mean of the honest ones.

    The simplest test of an aggregation: it is seen at once, but moves a mean. Costs nothing with
    `of=own`; with `of=honest` a file of each update.
    """

    of: Literal["own", "honest"] = Field(
        default="own", description="the update that is negated: its own, or the mean of the honest"
    )
    scale: float = Field(default=1.0, gt=0, description="factor of the negated update")

    @property
    def changes_uploads(self) -> bool:
        """True for its own update."""
        return self.of == "own"

    @property
    def knows_updates(self) -> bool:
        """True for the mean of the honest."""
        return self.of == "honest"

    def send(self, view: View, upload: Upload, clients: int) -> Upload:
        """Negate the own update."""
        return changed(upload, lambda d: -self.scale * d)

    def forge(self, known: KnownUpdates) -> Tensor:
        """Negate the mean of the honest updates."""
        return -self.scale * known.honest.mean(dim=0)
