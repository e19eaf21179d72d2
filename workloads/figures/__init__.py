"""Figures of the papers: each a few runs of a preset with analyses, and how they are drawn.

`raysim figure NAME` runs and draws one; `raysim list figures` prints them all. A figure is data, in
`definitions`, `flexchill` and, of the runs of a table, `curves`; `kinds` has one function a kind of
drawing.
"""

from __future__ import annotations

from raysim.core.components import look_up
from raysim.workloads.figures.definitions import FIGURES
from raysim.workloads.figures.figure import Figure

__all__ = ["FIGURES", "find"]


def find(name: str) -> Figure:
    """Return a figure.

    Raises:
        SettingsError: there is no such figure.
    """
    return look_up("figure", name, FIGURES)
