"""Values of local training that a run's components choose for a round: today the temperature.

The engine passes them on unread. To add one, add a field to `LocalValues`, set it here, and use it
in the local step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from raysim.api.components import call
from raysim.api.rules import ClientValues, LocalValues, Pass
from raysim.api.scoring import AT_TEMPERATURE, LOSS
from raysim.api.selection import Sampling
from raysim.api.state import State, as_arrays, read_only
from raysim.api.temperature import Temperature, TemperatureRound
from raysim.config import Settings
from raysim.driver.rounds.hiding import as_seen
from raysim.errors import SettingsError
from raysim.numbers.seeds import stream
from raysim.storage.recorder import Row
from raysim.storage.run_state import RunState


def first_values(settings: Settings, clients: int) -> Mapping[str, State]:
    """Return the initial states of components that choose values, by owner."""
    return {"temperature": as_arrays(call(settings.temperature, Temperature.init, clients))}


def check_values(settings: Settings, evaluated: Collection[str]) -> None:
    """Check that rounds have the columns that these components read.

    Args:
        settings: The run's settings.
        evaluated: Columns of the run's evaluations.

    Raises:
        SettingsError: a column is missing.
    """
    for column, lacking in settings.temperature.reads.items():
        if column not in ("train_loss", *evaluated):
            raise SettingsError(lacking)


def losses_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of a run's evaluated losses: at T=1, and at the run's T if it differs."""
    varies = settings.temperature.varies or settings.local.temperature != 1
    return (LOSS.name, *([AT_TEMPERATURE] if varies else ()))


@dataclass(frozen=True)
class RoundValues:
    """Values of local training in one round.

    Attributes:
        component: The temperature.
        round_: The input of the temperature.
        temperature: The T of the round.
    """

    component: Temperature
    round_: TemperatureRound
    temperature: float

    @classmethod
    def of(cls, settings: Settings, sampling: Sampling, before: RunState) -> RoundValues:
        """Choose the values of a round.

        Args:
            settings: The run's settings.
            sampling: The clients as the run knows them before the round.
            before: The committed state before the round.

        Raises:
            SettingsError: a component fails, or returns no number above 0.
        """
        component = settings.temperature
        round_ = TemperatureRound(
            number=sampling.number,
            temperature=settings.local.temperature,
            samples=sampling.samples,
            history=before.history.for_reading(),
            seconds=sampling.seconds,
            generator=partial(_generator, settings.seed, sampling.number),
            state=read_only(before.kept("temperature")),
        )
        round_ = as_seen(settings, component, round_)
        return cls(component, round_, float(call(component, Temperature.choose, round_)))

    def of_clients(self, clients: Sequence[int]) -> ClientValues:
        """Return the values for clients of a pass.

        Raises:
            SettingsError: a component fails, or returns no number above 0 for a client.
        """
        common = LocalValues(self.temperature)
        if type(self.component).by_client is Temperature.by_client:
            return ClientValues(common)
        arguments = self.round_, self.temperature, sorted(clients)
        temperatures = call(self.component, Temperature.by_client, *arguments)
        return ClientValues(
            common, {int(client): LocalValues(float(t)) for client, t in temperatures.items()}
        )

    def on(self, pass_: Pass) -> Pass:
        """Return a pass with the values of single samples, if the component has them."""
        if type(self.component).of_samples is Temperature.of_samples:
            return pass_
        return replace(pass_, rules=replace(pass_.rules, divisors=self.component.of_samples))

    def divisors(self, losses: Sequence[str]) -> tuple[float, ...]:
        """Return the divisor of the outputs for each loss of an evaluation; see `losses_of`."""
        return tuple(self.temperature if loss == AT_TEMPERATURE else 1.0 for loss in losses)

    def figures(self) -> Row:
        """Return columns of `metrics.parquet`."""
        return {"temperature": self.temperature} if self.component.varies else {}

    def after(self, after: RunState, row: Mapping[str, Any]) -> RunState:
        """Return the state after the round, with the next states of these components.

        Args:
            after: The state without them.
            row: The round's row of `metrics.parquet`.

        Raises:
            SettingsError: a component fails.
        """
        state = call(self.component, Temperature.update, self.round_, self.temperature, row)
        return after.keeping({"temperature": as_arrays(state)})


def _generator(seed: int, number: int, purpose: str) -> np.random.Generator:
    return stream(seed, f"temperature/{purpose}", number)
