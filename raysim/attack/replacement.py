"""Model replacement: a backdoor with a scaled update.

Source: Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", AISTATS
2020, equation 3, at a server's learning rate of 1.

    d_k <- boost * d_k        boost = m by default: near the end of training, when the others'
                              updates cancel out, the new model is the attacker's

That holds for one bad client of a round and equal weights (`weighting=uniform`); several go past
their model together.
"""

from __future__ import annotations

from pydantic import Field

from raysim.api.rules import Upload, View
from raysim.attack.backdoor import Backdoor
from raysim.attack.differences import changed


class Replacement(Backdoor):
    """Scale up the update of a backdoor, so that a mean takes over the attacker's model.

    Works in a single round against a mean; a norm bound or a clip on the server stops it. Has the
    costs of `backdoor`.
    """

    boost: float | None = Field(
        default=None, gt=0, description="factor of the update; none: m, the clients of the pass"
    )

    def send(self, view: View, upload: Upload, clients: int) -> Upload:
        """Scale the own update."""
        factor = clients if self.boost is None else self.boost
        return changed(upload, lambda d: factor * d)
