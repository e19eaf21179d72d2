"""Tables: unformatted cells of values by seed, next to published values.

Nothing heavy is imported: the tables of papers are tables before a run has begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raysim.api.columns import Column, undeclared
from raysim.results import statistics
from raysim.results.statistics import Difference

if TYPE_CHECKING:
    from raysim.results.metrics import Metric


@dataclass(frozen=True)
class ResultCell:
    """Values of one cell over seeds, and the published value.

    Attributes:
        values: Value of the metric by seed; None if a run ended without a value, for instance below
            the target.
        row: Its row.
        column: Its column.
        diverged: Number of further seeds with runs that diverged.
        failed: Number of further seeds with runs that failed otherwise, or were not started because
            their references failed.
        published: The published value, in the cell's unit.
        published_deviation: The published deviation.
        text: The words that the paper prints in place of a value.
        suspect: Why the published value is suspect.
        lacking: Its unmet needs; empty if it can be run.
        differing: Settings that differ from the other rows', besides the settings of the row.
        metric: The cell's metric if it is not the table's.
        unit: The cell's unit if it is not the table's.
        own_round: A round in words, if it is more than one trip of the model, as of a `Method`.
        in_progress: Whether its runs have no recorded end: values are of the rounds so far.
        nearest: Best value of the metric's column in each run below its target.
        declared: The metric's column as its runs declare it; None without a run.
    """

    values: Mapping[int, float | None] = field(default_factory=dict)
    row: str = ""
    column: str = ""
    diverged: int = 0
    failed: int = 0
    published: float | None = None
    published_deviation: float | None = None
    text: str = ""
    suspect: str = ""
    lacking: str = ""
    differing: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    unit: str | None = None
    own_round: str = ""
    in_progress: bool = False
    nearest: tuple[float, ...] = ()
    declared: Column | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Its row and its column."""
        return self.row, self.column

    @property
    def missing(self) -> str:
        """Missing files that the user must provide for it, or other unmet needs."""
        return self.lacking

    @property
    def measured(self) -> dict[int, float]:
        """Value by seed, of the runs with a value."""
        return {seed: value for seed, value in self.values.items() if value is not None}

    @property
    def seeds(self) -> int:
        """Number of seeds, including diverged and failed runs."""
        return len(self.values) + self.diverged + self.failed

    @property
    def is_complete(self) -> bool:
        """True if the run of every seed has ended with a value."""
        return 0 < len(self.measured) == self.seeds and not self.in_progress

    @property
    def mean(self) -> float | None:
        """Mean over the runs with a value."""
        values = [*self.measured.values()]
        return statistics.mean(values) if values else None

    @property
    def deviation(self) -> float | None:
        """Sample deviation over the runs with a value; None for fewer than two."""
        return statistics.deviation([*self.measured.values()])


