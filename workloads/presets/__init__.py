"""Presets: a published experiment each, as a Python value derived from another with `replace`.

Names are paper-dataset-variant. What a table of a paper varies from cell to cell (a method, one of
its settings, a temperature) has no preset of its own: it is an override of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.workloads.presets import dnc, fedfusion, fedmax, fedmmd, flexchill, mifl, mnist
from raysim.workloads.presets.preset import Paper, Preset

PRESETS: Mapping[str, Preset] = {
    **mnist.PRESETS,
    **fedmax.PRESETS,
    **dnc.PRESETS,
    **fedmmd.PRESETS,
    **fedfusion.PRESETS,
    **flexchill.PRESETS,
    **mifl.PRESETS,
}

__all__ = ["PRESETS", "Paper", "Preset"]
