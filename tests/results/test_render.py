"""Formats of tables: escapes, bold, notes, and the same figures in each."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from raysim.results.render import (
    Entry,
    Grid,
    grid_of,
    to_arrow,
    to_html,
    to_latex,
    to_markdown,
    to_rich,
)
from raysim.results.tables import ResultCell, ResultTable
from tests.results.cells import declared

HOSTILE = "<script>alert(1)</script> [red]a|b_c*d\\ 50% & $x^2$ #~{}`\x1b[31m\nend"
IID = (0.9, 0.91, 0.92, 0.9, 0.92)
NOTE = "shortened: 30 rounds of 500"
TABLE = ResultTable(
    title="FedMAX table 1",
    metric="final(test_accuracy)",
    unit="%",
    rows=("FedAvg", "FedMAX"),
    columns=("iid", "non-iid"),
    cells=declared(
        {
            ("FedAvg", "iid"): ResultCell(dict(enumerate(IID)), published=91.5),
            ("FedMAX", "iid"): ResultCell(dict.fromkeys(range(5), 0.95)),
            ("FedAvg", "non-iid"): ResultCell(diverged=3),
        },
        "final(test_accuracy)",
    ),
    notes=(NOTE,),
)


def in_terminal(grid: Grid, width: int = 200) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(to_rich(grid))
    return file.getvalue()


FORMATS = {
    "terminal": in_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
    "html": to_html,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_title_cells_and_notes(name):
    text = FORMATS[name](grid_of(TABLE))
    for part in ("FedMAX table 1", "91.00", "1.00 (n=5)", "91.5", "3 diverged", "not run", NOTE):
        assert part in text


def wide_grid(names: int) -> Grid:
    header = ("", *(f"column {n}" for n in range(10, 50)))
    rows = [
        ("R" * names, *(Entry(f"{n}.0 ± 0.1 (n=3)", value=n) for n in range(10, 50)))
        for _ in range(2)
    ]
    return Grid("Wide", header, tuple((Entry(name), *rest) for name, *rest in rows))


@pytest.mark.parametrize(("names", "width"), [(6, 80), (6, 10_000), (70, 80), (6, 200)])
def test_wide_tables_are_split_into_blocks_that_fit_the_terminal(names, width):
    """Every column is there once, in one piece, with its values and the names of the rows."""
    grid = wide_grid(names)
    lines = in_terminal(grid, width).splitlines()
    assert all(len(line) <= width for line in lines)
    heads = [line for line in lines if "column" in line]
    words = [word for line in heads for word in re.findall(r"column \d+", line)]
    assert words == [*grid.header[1:]]
    values = [re.findall(r"\d+\.0 ± 0\.1 \(n=3\)", line) for line in lines]
    for row in (0, 1):
        of_row = [value for each in [v for v in values if v][row::2] for value in each]
        assert of_row == [entry.text for entry in grid.rows[row][1:]]
    column = 2 + len("39.0 ± 0.1 (n=3)")
    fit = (width - 2 - min(names, width // 2)) // column
    assert len(heads) == -(-40 // min(fit, 40))


def test_a_column_wider_than_the_terminal_is_folded():
    grid = Grid("t", ("", "x", "y"), ((Entry("row"), Entry("v" * 50), Entry("1")),))
    text = in_terminal(grid, 30)
    assert all(len(line) <= 30 for line in text.splitlines()) and text.count("v") == 50


def test_markdown():
    lines = to_markdown(grid_of(TABLE)).splitlines()
    assert lines[:6] == [
        "FedMAX table 1 \\[%\\]",
        "",
        "|  | iid | non-iid |",
        "| --- | ---: | ---: |",
        "| FedAvg | 91.00 ± 1.00 (n=5) \\[91.5\\] | - (0/3, 3 diverged) |",
        "| FedMAX | **95.00 ± 0.00 (n=5)** | not run |",
    ]


def test_latex():
    text = to_latex(grid_of(TABLE))
    assert "FedAvg & 91.00 $\\pm$ 1.00 (n=5) [91.5] & - (0/3, 3 diverged) \\\\" in text
    assert "FedMAX & \\textbf{95.00 $\\pm$ 0.00 (n=5)} & not run \\\\" in text
    assert "\\begin{tabular}{lrr}" in text


class Cells(HTMLParser):
    """Text by tag, and all tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.values: list[str | None] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag in ("td", "th", "caption", "p"):
            self.cells.append("")
            self.values.append(dict(attrs).get("data-value"))

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_html_escapes_and_has_values_to_sort_by():
    grid = Grid(HOSTILE, ("", HOSTILE), ((Entry(HOSTILE), Entry(HOSTILE, value=0.5)),), (HOSTILE,))
    found = Cells()
    found.feed(to_html(grid))
    assert "script" not in found.tags
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\n", "\\n")
    assert [cell.strip() for cell in found.cells] == [shown, "", *[shown] * 4]
    assert found.values[4] == "0.5"


def test_the_other_formats_escape():
    grid = Grid("t", ("", HOSTILE), ((Entry(HOSTILE, bold=True), Entry("")),))
    markdown = to_markdown(grid)
    assert "\\<script\\>" in markdown and "a\\|b\\_c\\*d\\\\" in markdown
    latex = to_latex(grid)
    assert "50\\% \\& \\$x\\textasciicircum{}2\\$ \\#\\textasciitilde{}\\{\\}" in latex
    assert "d\\textbackslash{} 50" in latex
    terminal = in_terminal(grid)
    assert "[red]a|b_c" in terminal
    for text in (markdown, latex, terminal):
        assert "\x1b" not in text


@pytest.mark.parametrize("name", ["[5] of ten", "*starred", "[", "**"])
def test_rows_whose_names_latex_would_take_for_arguments(name):
    rows = ((Entry("plain"), Entry("[1]")), (Entry(name), Entry("*")), (Entry(name, True),))
    lines = to_latex(Grid("t", ("", "x"), rows)).splitlines()
    start = lines.index(f"{{}}{name} & * \\\\")
    assert lines[start - 1] == "plain & [1] \\\\"
    assert lines[start + 1] == f"\\textbf{{{name}}} \\\\"
    ended = [n + 1 for n, line in enumerate(lines) if line.endswith("\\\\")]
    assert not [lines[n] for n in ended if lines[n].lstrip().startswith(("[", "*"))]


def test_parquet(tmp_path):
    pq.write_table(to_arrow(TABLE), tmp_path / "table.parquet")
    table = pq.read_table(tmp_path / "table.parquet")
    assert table.schema.metadata[b"title"] == b"FedMAX table 1"
    rows = {(row["row"], row["column"]): row for row in table.to_pylist()}
    assert len(rows) == 4
    first = rows["FedAvg", "iid"]
    assert first["mean"] == pytest.approx(0.91) and first["deviation"] == pytest.approx(0.01)
    assert first["published"] == 91.5 and first["published_unit"] == "%"
    assert [pair["seed"] for pair in first["values"]] == [0, 1, 2, 3, 4]
    assert all(row["notes"] == [NOTE] for row in rows.values())
    assert [rows[row, "iid"]["best"] for row in TABLE.rows] == [False, True]
    empty = rows["FedMAX", "non-iid"]
    assert (empty["mean"], empty["n"], empty["seeds"]) == (None, 0, 0)
    assert rows["FedAvg", "non-iid"]["diverged"] == 3
