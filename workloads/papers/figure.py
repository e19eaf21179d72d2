"""A figure of a paper: runs of a preset, the analyses that they ask for, and a drawing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.workloads.papers.preset import Paper


@dataclass(frozen=True)
class FigureRun:
    """A run of a figure.

    Attributes:
        label: Its name in the legend.
        settings: Its own settings, by dotted key.
        preset: Preset of the run, if not the figure's.
        reference: Name of an earlier run whose model it is compared with.
        drawn: Whether it is drawn, or is only a reference.
        panel: Title of its panel, if curves are drawn in several panels.
        at: Value of the setting against which it is drawn, if runs are points of a line.
        table: The analysis of it that is drawn, if not the figure's.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    reference: str = ""
    drawn: bool = True
    panel: str = ""
    at: float | None = None
    table: str = ""

    @property
    def name(self) -> str:
        """Its name among the runs of the figure."""
        place = "" if self.at is None else f"{self.at:g}"
        return ", ".join(filter(None, (self.label, self.panel, place)))


@dataclass(frozen=True)
class Figure:
    """A figure of a paper.

    Attributes:
        title: Title of the drawing.
        paper: The paper.
        reference: Its figure there.
        preset: The preset of all runs.
        runs: The runs; references stand before the runs that they serve.
        draw: Kind of drawing, of `drawing.KINDS`.
        table: The analysis that is drawn, or `metrics`.
        values: The columns that are drawn.
        axis: Label of the axis of the values; empty if each part of the values has its own.
        settings: Settings of all runs, by dotted key.
        options: Options of the drawing.
        note: Deviations from the paper's figure.
    """

    title: str
    paper: Paper
    reference: str
    preset: str
    runs: tuple[FigureRun, ...]
    draw: str
    table: str
    values: tuple[str, ...]
    axis: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def source(self) -> str:
        """The paper's name with the figure."""
        return f"{self.paper.name}, {self.reference}"

    def overrides(self, run: FigureRun) -> dict[str, Any]:
        """Return the settings of a run that differ from its preset's.

        Drawn runs have the analyses of all of them: those of equal settings are run once.
        """
        tables = dict.fromkeys(
            self.table_of(drawn_run) for drawn_run in self.runs if drawn_run.drawn
        )
        names = [name for name in tables if name != "metrics"] if run.drawn else []
        analysis = {"analysis": ",".join(names)} if names else {}
        return {**analysis, **self.settings, **run.settings}

    def table_of(self, run: FigureRun) -> str:
        """Return the analysis of a run that is drawn, or `metrics`."""
        return run.table or self.table


HEAT_MAP: dict[str, Any] = {
    "draw": "heat_map",
    "table": "label_heat_map",
    "values": ("samples",),
    "axis": "samples",
    "settings": {"rounds": 1, "target_accuracy": None},
}
"""Fields of a figure of the samples of each client and class."""

FEDAVG = {"method.name": "fedavg"}
"""Settings that run FedAvg instead of the preset's method."""
