"""Verdicts: the best row of a column in words, its lead, and the paired test's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raysim.display.units import with_unit
from raysim.results.render.grid import shown, shown_alike
from raysim.results.statistics import LEVEL, SEEDS_FOR_TEST, Difference
from raysim.results.tables import ResultCell, ResultTable

Certainty = Literal["told apart at 5%", "not told apart at 5%", "equal", "not compared"]
TOO_FEW = "Below five seeds nothing is compared"
MOST_NAMED = 4
"""Most rows that a sentence names."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a column of a table.

    Attributes:
        table: The table.
        column: The column.
        heading: The best row in a few words.
        text: The lead and the test's answer in sentences.
        certainty: "told apart at 5%" if the test tells the best row from all others that are
            compared, "equal" if another one has its values.
    """

    table: ResultTable
    column: str
    heading: str
    text: str
    certainty: Certainty


def verdicts(tables: Sequence[ResultTable]) -> list[Verdict]:
    """Return a verdict on each column with a value in some row."""
    places = [(table, column) for table in tables for column in table.columns]
    return [
        _verdict(table, column)
        for table, column in places
        if any(table.cell(row, column).seeds for row in table.rows)
    ]


def _verdict(table: ResultTable, column: str) -> Verdict:
    differences = table.differences(column)
    best = next((row for row, difference in differences.items() if difference is None), None)
    if best is None:
        return _not_compared(table, column)
    others = sorted(
        ((row, difference) for row, difference in differences.items() if difference is not None),
        key=lambda other: abs(other[1].mean),
    )
    alike = [row for row, difference in others if not difference.is_separated]
    if equal := [row for row, difference in others if difference.is_equal]:
        return _equal(table, column, [best, *equal], others)
    seeds = len(table.cell(best, column).measured)
    lead = f"{_lead(table, column, best, *others[0])}. The paired t-test over {seeds} seeds"
    if not alike:
        rows = others[0][0] if len(others) == 1 else f"all {len(others)} other rows"
        heading = f"{best} is best"
        text = f"{lead} tells {rows} from it at a level of {LEVEL:.0%}."
    else:
        heading = f"{best} has the best mean, not told apart from {_names(alike)}"
        text = f"{lead} does not tell {_names(alike)} from it at a level of {LEVEL:.0%}."
    text += _left(table, column, differences)
    answer: Certainty = "not told apart at 5%" if alike else "told apart at 5%"
    return Verdict(table, column, heading, text, answer)


def _left(table: ResultTable, column: str, differences: Mapping[str, Difference | None]) -> str:
    """Return the rows that are not compared, in a sentence; "" for none."""
    left = [row for row in table.rows if table.cell(row, column).seeds and row not in differences]
    return f" Not compared: {_names(left)}." if left else ""


def _equal(
    table: ResultTable,
    column: str,
    equal: Sequence[str],
    others: Sequence[tuple[str, Difference]],
) -> Verdict:
    """Return the verdict on a column with equal values for each seed in the first rows."""
    cell = table.cell(equal[0], column)
    rest = [(row, difference) for row, difference in others if row not in equal]
    seeds, value = len(cell.measured), _value(cell, table.unit_of(cell))
    heading = f"{_names(equal)} are equal"
    text = f"They have the same value for each of {seeds} seeds; the mean is {value}."
    if rest:
        heading = f"{_names(equal)} have the best mean, and are equal"
        apart = [row for row, difference in rest if difference.is_separated]
        alike = [row for row, difference in rest if not difference.is_separated]
        answers = {"tells": apart, "does not tell": alike}
        said = [f"{verb} {_names(rows)} from them" for verb, rows in answers.items() if rows]
        text += f" The paired t-test {' and '.join(said)} at a level of {LEVEL:.0%}."
    text += _left(table, column, dict.fromkeys([*equal, *(row for row, _ in rest)]))
    return Verdict(table, column, heading, text, "equal")


def _lead(table: ResultTable, column: str, best: str, second: str, apart: Difference) -> str:
    """Return how far the best row is before the next one."""
    cell = table.cell(best, column)
    unit = table.unit_of(cell)
    larger = table.larger(cell)
    interval = (-apart.high, -apart.low) if larger else (apart.low, apart.high)
    ahead, (low, high) = shown(abs(apart.mean), unit), shown_alike(interval, unit)
    distance = with_unit(ahead, "percentage points" if unit == "%" else unit)
    p = f"p = {apart.p:.3f}" if apart.p >= 0.001 else "p < 0.001"
    return (
        f"Its mean is {_value(cell, unit)}, {distance} {'above' if larger else 'below'}"
        f" {second}, the next one ({1 - LEVEL:.0%} interval {low} to {high}"
        f" for this pair alone; {p} by Holm over all pairs)"
    )


def _not_compared(table: ResultTable, column: str) -> Verdict:
    """Return why nothing is compared, and the best mean so far."""
    rows = {row: cell for row in table.rows if (cell := table.cell(row, column)).seeds}
    whole = {
        row: cell.mean
        for row, cell in rows.items()
        if cell.mean is not None and len(cell.measured) == cell.seeds
    }
    text = f"{table.undeclared(column) or _reason(rows, [*whole])}."
    if not any(cell.measured for cell in rows.values()):
        text += " No run has a value."
    if whole:
        larger = table.larger(rows[next(iter(whole))])
        best = (max if larger else min)(whole.values())
        first = [row for row, mean in whole.items() if mean == best]
        value = _value(rows[first[0]], table.unit_of(rows[first[0]]))
        if len(rows) == 1:
            text += f" Its mean is {value}."
        elif larger is not None:
            text += f" The best mean so far is that of {_names(first)}, {value}."
    heading = "No winner yet" if len(rows) > 1 else next(iter(rows))
    return Verdict(table, column, heading, text, "not compared")


def _reason(rows: Mapping[str, ResultCell], whole: Sequence[str]) -> str:
    """Return why no rows of a column are compared; every seed of the `whole` ones has a value."""
    most = max(cell.seeds for cell in rows.values())
    if len(rows) < 2:
        return "There is one row, and nothing to compare it with"
    if most < SEEDS_FOR_TEST:
        return f"{TOO_FEW}, and these rows have {most}"
    if len(whole) < 2:
        return f"{f'Only {whole[0]}' if whole else 'No row'} has a value for every seed"
    if any(cell.in_progress for cell in rows.values()):
        return "Runs in progress are not compared"
    return f"That takes two rows with the same {SEEDS_FOR_TEST} seeds or more"


def _value(cell: ResultCell, unit: str) -> str:
    """Return the mean of a cell in its unit."""
    return "-" if cell.mean is None else with_unit(shown(cell.mean, unit), unit)


def _names(rows: Sequence[str]) -> str:
    """Return names as text, the first few of many."""
    if len(rows) > MOST_NAMED:
        return f"{', '.join(rows[:MOST_NAMED])} and {len(rows) - MOST_NAMED} more"
    return " and ".join(filter(None, (", ".join(rows[:-1]), rows[-1])))
