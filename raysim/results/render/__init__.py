"""Output of tables: terminal, Markdown, LaTeX, HTML, Arrow and JSON.

`grid_of` lays a table out as text; the formats escape it and change nothing else.
"""

from raysim.results.render.arrow import to_arrow, to_document
from raysim.results.render.formats import html_table, to_html, to_latex, to_markdown, to_rich
from raysim.results.render.grid import Entry, Footnotes, Grid, differences_of, grid_of

__all__ = [
    "Entry",
    "Footnotes",
    "Grid",
    "differences_of",
    "grid_of",
    "html_table",
    "to_arrow",
    "to_document",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_rich",
]
