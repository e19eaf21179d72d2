"""Page of `raysim list runs`: the runs below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.core.errors import RunError, visible
from raysim.core.user_input import user_path

PARTS = ("checkpoints", "clients", "updates", "analysis")
"""Folders of a run, in which there are no others."""
DEFAULT = "runs"


def runs_page(folder: str) -> RenderableType:
    """Return the table of the runs in a folder and those below it, the newest last.

    Raises:
        RunError: there is no such folder.
    """
    from raysim.results.runs import RunRecord, read_run

    place = user_path(folder or DEFAULT)
    if not place.is_dir():
        raise RunError(f"{visible(str(place))}: no such folder; type: raysim list runs FOLDER")

    def told(record: RunRecord) -> list[str]:
        settings = record.settings
        data = "a task of its own" if record.own_task else str(settings.get("dataset.name", ""))
        last = record.metrics.to_pylist()[-1] if len(record.metrics) else {}
        accuracy, loss = last.get("test_accuracy"), last.get("test_loss")
        score = f"{100 * accuracy:.2f} %" if accuracy is not None else ""
        score = score or (f"loss {loss:.4g}" if loss is not None else "")
        rounds = f"{len(record.metrics)} of {settings.get('rounds', '?')}"
        return [str(settings.get("method.name", "")), data, rounds, record.state, score]

    table = Table(title=f"runs in {visible(str(place))}", title_justify="left", box=None)
    for name in ("run", "method", "dataset", "rounds", "state", "accuracy"):
        table.add_column(name, overflow="fold", justify="right" if name == "rounds" else "left")
    found = sorted(_runs_below(place), key=lambda run: (run / "config.json").stat().st_mtime)
    for run in found:
        try:
            words = told(read_run(run))
        except RunError as error:
            words = ["", "", "", "damaged", str(error)]
        table.add_row(*(Text(visible(each)) for each in (str(run), *words)))
    if not found:
        table.add_row(Text("none"), *[""] * 5)
    return table


def _runs_below(place: Path) -> Iterator[Path]:
    """Yield the run directories in a folder and below it."""
    for folder, below, files in os.walk(place):
        if "config.json" in files:
            yield Path(folder)
            below[:] = [name for name in below if name not in PARTS]
