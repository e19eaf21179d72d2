"""Uploads of the rounds of a run that claims privacy: one bounded change of each client a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from raysim.core.components import Component, called
from raysim.core.differences import moving_names
from raysim.core.errors import SettingsError
from raysim.core.rules import CHANGE, Reduced
from raysim.driver.analyses.riding import GROUP
from raysim.driver.channel import of_stage
from raysim.driver.dispatch import Dispatch
from raysim.driver.hiding import claiming_of
from raysim.driver.passes import RoundRunner
from raysim.driver.privacy.accounting import Accounting
from raysim.storage.client_states import owner_of


@dataclass
class AccountedUploads:
    """Check of each pass of a round: what clients send is one change, which stages bound.

    It sees what methods do not state.

    Attributes:
        accounting: What is accounted.
        runner: Runs the passes, and knows which clients keep a state.
        cohort: The selected clients.
    """

    accounting: Accounting
    runner: RoundRunner
    cohort: tuple[int, ...]
    _sent: int = 0

    def dress(self, work: Dispatch) -> Dispatch:
        """Return the pass, whose result is checked."""
        return work.with_step("accounting", server=partial(self._received, work))

    def _received(self, work: Dispatch, reduced: Reduced) -> Reduced:
        """Return the result as it is.

        Raises:
            SettingsError: clients have sent what is not accounted.
        """
        settings = self.runner.context.settings
        for name, stage in settings.stages.items():
            if not stage.privacy and (numbers := sorted(of_stage(name, reduced.scalars))):
                raise self._not_accounted(stage, f"the number {numbers[0]!r}")
        if beside := self._beside(work, reduced):
            raise self._not_accounted(settings.method.sending, beside)
        if self.accounting.cohorts.draw == "fixed" and self.runner.written:
            raise SettingsError(
                f"{self._claim}: does not go with a method or stage whose clients keep a state"
                " between rounds, in fixed cohorts; choose selection.name=poisson"
            )
        return reduced

    @property
    def _claim(self) -> str:
        return called(claiming_of(self.runner.context.settings)[0])

    def _not_accounted(self, part: Component, sent: str) -> SettingsError:
        return SettingsError(
            f"{self._claim}: does not go with {called(part)}, whose clients send {sent}, which is"
            " not accounted"
        )

    def _beside(self, work: Dispatch, reduced: Reduced) -> str:
        """Return what clients have sent that is not accounted, in words; empty for nothing."""
        if work.pooled:
            return "all their samples"
        stages, frozen = self.runner.context.settings.stages, work.frozen
        rows = {name for groups in reduced.rows.values() for name in groups}
        named = [name for name in sorted(rows) if not name.startswith(GROUP)]
        named += [n for n in reduced.scalars if not owner_of(n, stages)]
        for group, tensors in reduced.means.items():
            base = work.moved_from.get(group)
            start = None if base == CHANGE else work.broadcast.get(base or "", {})
            moving = {*moving_names(tensors, start, frozen), *frozen}
            named += [f"{group}/{name}" for name in sorted(tensors.keys() - moving)]
        if named:
            return f"{named[0]!r} beside the change of their tensors"
        self._sent += bool(reduced.means)
        if self._sent > 1:
            return "changes in more than one pass of a round"
        if reduced.means and not work.epochs:
            return "changes in a pass in which they do not train"
        if reduced.means and not {*work.clients} <= {*self.cohort}:
            return "changes though they were not selected"
        return ""
