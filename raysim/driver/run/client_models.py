"""Networks of a round's clients as each has trained them, kept before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from raysim.config import Settings
from raysim.core.components import called
from raysim.core.errors import SettingsError
from raysim.core.rules import Reduced, View
from raysim.driver.dispatch import Dispatch, Rider
from raysim.storage.client_models import ClientModels


@dataclass
class KeptClients(Rider):
    """Rider by which clients save their trained networks; of several passes the last one's.

    Attributes:
        models: Their files.
        number: The round, counted from 1.
    """

    name: ClassVar[str] = "models"

    models: ClientModels
    number: int

    def dress(self, work: Dispatch) -> Dispatch:
        """Return a pass whose clients save what they have trained, before they send anything."""
        if not work.epochs:
            return work
        return work.with_step(
            self.name,
            before=partial(_save, self.models, self.number),
            server=partial(self._received, work.clients),
        )

    def _received(self, clients: Sequence[int], reduced: Reduced) -> Reduced:
        """Return the result; the networks of clients that do not count in it are deleted."""
        self.models.delete(self.number, {*clients} - {*reduced.clients})
        return reduced


def _save(models: ClientModels, number: int, view: View) -> None:
    models.save(number, view.client, view.params)


def check_kept_clients(settings: Settings) -> None:
    """Check that the networks of the clients of a round can be kept.

    Raises:
        SettingsError: rounds overlap.
    """
    if settings.keep_clients and settings.asynchrony:
        raise SettingsError(
            f"keep_clients=true: does not go with {called(settings.method)}, whose rounds overlap"
        )
