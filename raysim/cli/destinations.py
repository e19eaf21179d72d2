"""Checks of the places that commands write to, before they start."""

from __future__ import annotations

from pathlib import Path

from raysim.errors import SettingsError
from raysim.user_input.run_folders import is_of_a_run, run_directory_of


def check_file(out: Path, suffix: str) -> None:
    """Check that a file can be written, and is not a run's own.

    Raises:
        SettingsError: it cannot.
    """
    if out.suffix != suffix or out.is_dir() or not out.parent.is_dir():
        raise SettingsError(f"--out={out}: must be a {suffix} file in an existing folder")
    if is_of_a_run(out):
        raise SettingsError(f"--out={out}: is a run's own file; choose another name or folder")


def check_apart(out: Path, data: Path) -> None:
    """Check that a file is not the data that a command reads, and not in its folder.

    Raises:
        SettingsError: it is.
    """
    if out.resolve() == data.resolve() or data.resolve() in out.resolve().parents:
        raise SettingsError(f"--out={out}: is the data itself, or lies in it; choose another file")


def check_folder(out: Path) -> None:
    """Check that a folder can be created, outside of run directories.

    Raises:
        SettingsError: it cannot.
    """
    if out.exists() or out.is_symlink() or not out.parent.is_dir():
        raise SettingsError(f"--out={out}: must be a new folder in an existing one")
    if run := run_directory_of(out.parent):
        raise SettingsError(f"--out={out}: lies in the run directory {run}; choose another folder")
