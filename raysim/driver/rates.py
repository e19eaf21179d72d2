"""Learning rates of rounds, of clients and of the server, and their states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.rates import METRIC_NEEDS, RateSettings
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.recorder import Row


class Rate(NamedTuple):
    """A learning rate that follows a schedule.

    Attributes:
        name: Group of settings.
        schedule: Its schedule.
        full: The full rate.
    """

    name: str
    schedule: RateSettings
    full: float

    def at(self, settings: Settings, before: Checkpoint, number: int) -> float:
        """Return the rate of a round, counted from 0, as it is known before the next one."""
        state = before.rates.get(self.name)
        return self.schedule.rate_at(number, settings.rounds, self.full, state)


def client_rate(settings: Settings) -> Rate:
    """Return the rate of clients."""
    return Rate("local", settings.local, settings.local.lr)


def server_rate(settings: Settings) -> Rate:
    """Return the rate of the server; 1 without one."""
    full = settings.server_lr
    return Rate("server", settings.server, 1.0 if full is None else full)


def _rates(settings: Settings) -> Iterator[Rate]:
    yield client_rate(settings)
    yield server_rate(settings)


def rate_figures(settings: Settings, before: Checkpoint) -> Row:
    """Return columns of `metrics.parquet`: `lr`, and `server_lr` where that has a schedule."""
    rates = [*_rates(settings)] if settings.server.scheduled else [client_rate(settings)]
    columns = {"local": "lr", "server": "server_lr"}
    return {columns[rate.name]: rate.at(settings, before, before.number) for rate in rates}


def check_rates(settings: Settings, evaluated: Collection[str]) -> None:
    """Check that rounds have the metrics that rates follow.

    Args:
        settings: The run's settings.
        evaluated: Columns of the run's evaluations.

    Raises:
        SettingsError: they have not.
    """
    for rate in _rates(settings):
        rule = rate.schedule.plateau
        if rule and rule.metric not in ("train_loss", *evaluated):
            raise SettingsError(f"{rate.name}.lr_metric={rule.metric}: {METRIC_NEEDS}")


def with_rates(settings: Settings, after: Checkpoint, row: Mapping[str, Any]) -> Checkpoint:
    """Return the state after a round, with those of the rates.

    Args:
        settings: The run's settings.
        after: The state with those before the round.
        row: The round's row of `metrics.parquet`.
    """
    states = {}
    for rate in _rates(settings):
        before = after.rates.get(rate.name, {})
        if found := rate.schedule.after(after.number - 1, rate.full, before, row):
            states[rate.name] = found
    return replace(after, rates=states)