@dataclass(frozen=True)
class ResultTable:
    """Table of results.

    Attributes:
        title: Its title.
        metric: The metric of its cells, as in `parse_metric`.
        unit: Unit of displayed values: one of `units.SCALES`, or any word.
        rows: Names of the rows.
        columns: Names of the columns.
        cells: Its cells. A place without a cell was not run.
        notes: Lines that every output prints, for instance about shortened rounds.
        baseline: Row that other rows are compared with in cells that count rounds, bytes or
            seconds to a target; its mean is divided by theirs. "" shows no ratios. It may have
            cells without being in `rows`.
        reference_row: Row with the models that the others are compared with; it is never the best.
        groups: Group of a column and its name there, by its full name; empty without groups.
    """

    title: str
    metric: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Sequence[ResultCell]
    notes: tuple[str, ...] = ()
    baseline: str = ""
    reference_row: str = ""
    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def cell(self, row: str, column: str) -> ResultCell:
        """Return a cell; an empty one if it is missing."""
        return self._by_place.get((row, column), ResultCell())

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, str], ResultCell]:
        return {cell.place: cell for cell in self.cells}

    def metric_of(self, cell: ResultCell) -> str:
        """Return the metric of a cell as it is written."""
        return cell.metric or self.metric

    def parsed_metric(self, cell: ResultCell) -> Metric:
        """Return the metric of a cell.

        Raises:
            SettingsError: there is no such metric.
        """
        from raysim.results.metrics import parse_metric  # which imports torch

        return parse_metric(self.metric_of(cell))

    def larger(self, cell: ResultCell) -> bool | None:
        """Return whether the larger of a cell's values is better; None if that is not declared."""
        metric = self.parsed_metric(cell)
        return metric.values_in(cell.declared or Column(metric.column)).larger

    def undeclared(self, column: str) -> str:
        """Return in a line which metric of a column does not tell better values; "" for none.

        Rows are not compared by it.
        """
        cells = [self.cell(row, column) for row in self.rows]
        undeclared_cells = (
            c for c in cells if c.measured and c.declared and self.larger(c) is None
        )
        cell = next(undeclared_cells, None)
        if cell is None or cell.declared is None:
            return ""
        return f"{self.parsed_metric(cell)}: {undeclared(cell.declared)}"

    def unit_of(self, cell: ResultCell) -> str:
        """Return the unit of a cell."""
        return self.unit if cell.unit is None else cell.unit

    def own_round_of(self, cell: ResultCell) -> str:
        """Return a round in words if the cell's values count the method's own rounds."""
        counts = cell.measured and self.parsed_metric(cell).counts_rounds
        return cell.own_round if counts else ""

    def best(self, column: str) -> frozenset[str]:
        """Return the names of the bold rows: the best one, and rows that no test tells from it."""
        differences = self.differences(column)
        return frozenset(
            row
            for row, difference in differences.items()
            if not (difference and difference.is_separated)
        )

    def differences(self, column: str) -> dict[str, Difference | None]:
        """Return the difference of each row from the best of its metric; None for the best.

        Only rows with a value for every seed are compared: those with the most seeds, at least
        five, if these are the same. Values in a method's own rounds and `reference_row` are not
        compared.
        """
        return self._differences[column]

    @cached_property
    def _differences(self) -> dict[str, dict[str, Difference | None]]:
        """Differences of all columns: their tests are made once, and read by every output."""
        return {column: self._tested(column) for column in self.columns}

    def _tested(self, column: str) -> dict[str, Difference | None]:
        differences: dict[str, Difference | None] = {}
        cells = {row: self.cell(row, column) for row in self.rows}
        for metric in dict.fromkeys(self.parsed_metric(cell) for cell in cells.values()):
            alike = {row: cell for row, cell in cells.items() if self.parsed_metric(cell) == metric}
            if len({self.own_round_of(cell) for cell in alike.values()}) > 1:
                alike = {row: cell for row, cell in alike.items() if not self.own_round_of(cell)}
            compared = {row: cell.measured for row, cell in alike.items() if cell.is_complete}
            compared.pop(self.reference_row, None)
            declared = {self.larger(cell) for cell in alike.values() if cell.measured}
            larger = declared.pop() if len(declared) == 1 else None
            if larger is not None:
                differences |= statistics.differences_from_best(compared, larger=larger)
        return differences

    def ratio(self, row: str, column: str) -> float | None:
        """Return how many times better a cell is than the cell of the row `baseline`.

        The ratio divides the means over the seeds of both. Each must have a value for every seed,
        since a mean over the runs that reached a target is too good, and count the same rounds.
        """
        cells = self.cell(row, column), self.cell(self.baseline, column)
        seeds = statistics.shared_seeds(*(cell.measured for cell in cells))
        if not seeds or not all(cell.is_complete for cell in cells):
            return None
        if len({self.own_round_of(cell) for cell in cells}) > 1:
            return None
        value, base = (statistics.mean([cell.measured[s] for s in seeds]) for cell in cells)
        return self._ratio(row, column, value, base)

    def published_ratio(self, row: str, column: str) -> float | None:
        """Return the ratio of the published values."""
        value, base = (self.cell(compared, column).published for compared in (row, self.baseline))
        return self._ratio(row, column, value, base)

    def _ratio(
        self, row: str, column: str, value: float | None, base: float | None
    ) -> float | None:
        metric, of_base = (
            self.parsed_metric(self.cell(compared, column)) for compared in (row, self.baseline)
        )
        if row == self.baseline:
            return None
        if not value or not base or metric.target is None or metric != of_base:
            return None
        return base / value


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys with different values among the settings, or missing in some."""
    keys = dict.fromkeys(key for mapping in settings for key in mapping)
    missing = object()
    return [
        key
        for key in keys
        if any(mapping.get(key, missing) != settings[0].get(key, missing) for mapping in settings)
    ]


def differing_settings(
    rows: Mapping[str, Mapping[str, Any]], expected: Mapping[str, Collection[str]]
) -> dict[str, dict[str, Any]]:
    """Return, by row, the settings with values other than most rows'.

    If more than two rows all have different values, each of them differs.

    Args:
        rows: Settings by dotted key, by row.
        expected: Keys that define a row, by row, to leave out.
    """
    differing: dict[str, dict[str, Any]] = {row: {} for row in rows}
    for key in differing_keys([*rows.values()]):
        holders = {row: settings[key] for row, settings in rows.items() if key in settings}
        counts = Counter(map(repr, holders.values()))
        usual = min(counts, key=lambda value: (-counts[value], value))
        all_differ = len(counts) == len(holders) > 2
        for row, value in holders.items():
            if (all_differ or repr(value) != usual) and key not in expected.get(row, ()):
                differing[row][key] = value
    return differing
