"""Networks of a round's clients as each has trained them, kept before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from raysim.config import Settings
from raysim.core.components import called
from raysim.core.errors import SettingsError
from raysim.core.rules import Finish, Pass, Reduced, Trained, Upload, View
from raysim.driver.riders import Rider
from raysim.storage.client_models import ClientModels


@dataclass
class KeptClients(Rider):
    """Rider by which clients save their trained networks; of several passes the last one's.

    Attributes:
        models: Their files.
        number: The round, counted from 1.
    """

    models: ClientModels
    number: int
    _work: Pass | None = field(default=None, repr=False)

    def dress(self, work: Pass) -> Pass:
        """Return a pass whose clients save what they have trained."""
        self._work = work if work.epochs else None
        if not work.epochs:
            return work
        finish = partial(_saving, work.rules.finish, self.models, self.number)
        return replace(work, rules=replace(work.rules, finish=finish))

    def undress(self, reduced: Reduced) -> Reduced:
        """Return the result; the networks of clients that do not count in it are deleted."""
        if self._work:
            self.models.delete(self.number, {*self._work.clients} - {*reduced.clients})
        return reduced


def _saving(
    finish: Finish, models: ClientModels, number: int, view: View, trained: Trained
) -> Upload:
    """Return what the client gives back; save its network before that is made of it."""
    models.save(number, view.client, view.params)
    return finish(view, trained)


def check_kept_clients(settings: Settings) -> None:
    """Check that the networks of the clients of a round can be kept.

    Raises:
        SettingsError: rounds overlap.
    """
    if settings.keep_clients and settings.asynchrony:
        raise SettingsError(
            f"keep_clients=true: does not go with {called(settings.method)}, whose rounds overlap"
        )
