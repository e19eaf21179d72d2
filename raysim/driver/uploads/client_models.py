"""Trained networks of a round's clients, saved before the clients send anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from raysim.api.rules import Reduced, View
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.storage.client_models import ClientModels


def with_kept_models(models: ClientModels, number: int, dispatch: Dispatch) -> Dispatch:
    """Return a pass whose clients save their trained networks; a later pass replaces them.

    Args:
        models: Files of the networks.
        number: The round, counted from 1.
        dispatch: The pass.
    """
    if not dispatch.epochs:
        return dispatch
    return dispatch.with_step(
        UploadStep(
            before=partial(_save, models, number),
            server=partial(_received, models, number, dispatch.clients),
        )
    )


def _received(
    models: ClientModels, number: int, clients: Sequence[int], reduced: Reduced
) -> Reduced:
    """Delete the networks of clients that do not count in the result; return the result."""
    models.delete(number, {*clients} - {*reduced.clients})
    return reduced


def _save(models: ClientModels, number: int, view: View) -> None:
    models.save(number, view.client, view.params)
