"""Parts of a run before its first round, for the checks of a start."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from raysim.api.rules import Pass
from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.method_rounds import passes_of, round_inputs
from raysim.numbers.arrays import Integers
from raysim.storage.run_state import RunState


@dataclass(frozen=True)
class RunParts:
    """Parts of a run before its first round.

    Attributes:
        settings: The run's settings.
        network: The network as it was built.
        initial: The checkpoint before the first round.
        sizes: Samples that each client trains on [K].
    """

    settings: Settings
    network: nn.Module
    initial: RunState
    sizes: Integers

    @cached_property
    def first(self) -> Pass | None:
        """The first pass of the first round, over client 0; None without one. It does not run.

        Raises:
            SettingsError: the round fails.
        """
        before, note = self.initial, Listener().note
        arguments = (self.settings, self.network, before)
        now = round_inputs(*arguments, sizes=self.sizes, note=note, cohort=(0,))
        with closing(passes_of(self.settings, now, before.state)) as passes:
            return next(passes, None)
