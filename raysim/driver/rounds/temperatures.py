"""Temperature of a round: the component's input, checks of what it returns, and its state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from raysim.api.components import call
from raysim.api.rules import Rules
from raysim.api.selection import Floats, Integers
from raysim.api.state import as_arrays, read_only
from raysim.api.temperature import Temperature, TemperatureRound, Temperatures
from raysim.config import Settings
from raysim.driver.rounds.hiding import as_seen
from raysim.errors import SettingsError
from raysim.numbers.seeds import stream
from raysim.storage.recorder import Row
from raysim.storage.run_state import RunState


@dataclass(frozen=True)
class RoundTemperature:
    """Temperature of one round.

    Attributes:
        component: The temperature.
        round_: Its input.
        value: The T that it chose.
    """

    component: Temperature
    round_: TemperatureRound
    value: float

    @classmethod
    def of(
        cls,
        settings: Settings,
        before: RunState,
        sizes: Integers,
        seconds: Callable[[Any], Floats],
    ) -> RoundTemperature:
        """Ask for the temperature of a round.

        Args:
            settings: The run's settings.
            before: The committed state before the round.
            sizes: Samples that each client trains on [K].
            seconds: Expected durations of clients; see `Sampling.seconds`.

        Raises:
            SettingsError: it fails, or is no number above 0.
        """
        round_ = TemperatureRound(
            number=before.number,
            temperature=settings.local.temperature,
            samples=sizes,
            history=before.history.for_reading(),
            seconds=seconds,
            generator=partial(_generator, settings.seed, before.number),
            state=read_only(before.kept("temperature")),
        )
        component = settings.temperature
        round_ = as_seen(settings, component, round_)
        return cls(component, round_, float(call(component, Temperature.choose, round_)))

    def check(self, evaluated: Collection[str]) -> None:
        """Check that the component can have its columns.

        Args:
            evaluated: Columns of the run's evaluations.

        Raises:
            SettingsError: it cannot.
        """
        for column, lacking in self.component.reads.items():
            if column not in ("train_loss", *evaluated):
                raise SettingsError(lacking)

    def of_clients(self, clients: Sequence[int]) -> Temperatures:
        """Return the temperatures of a pass over clients.

        Raises:
            SettingsError: the component fails, or gives a client no number above 0.
        """
        if type(self.component).by_client is Temperature.by_client:
            return Temperatures(self.value)
        own = call(self.component, Temperature.by_client, self.round_, self.value, sorted(clients))
        return Temperatures(self.value, {int(client): float(t) for client, t in own.items()})

    def rules(self, rules: Rules) -> Rules:
        """Return the rules of a pass with the temperatures of samples, if there are any."""
        return with_samples(self.component, rules)

    def figures(self) -> Row:
        """Return columns of `metrics.parquet`."""
        return {"temperature": self.value} if self.component.varies else {}

    def after(self, after: RunState, row: Mapping[str, Any]) -> RunState:
        """Return the state after the round, with the component's own.

        Args:
            after: The state without it.
            row: The round's row of `metrics.parquet`.

        Raises:
            SettingsError: the component fails.
        """
        state = call(self.component, Temperature.update, self.round_, self.value, row)
        return after.keeping({"temperature": as_arrays(state)})


def with_samples(component: Temperature, rules: Rules) -> Rules:
    """Return rules with the temperatures of samples, if a component gives any."""
    if type(component).of_samples is Temperature.of_samples:
        return rules
    return replace(rules, sample_temperatures=component.of_samples)


def _generator(seed: int, number: int, purpose: str) -> np.random.Generator:
    return stream(seed, f"temperature/{purpose}", number)
