"""Learning rates of rounds, of clients and of the server, and their states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from raysim.api.rates import METRIC_NEEDS, RateSettings
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.storage.recorder import Row
from raysim.storage.run_state import RunState


class Rate(NamedTuple):
    """A learning rate that follows a schedule.

    Attributes:
        name: Group of settings.
        schedule: Its schedule.
        full: The full rate.
        rounds: Rounds of the run.
    """

    name: str
    schedule: RateSettings
    full: float
    rounds: int

    def at(self, before: RunState, number: int) -> float:
        """Return the rate of a round, counted from 0, as it is known before the next one."""
        state = before.kept(f"{self.name}.lr")
        return self.schedule.rate_at(number, self.rounds, self.full, state)


def rates_of(settings: Settings) -> dict[str, Rate]:
    """Return the rates of clients and of the server, which is 1 without one, by their group."""
    full = 1.0 if settings.server_lr is None else settings.server_lr
    return {
        "local": Rate("local", settings.local, settings.local.lr, settings.rounds),
        "server": Rate("server", settings.server, full, settings.rounds),
    }


def rate_figures(settings: Settings, before: RunState) -> Row:
    """Return columns of `metrics.parquet`: `lr`, and `server_lr` where that has a schedule."""
    columns = {"local": "lr"} | ({"server": "server_lr"} if settings.server.scheduled else {})
    rates = rates_of(settings)
    return {c: rates[name].at(before, before.number) for name, c in columns.items()}


def check_rates(settings: Settings, evaluated: Collection[str]) -> None:
    """Check that rounds have the metrics that rates follow.

    Args:
        settings: The run's settings.
        evaluated: Columns of the run's evaluations.

    Raises:
        SettingsError: they have not.
    """
    for rate in rates_of(settings).values():
        rule = rate.schedule.plateau
        if rule and rule.metric not in ("train_loss", *evaluated):
            raise SettingsError(f"{rate.name}.lr_metric={rule.metric}: {METRIC_NEEDS}")


def with_rates(settings: Settings, after: RunState, row: Mapping[str, Any]) -> RunState:
    """Return the state after a round, with those of the rates.

    Args:
        settings: The run's settings.
        after: The state with those before the round.
        row: The round's row of `metrics.parquet`.
    """
    states = {}
    for rate in rates_of(settings).values():
        before = after.kept(owner := f"{rate.name}.lr")
        if found := rate.schedule.after(after.number - 1, rate.full, before, row):
            states[owner] = found
    return after.keeping(states)
