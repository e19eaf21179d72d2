"""Learning rates of clients and of the server by round, and the states of their schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from raysim.api.rates import METRIC_NEEDS, RateSettings
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.storage.recorder import Row
from raysim.storage.run_state import RunState


class Rate(NamedTuple):
    """A learning rate that follows a schedule.

    Attributes:
        name: Group of the settings: "local" or "server".
        schedule: The schedule.
        full: The full rate, which the schedule scales.
        rounds: Rounds of the run.
    """

    name: str
    schedule: RateSettings
    full: float
    rounds: int

    def by_round(self, before: RunState) -> Callable[[int], float]:
        """Return the rate as a function of the round, from 0, as far as a state determines it.

        The function holds the state of the schedule alone: a method is given it.
        """
        state = before.kept(f"{self.name}.lr")
        return partial(self.schedule.rate_at, rounds=self.rounds, lr=self.full, state=state)


def rates_of(settings: Settings) -> dict[str, Rate]:
    """Return the rates of clients and server by group; the server's is 1 if it has none."""
    full = 1.0 if settings.server_lr is None else settings.server_lr
    return {
        "local": Rate("local", settings.local, settings.local.lr, settings.rounds),
        "server": Rate("server", settings.server, full, settings.rounds),
    }


def rate_figures(rates: Mapping[str, Rate], before: RunState) -> Row:
    """Return columns of `metrics.parquet`: `lr`, and `server_lr` if the server has a schedule."""
    scheduled = rates["server"].schedule.scheduled
    columns = {"local": "lr"} | ({"server": "server_lr"} if scheduled else {})
    return {c: rates[name].by_round(before)(before.number) for name, c in columns.items()}


def check_rates(rates: Mapping[str, Rate], evaluated: Collection[str]) -> None:
    """Check that rounds have the metrics that schedules follow.

    Args:
        rates: The run's rates.
        evaluated: Columns of the run's evaluations.

    Raises:
        SettingsError: a metric is missing.
    """
    for rate in rates.values():
        rule = rate.schedule.plateau
        if rule and rule.metric not in ("train_loss", *evaluated):
            raise SettingsError(f"{rate.name}.lr_metric={rule.metric}: {METRIC_NEEDS}")


def with_rates(rates: Mapping[str, Rate], after: RunState, row: Mapping[str, Any]) -> RunState:
    """Return the state after a round, with the next states of the schedules.

    Args:
        rates: The run's rates.
        after: The state after the round, with the schedules' states before it.
        row: The round's row of `metrics.parquet`.
    """
    states = {}
    for rate in rates.values():
        before = after.kept(owner := f"{rate.name}.lr")
        if state := rate.schedule.after(after.number - 1, rate.full, before, row):
            states[owner] = state
    return after.keeping(states)
