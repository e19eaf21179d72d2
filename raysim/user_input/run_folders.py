"""Recognition of run directories and the files in them, whose code is not executed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

PARTS = ("checkpoints", "clients", "updates", "analysis")
"""Folders of a run; there are no runs in them."""


def runs_below(place: Path) -> Iterator[Path]:
    """Yield the run directories in a folder and below it."""
    for folder, below, files in os.walk(place):
        if "config.json" in files and not _is_a_network(Path(folder)):
            yield Path(folder)
            below[:] = [name for name in below if name not in PARTS]


def _is_a_network(folder: Path) -> bool:
    """Return whether a `config.json` is that of a pretrained network, not of a run."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and "model_type" in values


def run_directory_of(path: Path) -> Path | None:
    """Return the run directory that is or contains a path, or None."""
    ways = (path.absolute(), path.resolve())
    places = dict.fromkeys(place for way in ways for place in (way, *way.parents))
    return next((place for place in places if _is_run_directory(place)), None)


def is_of_a_run(file: Path) -> bool:
    """Return whether a run wrote a file: it is one of the run's models or lies in its folders.

    Other files in the run directory are the user's.
    """
    ways = (file.absolute(), file.resolve())
    return any(
        folder in way.parents and (way.parent != folder or way.stem in ("model", "model_best"))
        for way in ways
        if (folder := run_directory_of(way.parent))
    )


def _is_run_directory(folder: Path) -> bool:
    """Return whether a folder has the settings of a run, or its checkpoints."""
    try:
        if any(folder.glob("checkpoints/*round_*/state.json")):
            return True
        config = folder / "config.json"
        # Not by `parse_json`: settings with a repeated key are a run directory's, too.
        values = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and "own_task" in values
