"""Page of `raysim list runs`: the runs below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.core.errors import RunError, visible
from raysim.core.user_input import user_path

PARTS = ("checkpoints", "clients", "updates", "analysis")
"""Folders of a run, in which there are no others."""
LONGEST = 10_000
"""Most characters of a name, which is not cut."""
DEFAULT = "runs"


def runs_page(folder: str) -> RenderableType:
    """Return the table of the runs in a folder and those below it, the newest last.

    Raises:
        RunError: there is no such folder.
    """
    place = _place(folder)
    table = Table(title=f"runs in {visible(str(place), LONGEST)}", title_justify="left", box=None)
    for name in ("run", "method", "dataset", "rounds", "state", "accuracy"):
        table.add_column(name, overflow="fold", justify="right" if name == "rounds" else "left")
    found = runs_in(folder)
    for run in found:
        data = run["dataset"] or ("a task of its own" if run["error"] is None else "")
        words = [run["run"], run["method"], data, "", run["state"], run["error"] or ""]
        if run["error"] is None:
            words[3:] = [f"{run['rounds']} of {run['of']}", run["state"], _score(run)]
        table.add_row(*(Text(visible(each, LONGEST)) for each in words))
    if not found:
        table.add_row(Text("none"), *[""] * 5)
    return table


def runs_in(folder: str) -> list[dict[str, Any]]:
    """Return the figures of each run in a folder and below it, the newest last.

    Raises:
        RunError: there is no such folder.
    """
    place = _place(folder)
    found = sorted(_runs_below(place), key=lambda run: (run / "config.json").stat().st_mtime)
    return [_told(run) for run in found]


def _place(folder: str) -> Path:
    place = user_path(folder or DEFAULT)
    if not place.is_dir():
        raise RunError(f"{visible(str(place))}: no such folder; type: raysim list runs FOLDER")
    return place


def _told(run: Path) -> dict[str, Any]:
    """Return method, data, rounds and last score of a run, or its error where it is damaged."""
    from raysim.results.runs import read_run

    told: dict[str, Any] = {"run": str(run), "method": "", "dataset": "", "rounds": None}
    told |= {"of": None, "state": "damaged", "accuracy": None, "loss": None, "error": None}
    try:
        record = read_run(run)
    except RunError as error:
        return told | {"error": str(error)}
    settings = record.settings
    last = record.metrics.to_pylist()[-1] if len(record.metrics) else {}
    return told | {
        "method": str(settings.get("method.name", "")),
        "dataset": "" if record.own_task else str(settings.get("dataset.name", "")),
        "rounds": len(record.metrics),
        "of": settings.get("rounds"),
        "state": record.state,
        "accuracy": last.get("test_accuracy"),
        "loss": last.get("test_loss"),
    }


def _score(run: dict[str, Any]) -> str:
    accuracy, loss = run["accuracy"], run["loss"]
    if accuracy is not None:
        return f"{100 * accuracy:.2f} %"
    return f"loss {loss:.4g}" if loss is not None else ""


def _runs_below(place: Path) -> Iterator[Path]:
    """Yield the run directories in a folder and below it."""
    for folder, below, files in os.walk(place):
        if "config.json" in files:
            yield Path(folder)
            below[:] = [name for name in below if name not in PARTS]
