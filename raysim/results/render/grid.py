"""Grids: tables laid out as plain text with notes, which the formats escape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from string import ascii_lowercase
from typing import Any

from raysim.display.units import SCALES, with_unit
from raysim.errors import visible
from raysim.results import statistics
from raysim.results.metrics import Metric
from raysim.results.statistics import Difference
from raysim.results.tables import ResultCell, ResultTable
from raysim.user_input import label_text

DECIMALS: Mapping[str, int] = {
    **{"%": 2, "rounds": 1, "s": 1},
    **{"B": 0, "kB": 1, "MB": 1, "GB": 2, "TB": 2, "min": 2, "h": 2, "d": 2},
}
FEW_NOTE = f"*: fewer than {statistics.FEW} seeds."
SPREAD_NOTE = "Cells: mean ± sample deviation over n seeds."
TEST = (
    "paired t-test over seeds, at a level of"
    f" {statistics.LEVEL:.0%} by Holm over all pairs of rows of a column"
)
BOLD_NOTE = (
    "Bold: the row with the best mean, of those in which every seed has a value, and all rows that"
    f" a {TEST}, does not tell from it; rows with fewer seeds than others, or with other seeds, are"
    " not compared."
)
NO_BOLD_NOTE = (
    "No rows are compared, and none is bold: that takes two rows in which the same seeds, at least"
    f" {statistics.SEEDS_FOR_TEST}, have values."
)
DIFFERENCES_TITLE = "Differences from the best row"
DIFFERENCES_NOTE = (
    f"Mean over seeds, its {1 - statistics.LEVEL:.0%} interval for this pair alone, and p of a"
    f" {TEST}."
)
OWN_ROUND_NOTE = "a round is {}: its measured rounds are not compared with other methods' rounds."
LONGEST = 10_000
"""Most characters of an entry."""


@dataclass(frozen=True)
class Entry:
    """Text of a cell.

    Attributes:
        text: The text, on one line.
        bold: Whether it is set in bold.
        value: The number for sorting.
    """

    text: str
    bold: bool = False
    value: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", visible(self.text, LONGEST))


@dataclass(frozen=True)
class Grid:
    """Table of text.

    Attributes:
        title: Its title.
        header: Names of the columns, starting with the column of the rows' names.
        rows: Entries of each row, its name first.
        notes: Lines below the table.
        groups: Group of each column and its name there; empty without groups.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The groups, each with the number of its neighbouring columns."""
        spans: list[tuple[str, int]] = []
        for group, _ in self.groups:
            same = spans and spans[-1][0] == group
            spans[-1:] = [(group, spans[-1][1] + 1)] if same else [*spans[-1:], (group, 1)]
        return spans

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", visible(self.title, LONGEST))
        pairs = ((visible(a, LONGEST), visible(b, LONGEST)) for a, b in self.groups)
        object.__setattr__(self, "groups", tuple(pairs))
        for name in ("header", "notes"):
            lines = tuple(visible(line, LONGEST) for line in getattr(self, name))
            object.__setattr__(self, name, lines)


@dataclass
class Footnotes:
    """Footnotes by text, each with a letter, in the order of their first use."""

    _marks: dict[str, str] = field(default_factory=dict)

    def mark(self, text: str) -> str:
        """Return the letter of a note; "" for an empty note."""
        if not text:
            return ""
        count, letters = len(self._marks), len(ascii_lowercase)
        letter = ascii_lowercase[count % letters] * (count // letters + 1)
        return self._marks.setdefault(text, letter)

    def lines(self) -> list[str]:
        """Return the notes, each after its letter."""
        return [f"{letter}: {text}" for text, letter in self._marks.items()]


def grid_of(table: ResultTable, footnotes: Footnotes | None = None) -> Grid:
    """Lay a table out as text.

    Args:
        table: The table.
        footnotes: Footnotes shared with other tables; their letters continue.
    """
    footnotes = footnotes or Footnotes()
    best = {column: table.best(column) for column in table.columns}
    rows = []
    for row in table.rows:
        listed = {_listed(table.cell(row, column).differing) for column in table.columns}
        common = listed.pop() if len(listed) == 1 else ""
        entries = [Entry(_marked(row, footnotes.mark(common)))]
        for column in table.columns:
            text = _cell_text(table, row, column, footnotes, common)
            value = table.cell(row, column).mean
            entries.append(Entry(text, row in best[column], value))
        rows.append(tuple(entries))
    unit = f" [{table.unit}]" if table.unit else ""
    notes = (*table.notes, *_legend(table), *footnotes.lines())
    groups = [("", ""), *(table.groups.get(name, ("", name)) for name in table.columns)]
    return Grid(
        f"{table.title}{unit}",
        ("", *table.columns),
        tuple(rows),
        notes,
        tuple(groups) if table.groups else (),
    )


def differences_of(*tables: ResultTable) -> Grid | None:
    """Lay out how far rows are from the best of each column; None if no rows are compared.

    Args:
        tables: Tables with the same rows.
    """
    places = [(table, name) for table in tables for name in table.columns]
    columns = [
        (name, by_row, table) for table, name in places if (by_row := table.differences(name))
    ]
    if not columns:
        return None
    rows = tuple(
        (
            Entry(row),
            *(_difference_entry(by_row, row, table, name) for name, by_row, table in columns),
        )
        for row in tables[0].rows
        if any(row in by_row for _, by_row, _ in columns)
    )
    header = ("", *(name for name, *_ in columns))
    return Grid(DIFFERENCES_TITLE, header, rows, (DIFFERENCES_NOTE,))


def _difference_entry(
    differences: Mapping[str, Difference | None], row: str, table: ResultTable, column: str
) -> Entry:
    """Return the difference of a row from the best of a column as text."""
    if (difference := differences.get(row)) is None:
        return Entry("best" if row in differences else "not compared")
    unit = table.unit_of(table.cell(row, column))
    mean, low, high = shown_alike((difference.mean, difference.low, difference.high), unit)
    p = f"p={difference.p:.3f}" if difference.p >= 0.001 else "p<0.001"
    return Entry(f"{mean} [{low}, {high}], {p}", value=difference.mean)


def shown(value: float, unit: str) -> str:
    """Return a metric's value in a unit, as text without the unit."""
    scaled = value * SCALES.get(unit, 1.0)
    return f"{scaled:.{DECIMALS[unit]}f}" if unit in DECIMALS else f"{scaled:.4g}"


