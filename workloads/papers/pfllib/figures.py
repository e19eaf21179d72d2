"""Figures of PFLlib: its page has none."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.workloads.papers.figure import Figure

FIGURES: Mapping[str, Figure] = {}
