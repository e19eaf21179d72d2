"""Runs with and without analyses, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import raysim
from raysim.analysis import ANALYSES
from tests.tasks import make_settings

SIZES = (40, 1, 17, 30, 9, 24, 40, 12)
OF_SOME_INPUTS = {"two_inputs", "language"}
OF_ANY_INPUTS = [n for n in ANALYSES if OF_SOME_INPUTS.isdisjoint(ANALYSES.get(n).needs)]
"""Analyses that do not need inputs of two numbers, or of text."""
EVERYTHING = {
    **{"evaluation.clients": True, "evaluation.every": 2},
    **{"rounds": 5, "checkpoint_every": 2},
}


def tables(run: Path) -> dict[str, Any]:
    """Return the rows of all analyses of a run."""
    found = (run / "analysis").glob("*.parquet")
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted(found)}


def figures(run: Path) -> list[Any]:
    rows = pq.read_table(run / "metrics.parquet").to_pylist()
    return [{name: row[name] for name in row if "seconds" not in name} for row in rows]


def states(run: Path) -> list[str]:
    """Return the names of the clients' states."""
    return sorted(str(p.relative_to(run)) for p in (run / "clients").rglob("*") if p.is_file())


def settings(path: Path, reference: Path, **overrides: Any) -> raysim.Settings:
    chosen = {"analysis": OF_ANY_INPUTS, "reference": str(reference)}
    return make_settings(path, **EVERYTHING | chosen | overrides)
