"""Optimizers that clients keep from round to round, as a part of their state.

Each training pass of a round goes on with what the pass of its number kept in the client's last
round. A pass of a deployment and those of analyses start afresh, and keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from raysim.core.rules import Trained, Upload, View
from raysim.driver.dispatch import Dispatch, Rider
from raysim.driver.passes import RoundRunner
from raysim.storage.client_states import optimizer_group


@dataclass
class Keeping(Rider):
    """Rider of a round's passes whose clients keep the optimizer's state.

    Attributes:
        runner: Runs the passes, and counts them.
    """

    name: ClassVar[str] = "optimizer"

    runner: RoundRunner

    def dress(self, work: Dispatch) -> Dispatch:
        """Return a pass whose clients keep what the optimizer keeps."""
        if not work.epochs:
            return work
        return work.with_step(self.name, after=partial(_keeping, self.runner.passes))


def _keeping(pass_number: int, view: View, trained: Trained, upload: Upload) -> Upload:
    """Return the upload, with what the optimizer keeps in the client's state."""
    kept = {optimizer_group(pass_number, slot): own for slot, own in trained.optimizer.items()}
    return replace(upload, state={**upload.state, **kept})
