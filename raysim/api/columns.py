"""Columns of a run's rounds: which value is better, their unit, and how rounds add up.

The writer of a column declares it; the engine infers nothing from a name. A task declares its
metrics in `Scoring.columns`, a component its numbers in `columns`, and the engine its columns here
and in `api.scoring`. The declarations are kept with the run, in the fields of `metrics.parquet`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import ClassVar, Literal, NamedTuple, get_args

from raysim.api.components import Acting
from raysim.errors import SettingsError, visible

Better = Literal["larger", "smaller"]
Fold = Literal["sum", "last"]


class Scored(NamedTuple):
    """Content of a column of the evaluations: a score of a set of samples, by a model.

    Attributes:
        samples: The set: "test", "holdout", "local_test", "train_set", or another one.
        score: Name of the score; empty for a set with only one.
        model: "personal" for the models that clients deploy, or "finetuned"; empty for the global
            model.
        clients: "new", "seen" or "unseen" clients; empty for all that may train.
        spread: Figure of the clients' scores, such as "mean"; empty for all samples together.
    """

    samples: str
    score: str = ""
    model: str = ""
    clients: str = ""
    spread: str = ""

    @property
    def set(self) -> str:
        """Name of the samples with the model, as names of columns begin."""
        return "_".join(filter(None, (self.model, self.clients, self.samples)))

    @property
    def name(self) -> str:
        """Name of the column."""
        return "_".join(filter(None, (self.set, self.score, self.spread)))


@dataclass(frozen=True)
class Column:
    """Declaration of a column of numbers, such as `Column("mape", better="smaller", unit="%")`.

    Attributes:
        name: Name of the column, or of a metric of a task, which is the end of several columns.
        better: "larger" or "smaller", the better of two values. None: neither, or unknown; such a
            column has no best value, and rows are not compared by it.
        unit: Unit in which tables and charts show it: "%" for a fraction, "B", "s" or "J" for
            bytes, seconds or joules, or any other word.
        fold: Figure of all rounds in `summary.json`: "sum", the total, under the column's name, and
            tables have it by round as `total_NAME`; "last", the value of the last evaluated round,
            as `final_NAME`. None: no figure. A figure must not have the name of an engine's figure.
        title: Name of a task's metric in the progress of a run, next to the loss, and in
            comparisons, for its last value; of another column, its name in comparisons, for its
            total or last value. Without one neither shows it.
        tag: Tag in TensorBoard, such as `train/loss`; empty for `method/NAME`.
        numbered: Whether it stands for NAME_1, NAME_2 and so on, as many as a round has.
        scored: Set, model and score of a column of evaluations; the engine sets it.

    Raises:
        SettingsError: a part is no text, or `better` or `fold` is another word.
    """

    name: str
    better: Better | None = None
    unit: str = ""
    fold: Fold | None = None
    title: str = ""
    tag: str = ""
    numbered: bool = False
    scored: Scored | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SettingsError(f"Column.name={self.name!r:.80}: must be a text")
        what = f"Column({visible(repr(self.name))})"
        for part, words in (("better", get_args(Better)), ("fold", get_args(Fold))):
            if (value := getattr(self, part)) not in (None, *words):
                known = ", ".join(map(repr, words))
                raise SettingsError(f"{what}: {part}={value!r:.80}: must be {known} or None")
        for part in ("unit", "title", "tag"):
            if not isinstance(value := getattr(self, part), str):
                raise SettingsError(f"{what}: {part}={value!r:.80}: must be a text")

    def named(self, name: str) -> Column:
        """Return a column of the same better values and unit, and nothing else."""
        return Column(name, self.better, self.unit)

    def of(self, scored: Scored) -> Column:
        """Return the column of the evaluations that has this score."""
        return replace(self, name=scored.name, fold="last", scored=scored)

    def numbers(self, names: Container[str]) -> Iterator[Column]:
        """Yield the columns that a numbered one stands for, among the names of a round's."""
        members = (f"{self.name}_{number}" for number in count(1))
        yield from map(self.named, takewhile(lambda name: name in names, members))

    @property
    def compared(self) -> Column | None:
        """The column of tables with the last value for comparisons; None if it is not compared."""
        if not self.title or (self.scored and self.scored.score):  # a task's metric
            return None
        return self.total if self.fold == "sum" else self

    @property
    def total(self) -> Column:
        """The column of tables with the sum of this one over the rounds so far."""
        return self.named(f"total_{self.name}")

    @property
    def larger(self) -> bool | None:
        """True where the larger of two values is the better one; None if that is not declared."""
        return None if self.better is None else self.better == "larger"

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best value; None without any, or if it is not declared which is better."""
        if self.larger is None:
            return None
        return (max if self.larger else min)(values, default=None)


class Recording(Acting):
    """Base of components that may write their own columns."""

    columns: ClassVar[Sequence[Column]] = ()
    """Declarations of the columns of `metrics.parquet` that it writes."""


def by_name(columns: Iterable[Column]) -> dict[str, Column]:
    """Return columns by their names; of several with one name, the last."""
    return {column.name: column for column in columns}


def by_scored(columns: Iterable[Column]) -> dict[Scored, Column]:
    """Return columns of evaluations by their content."""
    return {column.scored: column for column in columns if column.scored}


def undeclared(column: Column) -> str:
    """Return in words how to declare which values of a column are better."""
    name = column.scored.score if column.scored else column.name
    place = "Scoring.columns" if column.scored else "`columns` of the component that writes it"
    return (
        "it is not declared whether larger or smaller values are better; declare"
        f" raysim.Column({visible(repr(name))}, better='larger'), or 'smaller', in {place}"
    )


def _smaller(unit: str, fold: Fold | None, **tags: str) -> list[Column]:
    """Return columns in which smaller values are better, from their tags by name."""
    return [Column(name, "smaller", unit, fold, tag=tag) for name, tag in tags.items()]


SUMS: Mapping[str, tuple[str, ...]] = {
    "bytes": ("bytes_up", "bytes_down"),
    "total_seconds": ("seconds", "evaluation_seconds", "checkpoint_seconds"),
}
"""Columns of tables that add up several ones over the rounds so far."""
SUCCESS = "attack_success_rate"
"""Column of the success rate of an attack's trigger."""
BAD, BAD_CUT, BEYOND = "bad_clients", "bad_clients_cut", "bad_clients_beyond_bound"
"""Columns of rounds under attack: bad clients that arrived, bad clients with weight 0 in the
aggregate, and bad clients beyond the number that the aggregation tolerates."""
SUCCESS_RATE = Column(SUCCESS, "smaller", "%").of(Scored(SUCCESS))
_WRITTEN = [
    *map(Column, ("round", "temperature", "server_lr")),
    *map(Column, ("aggregation_cut", BAD, BAD_CUT)),
    Column("lr", tag="train/lr"),
    Column("clients", tag="clients/counted"),
    *(Column(name, tag=f"clients/{name}") for name in ("staleness_mean", "staleness_max")),
    *_smaller("", None, train_loss="train/loss", objective="train/objective", root_train_loss=""),
    *_smaller("", None, clients_dropped="clients/dropped"),
    *_smaller("", None, updates_dropped="clients/updates_dropped"),
    *_smaller("s", None, seconds="seconds/round", evaluation_seconds="seconds/evaluation"),
    *_smaller("s", None, checkpoint_seconds="seconds/checkpoint"),
    *_smaller("B", "sum", bytes_up="bytes/up", bytes_down="bytes/down"),
    replace(SUCCESS_RATE, title="attack success"),
    Column(BEYOND, "smaller", "", "sum", "bad beyond bound"),
    Column("virtual_seconds", "smaller", "s", "sum", "virtual time", "virtual/seconds"),
    Column("virtual_joules", "smaller", "J", "sum", "energy", "virtual/joules"),
    Column("lost_clients", "smaller", "", "sum", "lost clients", "clients/lost"),
]
OF_ENGINE = by_name(
    [
        *_WRITTEN,
        *(column.total for column in _WRITTEN if column.fold == "sum"),
        *_smaller("B", None, bytes=""),
        *_smaller("s", None, total_seconds=""),
    ]
)
"""Columns of `metrics.parquet` that the engine writes, or tables derive, except columns of scores
and traces."""