def shown_alike(values: Sequence[float], unit: str) -> list[str]:
    """Return values of a metric, as a mean and its deviation, with the same number of decimals.

    The number of decimals is the unit's, if it has one; otherwise it shows four digits of the
    largest value, or fewer if these suffice. A small value that would show as 0 has more decimals.

    Args:
        values: The values.
        unit: The unit of the shown values; it is not in the texts.
    """
    scaled = [value * SCALES.get(unit, 1.0) for value in values]
    largest = max(map(abs, scaled))
    if unit in DECIMALS or not 1e-4 <= largest < 1e6:
        return [shown(value, unit) for value in values]
    most = max(0, 3 - floor(log10(largest)))
    errors = (max(abs(value - round(value, n)) for value in scaled) for n in range(most))
    decimals = next((n for n, error in enumerate(errors) if error < 1e-9 * largest), most)
    alike = [f"{value:.{decimals}f}" for value in scaled]
    pairs = zip(alike, values, strict=True)
    return [text if float(text) or not value else shown(value, unit) for text, value in pairs]


def spread(cell: ResultCell, metric: Metric, unit: str) -> str:
    """Return mean, deviation and number of seeds of a cell with runs."""
    measured = len(cell.measured)
    if cell.mean is None:
        text = "-"
    else:
        text = shown(cell.mean, unit)
        if cell.deviation is not None:
            text = " ± ".join(shown_alike((cell.mean, cell.deviation), unit))
    without = "without a value" if metric.target is None else "not reached"
    without += " so far" if cell.in_progress else ""
    if cell.declared and (best := cell.declared.best(cell.nearest)) is not None:
        of_column = cell.declared.unit
        without += f", at best {with_unit(shown(best, of_column), of_column)}"
    lost = {
        "diverged": cell.diverged,
        "failed": cell.failed,
        without: len(cell.values) - measured,
    }
    words = [f"{number} {word}" for word, number in lost.items() if number]
    count = ", ".join([f"{measured}/{cell.seeds}", *words]) if words else f"n={measured}"
    return f"{text} ({count})" + ("*" if 0 < measured < statistics.FEW else "")


def _cell_text(table: ResultTable, row: str, column: str, footnotes: Footnotes, common: str) -> str:
    cell = table.cell(row, column)
    if cell.seeds:
        text = spread(cell, table.parsed_metric(cell), table.unit_of(cell))
        text += _times(table.ratio(row, column))
    else:
        text = "no data" if cell.missing else "not run"
    if (difference := _listed(cell.differing)) == common:
        difference = ""
    metric = table.parsed_metric(cell).definition(cell.declared) if cell.metric else ""
    metric += f" In {cell.unit}." if cell.unit else ""
    missing = f"needs {cell.missing}" if cell.missing else ""
    own_round = table.own_round_of(cell) and OWN_ROUND_NOTE.format(table.own_round_of(cell))
    marks = [footnotes.mark(note) for note in (difference, metric.strip(), missing, own_round)]
    text = _marked(text, ",".join(filter(None, marks)))
    if cell.published is None:
        return text
    published = f"{cell.published:g}"
    if cell.published_deviation is not None:
        published += f" ± {cell.published_deviation:g}"
    published += _times(table.published_ratio(row, column))
    suspect = f"the published value is suspect: {cell.suspect}" if cell.suspect else ""
    return f"{text} [{_marked(published, footnotes.mark(suspect))}]"


def _legend(table: ResultTable) -> Iterator[str]:
    """Yield the notes that say how to read the cells."""
    places = [(row, column) for row in table.rows for column in table.columns]
    cells = [table.cell(*place) for place in places]
    columns = (c.declared for c in cells if c.declared and not c.metric)
    yield table.parsed_metric(ResultCell()).definition(next(columns, None))
    if any(cell.seeds for cell in cells):
        yield SPREAD_NOTE
        yield BOLD_NOTE if any(map(table.differences, table.columns)) else NO_BOLD_NOTE
        yield from dict.fromkeys(filter(None, map(table.undeclared, table.columns)))
    if any(0 < len(cell.measured) < statistics.FEW for cell in cells):
        yield FEW_NOTE
    if any(len(cell.measured) < cell.seeds for cell in cells):
        theirs = ", and the mean is theirs; such a cell has no ratio" if table.baseline else ""
        yield f"2/3: of three seeds two have a value{theirs}."
    if any(cell.published is not None for cell in cells):
        yield "In brackets: the published value."
    if any(table.ratio(*place) or table.published_ratio(*place) for place in places):
        yield f"2.00x: half of what {table.baseline} needs, by the means over the seeds of both."


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(label_text(*setting) for setting in sorted(settings.items()))


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f" {ratio:.2f}x"


def _marked(text: str, mark: str) -> str:
    return f"{text} ({mark})" if mark else text
