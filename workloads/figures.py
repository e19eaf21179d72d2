"""Figures by name: the paper's short name and the figure's number.

A figure is a few runs of a preset with analyses, and the kind of their drawing. The runs hold the
varied settings of the paper's figure; the notes hold deviations. `raysim figure NAME` draws one;
`raysim list figures` prints them all.
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.api.components import look_up
from raysim.workloads.papers.dnc import figures as dnc
from raysim.workloads.papers.fedfusion import figures as fedfusion
from raysim.workloads.papers.fedmax import figures as fedmax
from raysim.workloads.papers.fedmmd import figures as fedmmd
from raysim.workloads.papers.figure import Figure
from raysim.workloads.papers.flexchill import figures as flexchill
from raysim.workloads.papers.mifl import figures as mifl

FIGURES: Mapping[str, Figure] = {
    **fedmax.FIGURES,
    **dnc.FIGURES,
    **fedmmd.FIGURES,
    **fedfusion.FIGURES,
    **flexchill.FIGURES,
    **mifl.FIGURES,
}


def find(name: str) -> Figure:
    """Return a figure.

    Raises:
        SettingsError: there is no such figure.
    """
    return look_up("figure", name, FIGURES)
