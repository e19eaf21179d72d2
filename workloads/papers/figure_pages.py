"""Pages of `raysim list figures`: the figures of all papers, and one with its runs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.user_input import override_text
from raysim.workloads.figures import FIGURES, find


def page(name: str) -> RenderableType:
    """Return the list of figures, or the page of one.

    Raises:
        SettingsError: there is no such figure.
    """
    if not name:
        listed = Table(
            *("name", "description", "counterpart of"),
            title="figures",
            title_justify="left",
            box=None,
        )
        for figure_name, known in FIGURES.items():
            listed.add_row(figure_name, known.title, known.source)
        return listed
    figure = find(name)
    runs = Table("run", "preset", "settings", box=None)
    for run in figure.runs:
        settings = " ".join(override_text(*override) for override in figure.overrides(run).items())
        runs.add_row(run.name, run.preset or figure.preset, Text(settings))
    lines = [figure.title, figure.source, figure.paper.citation, figure.note]
    presets = dict.fromkeys(run.preset or figure.preset for run in figure.runs)
    others = Text(f"all others, and deviations: raysim list presets {' | '.join(presets)}")
    return Group(Text(name, style="bold"), Text("\n".join(filter(None, lines))), runs, others)
