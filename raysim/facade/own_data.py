"""A user's own data as the start of a run: `raysim run mails.csv target=spam client=domain`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raysim.config import Settings
from raysim.errors import DataError, SettingsError, visible
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.files.pictures import is_image
from raysim.workloads.datasets.files.sources import OF_DATA
from raysim.workloads.datasets.files.tables import first_mark, suffix_of
from raysim.workloads.datasets.files.unzipped import ZIP
from raysim.workloads.presets import OWN_DATA, OWN_IMAGES, OWN_PROMPTS, OWN_TEXT, PRESETS

OF_SETTINGS = (".toml", ".json", ".yaml", ".yml")
"""Ends of the names of settings files, whether or not they are read."""
OWN = (OWN_DATA, OWN_IMAGES, OWN_TEXT, OWN_PROMPTS)
PATH = "dataset.path"


def is_own_data(start: str) -> bool:
    """Return whether a start is a preset for a user's own data, or such data."""
    return start in OWN or (start not in PRESETS and _is_data(start))


def preset_of(start: str, overrides: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the preset of a user's own data, and its path as an override, if it has one.

    Args:
        start: The preset, or the path.
        overrides: Settings of the dataset, with their group, and others; a column of text decides.

    Raises:
        SettingsError: the start is the folder of a run.
    """
    if start in OWN:
        return start, {}
    with suppress(OSError):  # a name that is too long
        if Path(start, "config.json").is_file():
            raise SettingsError(
                f"{visible(start)}: is the folder of a run; type: raysim resume"
                f" {shlex.quote(start)}"
            )
    if {"dataset.prompt", "dataset.answer"} & overrides.keys():
        preset = OWN_PROMPTS
    elif "dataset.text" in overrides:
        preset = OWN_TEXT if "dataset.target" in overrides else OWN_PROMPTS
    else:
        preset = OWN_IMAGES if _has_images(Path(start)) else OWN_DATA
    return preset, {PATH: start}


def with_groups(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides whose settings without a group, as `target`, are the dataset's."""
    of_data = DATASETS.get("files").model_fields.keys() - Settings.model_fields.keys()
    return {f"dataset.{key}" if key in of_data else key: v for key, v in overrides.items()}


def _is_data(start: str) -> bool:
    """Return whether a start is a file or folder of data, which may be missing."""
    path = Path(start)
    suffix = suffix_of(path)
    if suffix in OF_SETTINGS:
        return suffix == ".json" and path.is_file() and _has_array(path)
    return os.path.lexists(start) or suffix in (*OF_DATA, ZIP)


def _has_images(path: Path) -> bool:
    """Return whether a folder, or a folder below it, has images."""
    with suppress(OSError):  # a name that is too long
        return path.is_dir() and any(is_image(file.name) for file in path.rglob("*"))
    return False


def _has_array(path: Path) -> bool:
    """Return whether a JSON file holds an array, as a table does; settings are an object."""
    with suppress(DataError):
        return first_mark(path) == "["
    return False
