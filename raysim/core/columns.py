"""Columns of a run's rounds: which of two values is the better one, and their unit.

Who writes a column declares it; nothing is read from its name. A task declares its metrics in
`Scoring.columns`, a component those of its numbers in `columns`, and the engine its own here. The
declarations are kept with the run, in the fields of `metrics.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from raysim.core.errors import SettingsError, visible

Better = Literal["larger", "smaller"]


@dataclass(frozen=True)
class Column:
    """Declaration of a column of numbers, such as `Column("mape", better="smaller", unit="%")`.

    Attributes:
        name: Name of the column, or of a metric of a task, which is the end of several columns.
        better: "larger" or "smaller": which of two values is the better one. None: neither, or it
            is unknown; such a column has no best value, and rows are not compared by it.
        unit: Unit in which tables and charts show it: "%" of a fraction, "B", "s" or "J" of what
            is measured in bytes, seconds or joules, or any other word.

    Raises:
        SettingsError: a part is no text, or `better` is another word.
    """

    name: str
    better: Better | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SettingsError(f"Column.name={self.name!r:.80}: must be a text")
        what = f"Column({visible(repr(self.name))})"
        if self.better not in (None, *get_args(Better)):
            raise SettingsError(
                f"{what}: better={self.better!r:.80}: must be 'larger', 'smaller' or None"
            )
        if not isinstance(self.unit, str):
            raise SettingsError(f"{what}: unit={self.unit!r:.80}: must be a text")

    def named(self, name: str) -> Column:
        """Return the same declaration of another name."""
        return replace(self, name=name)

    @property
    def larger(self) -> bool | None:
        """True where the larger of two values is the better one; None if that is not declared."""
        return None if self.better is None else self.better == "larger"

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best value; None without any, or if it is not declared which is better."""
        if self.larger is None:
            return None
        return (max if self.larger else min)(values, default=None)


def by_name(columns: Iterable[Column]) -> dict[str, Column]:
    """Return columns by their names; of several with one name, the last."""
    return {column.name: column for column in columns}


def undeclared(name: str, *, of_task: bool) -> str:
    """Return in words how to declare which values of a column are better.

    Args:
        name: The column, or the metric of a task.
        of_task: Whether it is a metric of a task.
    """
    place = "Scoring.columns" if of_task else "`columns` of the component that writes it"
    return (
        "it is not declared whether larger or smaller values are better; declare"
        f" raysim.Column({visible(repr(name))}, better='larger'), or 'smaller', in {place}"
    )


def _smaller(unit: str, *names: str) -> list[Column]:
    return [Column(name, "smaller", unit) for name in names]


OF_ENGINE = by_name(
    [
        *map(Column, ("round", "lr", "temperature", "clients", "staleness_mean", "staleness_max")),
        *map(Column, ("aggregation_cut", "bad_clients", "bad_clients_cut")),
        *_smaller("", "train_loss", "objective", "root_train_loss"),
        *_smaller("", "clients_dropped", "updates_dropped", "lost_clients", "total_lost_clients"),
        *_smaller("", "bad_clients_beyond_bound", "total_bad_clients_beyond_bound"),
        *_smaller("s", "seconds", "evaluation_seconds", "checkpoint_seconds", "total_seconds"),
        *_smaller("s", "virtual_seconds", "total_virtual_seconds"),
        *_smaller("J", "virtual_joules", "total_virtual_joules"),
        *_smaller("B", "bytes_up", "bytes_down", "bytes", "total_bytes_up"),
        *_smaller("%", "attack_success_rate"),
    ]
)
"""Columns of `metrics.parquet` that the engine writes or derives, without those of evaluations."""
