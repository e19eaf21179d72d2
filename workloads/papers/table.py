"""A table, of a paper or one's own: the settings of each cell, its metric, and its published value.

Settings are held as overrides of a preset, and are validated when they are asked for: the
components that they name import torch, which a list of tables does not need. A plan of a table
(`tuning.tables.plan`) is the same table, whose cells have their runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raysim.errors import SettingsError
from raysim.workloads.presets import Paper

if TYPE_CHECKING:
    from raysim.config import Settings
    from raysim.workloads.papers.run import Run


@dataclass(frozen=True)
class PaperCell:
    """One cell: a run, or several seeds of it, and a value of it.

    Attributes:
        row: Its row.
        column: Its column.
        preset: The preset from which its settings are derived.
        settings: Overrides of the preset by dotted key.
        origins: Origins of these overrides: printed, inferred or chosen.
        value: The published value; None if the paper has none.
        deviation: Its published deviation.
        text: The words that the paper prints in place of a value.
        suspect: Reason to doubt the published value; empty if there is none.
        metric: Metric of the cell, if not the table's.
        unit: Unit of the cell, if not the table's.
        planned: Run of its first seed in a plan; None runs its settings as they are.
        full_rounds: Rounds of the run without shortening, in a plan.
        chosen: Whether the plan's options choose it.
        lacking: Its missing needs besides data.
    """

    row: str
    column: str
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    value: float | None = None
    deviation: float | None = None
    text: str = ""
    suspect: str = ""
    metric: str = ""
    unit: str | None = None
    planned: Run | None = None
    full_rounds: int = 0
    chosen: bool = True
    lacking: str = ""

    def __hash__(self) -> int:
        return hash(self.place)

    @property
    def place(self) -> tuple[str, str]:
        """Its row and its column."""
        return self.row, self.column

    @property
    def label(self) -> str:
        """The same in words."""
        return ", ".join(self.place)

    @property
    def published(self) -> bool:
        """True if the paper prints anything there."""
        return self.value is not None or bool(self.text)

    def resolve(self, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Return the validated settings of a run.

        Raises:
            SettingsError: an override is wrong.
        """
        from raysim import load_config

        return load_config(self.preset, {**self.settings, **(overrides or {})})

    @property
    def run(self) -> Run:
        """Run of its first seed."""
        from raysim.workloads.papers.run import Run

        return self.planned or Run.of(self.label, self.resolve())

    @property
    def missing(self) -> str:
        """Missing files that the user must provide for it, or other unmet needs."""
        return self.lacking or self.run.missing


@dataclass(frozen=True)
class PaperTable:
    """A grid of cells.

    Attributes:
        name: Its name in commands.
        title: Its content in one line.
        paper: The paper that prints it; None for a custom table.
        reference: Its number there.
        metric: The metric of its cells, in the grammar of metrics, such as final(test_accuracy).
        unit: The unit of its values; in "%", fractions are multiplied by 100.
        rows: Names of the rows: mostly methods, which are compared within a column.
        columns: Names of the columns.
        cells: The cells, row by row.
        seeds: Seeds of each cell, counted from its setting `seed`; by default as many as the paper
            has, if it prints their number.
        row_keys: Settings that each row sets itself, by dotted key, besides its preset's.
        baseline: The row to which the paper states ratios of rounds; empty if it states none.
        note: Further remarks.
        groups: Group of a column and its name there, by its full name; empty without groups.
        tune: Table `[tune]` of a sweep: a search of each row before its runs; empty without one.
        reference_row: The row whose models the analyses of the others compare with; empty without
            such analyses.
        overrides: Settings of all runs by dotted key, in a plan.
        full_seeds: Number of seeds without shortening, in a plan.
    """

    name: str
    title: str
    paper: Paper | None
    reference: str
    metric: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[PaperCell, ...]
    seeds: Sequence[int]
    row_keys: Mapping[str, frozenset[str]]
    baseline: str = ""
    note: str = ""
    reference_row: str = ""
    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    full_seeds: int = 0

    @property
    def source(self) -> str:
        """The paper's name with the table's number; empty without a paper."""
        return f"{self.paper.name}, {self.reference}" if self.paper else ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of its cells; the table's own is the first."""
        return tuple(dict.fromkeys([self.metric, *map(self.metric_of, self.cells)]))

    @property
    def chosen(self) -> list[PaperCell]:
        """Chosen cells whose data is available."""
        return [cell for cell in self.cells if cell.chosen and not cell.missing]

    @cached_property
    def first_runs(self) -> list[Run]:
        """Distinct runs of the chosen cells, and the references of their analyses; of one seed."""
        pairs = ((cell.run.reference, cell.run) for cell in self.chosen)
        return [*dict.fromkeys(run for pair in pairs for run in pair if run)]

    @property
    def runs(self) -> list[Run]:
        """The same, of all seeds."""
        return [*dict.fromkeys(seed for run in self.first_runs for seed in run.seeds(self.seeds))]

    @property
    def labels(self) -> dict[str, Run]:
        """Run of each cell by the cell's label."""
        return {cell.label: cell.run for cell in self.cells}

    def check_data(self) -> None:
        """Check that a chosen cell has its data.

        Raises:
            SettingsError: no chosen cell has its data.
        """
        if not self.chosen:
            missing = next(cell.missing for cell in self.cells if cell.chosen)
            raise SettingsError(f"{self.name}: no chosen cell can be run: {missing}")

    def cell(self, row: str, column: str) -> PaperCell:
        """Return the cell of a row and a column."""
        return next(each for each in self.cells if (each.row, each.column) == (row, column))

    def metric_of(self, cell: PaperCell) -> str:
        """Return the metric of a cell."""
        return cell.metric or self.metric

    def unit_of(self, cell: PaperCell) -> str:
        """Return the unit of a cell."""
        return self.unit if cell.unit is None else cell.unit
