"""Optimizer states that clients keep between rounds, as a part of their state.

A training pass continues from the state that the pass of the same number left in the client's last
round. Passes of deployments and of analyses start without a state and keep none.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from raysim.api.rules import Trained, Upload, View
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.storage.client_states import optimizer_group


def with_kept_optimizers(runner: RoundRunner, dispatch: Dispatch) -> Dispatch:
    """Return a pass whose clients keep their optimizer's state, if `local.keep` is set.

    Args:
        runner: Runs the passes and counts them.
        dispatch: The pass.
    """
    if not (dispatch.epochs and runner.context.settings.local.keep):
        return dispatch
    return dispatch.with_step(UploadStep(after=partial(_keeping, runner.passes)))


def _keeping(pass_number: int, view: View, trained: Trained, upload: Upload) -> Upload:
    """Return the upload with the optimizer's state in the client's state."""
    kept = {
        optimizer_group(pass_number, slot): tensors for slot, tensors in trained.optimizer.items()
    }
    return replace(upload, state={**upload.state, **kept})
