"""Plan of a table: its chosen cells with their settings, seeds and shortened rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from raysim.core.errors import SettingsError, visible
from raysim.core.user_input import canonical
from raysim.tuning.changes import check_overrides, check_rounds, has_words, shortened
from raysim.tuning.runs.run import Run
from raysim.tuning.tables.cells import Cell, with_analyses
from raysim.workloads.tables import PaperCell, PaperTable

IN_FILE = "; a setting of some rows alone is set by these in a file, as raysim sweep my.toml"


@dataclass(frozen=True)
class TableOptions:
    """Cells, rounds, seeds and settings of a table, chosen by a command.

    Attributes:
        only: Words that the row and column of a chosen cell must contain.
        rounds: Rounds of the longest run of each column; its other runs have fewer in proportion.
            A column of fewer rounds keeps them. None keeps the rounds of the cells.
        seeds: Seeds of each cell, counted from its setting `seed`; None takes the table's.
        overrides: Settings of all runs by dotted key.
    """

    only: tuple[str, ...] = ()
    rounds: int | None = None
    seeds: Sequence[int] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TablePlan:
    """Table with the settings of all its cells.

    Attributes:
        table: The table.
        options: The options.
        cells: The cells, including unchosen ones that exist with these settings.
        seeds: Seeds of each chosen cell, counted from its setting `seed`.
    """

    table: PaperTable
    options: TableOptions
    cells: tuple[Cell, ...]
    seeds: Sequence[int]

    @property
    def chosen(self) -> list[Cell]:
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
        return [*dict.fromkeys(each for run in self.first_runs for each in run.seeds(self.seeds))]

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
            raise SettingsError(f"{self.table.name}: no chosen cell can be run: {missing}")


def make_plan(table: PaperTable, options: TableOptions) -> TablePlan:
    """Resolve the settings of a table's cells.

    Raises:
        SettingsError: an override is wrong, no cell is chosen, or `rounds` would extend all runs.
    """
    fixed = {"reference": f"the row {table.reference_row}"} if table.reference_row else {}
    check_overrides("table", options.overrides, fixed | _made_by_rows(table, options))
    resolved = [each for cell in table.cells if (each := _resolved(table, cell, options))]
    if not any(cell.chosen for cell in resolved):
        raise SettingsError(
            f"--only={visible(','.join(options.only))}: no cell of {table.name} has all these words"
            f" in its row and column; rows: {'; '.join(table.rows)}; columns:"
            f" {'; '.join(table.columns)}"
        )
    if options.rounds is not None:
        columns = {cell.paper.column for cell in resolved if cell.chosen}
        full = max(cell.full_rounds for cell in resolved if cell.paper.column in columns)
        check_rounds(options.rounds, full, f"the longest run of {table.name} in these columns")
        resolved = _shortened(resolved, options.rounds)
    cells = tuple(with_analyses(table, resolved))
    return TablePlan(table, options, cells, options.seeds or table.seeds)


def _made_by_rows(table: PaperTable, options: TableOptions) -> dict[str, str]:
    """Return the overridden settings that follow from the rows, with their origin, by key.

    They would run a row under the name of another: rows set them themselves, to several values in a
    chosen column. Settings of methods are compared for the same method.
    """
    given = frozenset[str]().union(*table.row_keys.values())
    # A field of a method of a chain comes with the chain's order, which may be what differs.
    own = {key.rsplit(".", depth)[0] for key in given for depth in range(key.count(".") + 1)}
    named = {
        key: {each for each in own if f"{each}.".startswith(f"{key}.")} for key in options.overrides
    }
    if not any(named.values()):
        return {}
    values: dict[tuple[str, ...], set[str]] = {}
    chosen = {cell.column for cell in table.cells if _is_chosen(cell, options)}
    for cell in (each for each in table.cells if each.column in chosen):
        settings = canonical(cell.resolve().to_dict())
        for key in own & settings.keys():
            of_method = key.startswith("method.") and key != "method.name"
            alike = str(settings["method.name"]) if of_method else ""
            values.setdefault((key, cell.column, alike), set()).add(repr(settings[key]))
    several = {key for (key, *_), distinct in values.items() if len(distinct) > 1}
    return {key: "the rows" for key, keys in named.items() if keys & several}


def _is_chosen(cell: PaperCell, options: TableOptions) -> bool:
    return has_words(options.only, f"{cell.row} {cell.column}")


def _resolved(table: PaperTable, cell: PaperCell, options: TableOptions) -> Cell | None:
    """Return a cell with its run; None for an unchosen cell without valid settings.

    Raises:
        SettingsError: a setting is wrong; the message names the row or the column at fault.
    """
    chosen = _is_chosen(cell, options)
    try:
        settings = cell.resolve(options.overrides)
    except SettingsError as error:
        if chosen:
            at_fault = _at_fault(table, cell, options, str(error))
            of_some = at_fault and table.paper is None and "no such setting" in str(error)
            raise SettingsError(f"{at_fault}{error}{IN_FILE if of_some else ''}") from error
        return None
    return Cell(cell, Run.of("", settings), settings.rounds, chosen)


def _at_fault(table: PaperTable, cell: PaperCell, options: TableOptions, error: str) -> str:
    """Return the row, the column, or both, to which the error of a cell belongs.

    One that all cells of both have is of the command, or of all cells.
    """
    chosen = [each for each in table.cells if _is_chosen(each, options)]
    in_row, in_column = (
        all(_error(each, options) == error for each in chosen if of(each) == of(cell))
        for of in (attrgetter("row"), attrgetter("column"))
    )
    row, column = f"row {visible(cell.row)}", f"column {visible(cell.column)}"
    if in_row == in_column:
        return "" if in_row else f"{row}, {column}: "
    return f"{row}: " if in_row else f"{column}: "


def _error(cell: PaperCell, options: TableOptions) -> str:
    try:
        cell.resolve(options.overrides)
    except SettingsError as error:
        return str(error)
    return ""


def _shortened(cells: Sequence[Cell], most: int) -> list[Cell]:
    """Return cells shortened so that the longest of each column has at most `most` rounds.

    Rows are compared within a column, whose cells are therefore shortened in proportion.
    """
    columns: dict[str, dict[str, int]] = {}
    for cell in cells:
        columns.setdefault(cell.paper.column, {})[cell.paper.row] = cell.full_rounds
    fewer = {column: shortened(rounds, most) for column, rounds in columns.items()}
    return [
        replace(cell, run=Run.of("", cell.run.settings.override({"rounds": rounds})))
        for cell in cells
        for rounds in [fewer[cell.paper.column][cell.paper.row]]
    ]
