"""Plan of a table: its cells with their runs, shortened or not.

Cells of equal settings share a run: columns that differ only in their metric are read from the same
run. The analyses needed by the metrics of its cells are added to a run's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from raysim.errors import SettingsError, told_of, visible
from raysim.results.metrics import Metric, parse_metric
from raysim.tuning.changes import check_overrides, check_rounds, has_words, shortened
from raysim.user_input import canonical
from raysim.workloads.papers.run import Run
from raysim.workloads.tables import PaperCell, PaperTable

IN_FILE = "; to set it for some rows alone, write these rows in a file: raysim sweep my.toml"
ITSELF = "another model than the reference; comparing the reference with itself measures nothing"
"""Needed for a cell that compares the reference with itself."""
ANOTHER = "; --metric gives the cells another metric"
"""Hint for a sweep's metric that a run does not have."""
Planner = Callable[[PaperTable], PaperTable]
"""`make_plan` with the options of a command."""


def make_plan(
    table: PaperTable,
    only: Sequence[str] = (),
    rounds: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> PaperTable:
    """Return a table with a run in each cell; unchosen cells without valid settings go.

    Args:
        table: The table.
        only: Words that the row and column of a chosen cell must contain.
        rounds: Rounds of the longest run of each column; its other runs have fewer in proportion.
            A column with fewer rounds keeps its rounds. None keeps the rounds of the cells.
        seeds: Seeds of each cell, counted from its setting `seed`; None takes the table's.
        overrides: Settings of all runs by dotted key.

    Raises:
        SettingsError: an override is wrong, no cell is chosen, or `rounds` would extend all runs.
    """
    cells = tuple(replace(c, chosen=has_words(only, " ".join(c.place))) for c in table.cells)
    table = replace(table, cells=cells, overrides=overrides or {}, full_seeds=len(table.seeds))
    fixed = {"reference": f"the row {table.reference_row}"} if table.reference_row else {}
    check_overrides("table", table.overrides, fixed | _made_by_rows(table))
    resolved = [resolved_cell for cell in cells if (resolved_cell := _resolved(table, cell))]
    if not any(cell.chosen for cell in resolved):
        raise SettingsError(
            f"--only={visible(','.join(only))}: no cell of {table.name} has all these words"
            f" in its row and column; rows: {'; '.join(table.rows)}; columns:"
            f" {'; '.join(table.columns)}"
        )
    if rounds is not None:
        columns = {cell.column for cell in resolved if cell.chosen}
        full = max(cell.full_rounds for cell in resolved if cell.column in columns)
        check_rounds(rounds, full, f"the longest run of {table.name} in these columns")
        resolved = _shortened(resolved, rounds)
    final_cells = tuple(_with_analyses(table, resolved))
    return replace(table, cells=final_cells, seeds=seeds or table.seeds)


def _made_by_rows(table: PaperTable) -> dict[str, str]:
    """Return the overridden settings that follow from the rows, with their origin, by key.

    They would run a row under the name of another: rows set them themselves, to several values in a
    chosen column. Settings of methods are compared for the same method.
    """
    keys_of_rows = frozenset[str]().union(*table.row_keys.values())
    # A field of a method of a chain comes with the chain's order, which may be the difference.
    made = {
        key.rsplit(".", depth)[0] for key in keys_of_rows for depth in range(key.count(".") + 1)
    }
    named = {
        key: {made_key for made_key in made if f"{made_key}.".startswith(f"{key}.")}
        for key in table.overrides
    }
    if not any(named.values()):
        return {}
    values: dict[tuple[str, ...], set[str]] = {}
    chosen = {cell.column for cell in table.cells if cell.chosen}
    for cell in (candidate for candidate in table.cells if candidate.column in chosen):
        settings = canonical(cell.resolve().to_dict())
        for key in made & settings.keys():
            of_method = key.startswith("method.") and key != "method.name"
            alike = str(settings["method.name"]) if of_method else ""
            values.setdefault((key, cell.column, alike), set()).add(repr(settings[key]))
    several = {key for (key, *_), distinct in values.items() if len(distinct) > 1}
    return {key: "the rows" for key, keys in named.items() if keys & several}


def _resolved(table: PaperTable, cell: PaperCell) -> PaperCell | None:
    """Return a cell with its run; None for an unchosen cell without valid settings.

    Raises:
        SettingsError: a setting is wrong; the message names the row or the column at fault.
    """
    try:
        settings = cell.resolve(table.overrides)
    except SettingsError as error:
        if cell.chosen:
            at_fault = _at_fault(table, cell, str(error))
            of_some = at_fault and table.paper is None and "no such setting" in str(error)
            raise SettingsError(f"{at_fault}{error}{IN_FILE if of_some else ''}") from error
        return None
    return replace(cell, planned=Run.of("", settings), full_rounds=settings.rounds)


def _at_fault(table: PaperTable, cell: PaperCell, error: str) -> str:
    """Name the row or column that caused the error of a cell, or both.

    If all cells of both have the error, the command or every cell causes it.
    """
    chosen = [chosen_cell for chosen_cell in table.cells if chosen_cell.chosen]
    in_row, in_column = (
        all(
            _error(table, chosen_cell) == error
            for chosen_cell in chosen
            if line_of(chosen_cell) == line_of(cell)
        )
        for line_of in (attrgetter("row"), attrgetter("column"))
    )
    row, column = f"row {visible(cell.row)}", f"column {visible(cell.column)}"
    if in_row == in_column:
        return "" if in_row else f"{row}, {column}: "
    return f"{row}: " if in_row else f"{column}: "


def _error(table: PaperTable, cell: PaperCell) -> str:
    try:
        cell.resolve(table.overrides)
    except SettingsError as error:
        return str(error)
    return ""


def _shortened(cells: Sequence[PaperCell], most: int) -> list[PaperCell]:
    """Return cells shortened so that the longest of each column has at most `most` rounds.

    Rows are compared within a column, so the cells of a column are shortened in proportion.
    """
    columns: dict[str, dict[str, int]] = {}
    for cell in cells:
        columns.setdefault(cell.column, {})[cell.row] = cell.full_rounds
    fewer = {column: shortened(rounds, most) for column, rounds in columns.items()}
    return [
        replace(cell, planned=Run.of("", cell.run.settings.override({"rounds": rounds})))
        for cell in cells
        for rounds in [fewer[cell.column][cell.row]]
    ]


def _with_analyses(table: PaperTable, cells: Sequence[PaperCell]) -> list[PaperCell]:
    """Return the cells of a table with the analyses of their metrics in the runs they share.

    Raises:
        SettingsError: a metric is invalid, or the run of a chosen cell does not give its value.
    """
    references = {c.column: c.run for c in cells if c.row == table.reference_row}
    analyses: dict[Run, dict[str, Run | None]] = {cell.run: {} for cell in cells}
    known = list[tuple[PaperCell, Metric]]()
    for cell in cells:
        with told_of(f"{table.name}: {cell.label}: "):
            metric = parse_metric(table.metric_of(cell))
        reference = references.get(cell.column) if metric.takes_reference else None
        is_itself = reference == cell.run
        known.append((replace(cell, lacking=ITSELF if is_itself else ""), metric))
        if metric.analysis and not is_itself:
            analyses[cell.run][metric.analysis] = reference
    runs = _runs(table, cells, analyses)
    planned = [(replace(cell, planned=runs[cell.run]), metric) for cell, metric in known]
    for cell, metric in planned:
        if cell.chosen and not cell.lacking:
            with told_of(f"{table.name}: {cell.label}: ", "" if table.paper else ANOTHER):
                metric.check(cell.run.settings)
                if metric.takes_reference and cell.run.reference is None:
                    raise SettingsError(f"{metric}: there is no reference with such settings")
    return [cell for cell, _ in planned]


def _runs(
    table: PaperTable, cells: Sequence[PaperCell], analyses: Mapping[Run, Mapping[str, Run | None]]
) -> dict[Run, Run]:
    """Return the runs with their analyses, by the runs without.

    Args:
        table: The table.
        cells: The cells.
        analyses: By run, the needed analyses of its cells, each with its reference, if any.
    """
    groups: dict[Run, list[PaperCell]] = {}
    for cell in cells:
        groups.setdefault(cell.run, []).append(cell)
    runs: dict[Run, Run] = {}
    for run in sorted(groups, key=lambda run: any(analyses[run].values())):  # references first
        settings, wanted = run.settings, analyses[run]
        if wanted:
            asked = [*dict.fromkeys([*settings.analysis, *wanted])]
            settings = settings.override({"analysis": asked})
        reference = next(
            (runs[reference_run] for reference_run in wanted.values() if reference_run), None
        )
        runs[run] = Run.of(_shared_label(table, groups[run]), settings, reference)
    return runs


def _shared_label(table: PaperTable, cells: Sequence[PaperCell]) -> str:
    """Return the row of the first cell, and its column or the common words of all columns.

    A metric at the end of a column's name, as in sweeps, is no part of the run's.
    """
    names = [cell.column.removesuffix(table.metric_of(cell)) for cell in cells]
    first, *others = (name.split() for name in names)
    shared = [word for word in first if all(word in words for words in others)]
    return ", ".join(filter(None, [cells[0].row, " ".join(shared or first)]))
