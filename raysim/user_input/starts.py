"""Starts of a run: a preset, a file of settings or of data, or the name of a dataset."""

from __future__ import annotations

from pathlib import Path

from raysim.user_input.paths import portable_name

DATASET = "dataset.name="
"""How a start without a preset begins."""


def short_name(start: str | Path) -> str:
    """Return the name of a start in folders and titles: the preset's, file's or dataset's."""
    text = str(start)
    if text.startswith(DATASET):
        return portable_name(text.removeprefix(DATASET))
    return Path(text).stem or Path.cwd().name
