"""Formats of a grid: terminal, Markdown, LaTeX and HTML, each with its own escapes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from raysim.results.render.grid import Entry, Grid

MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$])")
LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
}
PADDING = 2
"""Characters of a column in the terminal besides its text."""
STYLE = """\
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color-scheme: light dark; }
table { border-collapse: collapse; } caption { text-align: left; font-weight: bold; }
th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
"""


@dataclass(frozen=True)
class _Terminal:
    """Grid as wide as the terminal; columns that do not fit are printed below the others."""

    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid, width = self.grid, options.max_width
        yield Text(grid.title, "italic")  # as a Table's title it would wrap at the table's width
        for columns in _blocks(grid, width):
            table = Table(box=None)
            for number in columns:
                most = None if number else max(width // 2, 1)
                justify: JustifyMethod = "right" if number else "left"
                name = Text("\n".join(_lines(grid, number, columns)))
                table.add_column(name, justify=justify, overflow="fold", max_width=most)
            for row in grid.rows:
                texts = (Text(row[n].text, "bold" if row[n].bold else "") for n in columns)
                table.add_row(*texts)
            yield table
        for note in grid.notes:
            yield Text(note)


def _lines(grid: Grid, number: int, columns: list[int]) -> tuple[str, ...]:
    """Return the lines above a column: its group's name where that begins, and its own."""
    if not grid.groups:
        return (grid.header[number],)
    group, name = grid.groups[number]
    at = columns.index(number) if number in columns else 0
    begins = not at or grid.groups[columns[at - 1]][0] != group
    return (group if begins else "", name)


def _blocks(grid: Grid, width: int) -> list[list[int]]:
    """Return blocks of columns that fit side by side, after the column of the rows' names."""
    widths = [
        PADDING
        + max(
            cell_len(text)
            for text in (*_lines(grid, number, []), *(row[number].text for row in grid.rows))
        )
        for number in range(len(grid.header))
    ]
    names = min(widths[0], PADDING + width // 2)
    blocks, used = [[0]], names
    for number in range(1, len(widths)):
        if used + widths[number] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = names
        blocks[-1].append(number)
        used += widths[number]
    return blocks


def to_rich(grid: Grid) -> RenderableType:
    """Return a grid for the terminal, as several tables if its columns do not fit side by side."""
    return _Terminal(grid)


def to_markdown(*grids: Grid) -> str:
    """Return grids as Markdown tables, with the notes as paragraphs."""
    return "\n".join(map(_markdown, grids))


def _markdown(grid: Grid) -> str:

    def cell(entry: Entry) -> str:
        text = MARKDOWN.sub(r"\\\1", entry.text)
        return f"**{text}**" if entry.bold else text

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [
        line([cell(Entry(name)) for name in grid.header]),
        line(["---", *(["---:"] * (len(grid.header) - 1))]),
        *(line([cell(entry) for entry in row]) for row in grid.rows),
    ]
    paragraphs = [cell(Entry(note)) for note in (grid.title, *grid.notes)]
    return "\n\n".join([paragraphs[0], "\n".join(lines), *paragraphs[1:]]) + "\n"


def to_latex(*grids: Grid) -> str:
    """Return grids as LaTeX table environments that need no package."""
    return "\n".join(map(_latex, grids))


def _latex(grid: Grid) -> str:

    def cell(entry: Entry) -> str:
        text = "".join(LATEX.get(character, character) for character in entry.text)
        return rf"\textbf{{{text}}}" if entry.bold else text

    def line(cells: list[str]) -> str:
        text = " & ".join(cells)
        guard = "{}" if text.startswith(("[", "*")) else ""  # else `\\` takes it as its argument
        return f"{guard}{text} \\\\"

    def header() -> list[list[str]]:
        if not grid.groups:
            return [[cell(Entry(name)) for name in grid.header]]
        above = [rf"\multicolumn{{{n}}}{{c}}{{{cell(Entry(name))}}}" for name, n in grid.spans]
        return [above, [cell(Entry(name)) for _, name in grid.groups]]

    title, *notes = [cell(Entry(note)) for note in (grid.title, *grid.notes)]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{title}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
            r"\hline",
            *(line(names) for names in header()),
            r"\hline",
            *(line([cell(entry) for entry in row]) for row in grid.rows),
            r"\hline",
            r"\end{tabular}",
            *(rf"\par\footnotesize {note}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def html_table(grid: Grid) -> str:
    """Return a grid as a table element and its notes; `data-value` holds the sort key."""

    def cell(entry: Entry) -> str:
        value = "" if entry.value is None else f' data-value="{entry.value!r}"'
        text = escape(entry.text)
        return f"<td{value}>{f'<strong>{text}</strong>' if entry.bold else text}</td>"

    names_of_columns = [name for _, name in grid.groups] or grid.header
    above = "".join(
        f'<th colspan="{n}" scope="colgroup">{escape(name)}</th>' for name, n in grid.spans
    )
    names = f"{above}</tr>\n<tr>" if above else ""
    names += "".join(f'<th scope="col">{escape(name)}</th>' for name in names_of_columns)
    rows = "\n".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in grid.rows)
    notes = "\n".join(f'<p class="note">{escape(note)}</p>' for note in grid.notes)
    return (
        f'<div class="wide">\n<table>\n<caption><span>{escape(grid.title)}</span></caption>\n'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
        f"{notes}\n"
    )


def to_html(*grids: Grid) -> str:
    """Return grids as a page of HTML that loads nothing."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>{escape(grids[0].title)}</title>\n<style>\n{STYLE}</style>\n"
        f"{''.join(map(html_table, grids))}</html>\n"
    )
