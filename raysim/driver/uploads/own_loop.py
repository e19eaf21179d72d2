"""Training loops of a user's own: what a client keeps for one, and the numbers that it returns.

The numbers are sent, four bytes each; the server has their mean, by samples, as a column of the
round. `clients.parquet` has each client's, as `train@NAME`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from raysim.api.own_loop import OWN_LOOP, named_loop
from raysim.api.rules import Reduced, Trained, Upload, View
from raysim.config import Settings
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.uploads.channel import of_stage
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.storage.client_states import OF_STAGE
from raysim.storage.column_names import OF_ROUNDS, check_names


def with_own_loop(runner: RoundRunner, dispatch: Dispatch) -> Dispatch:
    """Return a pass whose clients keep and send what their training loop leaves.

    Args:
        runner: Runs the passes; its log gets the means of the numbers.
        dispatch: The pass.
    """
    if not (dispatch.epochs and runner.context.settings.local.train):
        return dispatch
    received = partial(_received, runner, dispatch.label)
    return dispatch.with_step(UploadStep(after=_left, server=received))


def with_late_loop(settings: Settings, dispatch: Dispatch) -> Dispatch:
    """Return a pass of rounds that overlap, whose clients send what their loop returns."""
    if not (dispatch.epochs and settings.local.train):
        return dispatch
    return dispatch.with_step(UploadStep(after=_left))


def _left(view: View, trained: Trained, upload: Upload) -> Upload:
    """Return the upload with the loop's numbers and groups."""
    numbers = {f"{OWN_LOOP}{OF_STAGE}{name}": value for name, value in trained.numbers.items()}
    return replace(
        upload,
        scalars={**upload.scalars, **numbers},
        state={**upload.state, **trained.kept},
    )


def _received(runner: RoundRunner, label: str, reduced: Reduced) -> Reduced:
    """Log the means of the loop's numbers; return the result without them."""
    numbers = of_stage(OWN_LOOP, reduced.scalars)
    of_loop = f"{named_loop(str(runner.context.settings.local.train))}: the number"
    check_names(numbers, OF_ROUNDS, (), of_loop)
    for name, values in numbers.items():
        known = ~np.isnan(values)
        mean = float(np.average(values[known], weights=reduced.samples[known]))
        runner.log.more[f"{label}_{name}" if label else name] = mean
    own = f"{OWN_LOOP}{OF_STAGE}"
    rest = {name: v for name, v in reduced.scalars.items() if not name.startswith(own)}
    return replace(reduced, scalars=rest)
