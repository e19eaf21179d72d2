"""Plan of a table: its chosen cells with their settings, seeds, and what was shortened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from raysim.config import Settings
from raysim.core.errors import SettingsError, visible
from raysim.results.metrics import parse_metric
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.tables import PaperCell, PaperTable


@dataclass(frozen=True)
class TableOptions:
    """Cells, rounds, seeds and settings that a command asks of a table.

    Attributes:
        only: Words, each of which the row and column of a chosen cell contain.
        rounds: Most rounds of a run; None leaves those of the cells.
        seeds: Seeds of each cell; None takes the table's number.
        overrides: Settings of all runs by dotted key.
    """

    only: tuple[str, ...] = ()
    rounds: int | None = None
    seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PlannedCell:
    """A cell with the settings of its runs.

    Attributes:
        paper: The cell of the paper.
        name: Its folder.
        settings: Settings of its first seed; a further seed adds to `seed`.
        full_rounds: Rounds where nothing is shortened.
        chosen: Whether `--only` chooses it.
        analysis: The analysis that its metric needs.
    """

    paper: PaperCell
    name: str
    settings: Settings
    full_rounds: int
    chosen: bool
    analysis: str = ""

    @property
    def label(self) -> str:
        """Row and column."""
        return f"{self.paper.row}, {self.paper.column}"

    @cached_property
    def missing(self) -> str:
        """Return what it needs and is not there: files of the user, or an analysis."""
        if self.analysis:
            return f"the analysis {self.analysis}, which tables do not compute"
        return missing_files(self.settings.dataset, data_root())

    def seeds(self, count: int) -> range:
        """Return its first seeds."""
        return range(self.settings.seed, self.settings.seed + count)


@dataclass(frozen=True)
class TablePlan:
    """A table with the settings of all its cells.

    Attributes:
        table: The table.
        options: The options.
        cells: Its cells, those that are not chosen included if they have such settings.
        seeds: Seeds of each chosen cell.
    """

    table: PaperTable
    options: TableOptions
    cells: tuple[PlannedCell, ...]
    seeds: int

    @property
    def chosen(self) -> list[PlannedCell]:
        """The chosen cells whose data can be had."""
        return [cell for cell in self.cells if cell.chosen and not cell.missing]

    def check_data(self) -> None:
        """Check that a chosen cell has its data.

        Raises:
            SettingsError: none has.
        """
        if not self.chosen:
            missing = next(cell.missing for cell in self.cells if cell.chosen)
            raise SettingsError(f"{self.table.name}: no chosen cell can be run: {missing}")


def make_plan(table: PaperTable, options: TableOptions) -> TablePlan:
    """Resolve the settings of a table's cells.

    Raises:
        SettingsError: an override is wrong, or no cell is chosen.
    """
    if "out" in options.overrides:
        raise SettingsError(f"out={options.overrides['out']}: use the option --out for a table")
    if "rounds" in options.overrides:
        raise SettingsError(
            f"rounds={options.overrides['rounds']}: use the option --rounds for a table, which"
            " says that it shortens"
        )
    names = folder_names([(cell.row, cell.column) for cell in table.cells])
    words = [word for text in options.only for word in text.split(",")]
    planned = (
        _planned(table, cell, name, words, options)
        for cell, name in zip(table.cells, names, strict=True)
    )
    cells = tuple(cell for cell in planned if cell)
    if not any(cell.chosen for cell in cells):
        raise SettingsError(
            f"--only={visible(','.join(words))}: no cell of {table.name} has all these words in its"
            f" row and column; rows: {'; '.join(table.rows)}; columns: {'; '.join(table.columns)}"
        )
    plan = TablePlan(table, options, cells, options.seeds or table.seeds)
    for cell in cells:
        if cell.chosen and not cell.analysis:
            parse_metric(table.metric_of(cell.paper))
    return plan


def _planned(
    table: PaperTable, cell: PaperCell, name: str, words: Sequence[str], options: TableOptions
) -> PlannedCell | None:
    """Return the plan of a cell; None of one that is not chosen and has no such settings."""
    place = f"{cell.row} {cell.column}"
    chosen = all(_is_in(word.strip(), place) for word in words)
    try:
        settings = cell.resolve(options.overrides)
    except SettingsError:
        if chosen:
            raise
        return None
    full = settings.rounds
    if options.rounds is not None and options.rounds < full:
        settings = settings.override({"rounds": options.rounds})
    return PlannedCell(cell, name, settings, full, chosen, table.analysis_of(cell))


def _is_in(word: str, place: str) -> bool:
    """Return whether a whole word is in a text: `iid` is not in `noniid`, nor `E=1` in `E=10`."""
    part = r"[\w.=&'-]"
    return bool(re.search(rf"(?<!{part}){re.escape(word)}(?!{part})", place, re.IGNORECASE))


def folder_names(places: Sequence[tuple[str, str]]) -> list[str]:
    """Return a folder for each row and column, all different, of portable characters."""
    names: list[str] = []
    for row, column in places:
        name = f"{_portable(row)}/{_portable(column)}"
        while name in names:
            name += "-"
        names.append(name)
    return names


def _portable(text: str) -> str:
    return re.sub(r"[^a-z0-9.=]+", "-", text.lower()).strip("-.") or "-"
