"""Expansion and checks of a user's paths, before a file is written or read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from raysim.errors import SettingsError, visible

NAME_BYTES = 255
"""Most bytes of a name in a path on common file systems."""
PATH_BYTES = 3_500
"""Most bytes of a path: Linux takes 4,096, less the names of the files below."""


def portable_name(text: str) -> str:
    """Return a text as the name of a folder, in characters that every file system accepts."""
    return re.sub(r"[^a-z0-9.=]+", "-", text.lower()).strip("-.") or "-"


def check_inside(name: str, setting: str, folder: str, other: str) -> None:
    """Check that a name is the path of a folder inside `folder`.

    Args:
        name: The given name.
        setting: The setting or option that gives it, for errors.
        folder: The folder.
        other: The option that accepts any path.

    Raises:
        SettingsError: the name leads elsewhere.
    """
    path = user_path(name, setting)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SettingsError(
            f"{setting}={visible(name)}: must be a name, after which a folder in {folder}/ is"
            f" called; {other} takes any folder"
        )


def user_path(text: str | Path, setting: str = "") -> Path:
    """Return a path with the `~` of a home directory expanded.

    Args:
        text: The given path.
        setting: The setting or option that gives it, for errors.

    Raises:
        SettingsError: the path is empty, too long, has a control character, or names no user.
    """
    typed = f"{setting}={visible(str(text))}" if setting else visible(str(text))
    if not str(text):
        raise SettingsError(f"{setting or 'path'}=: must be at least one character")
    if any(ord(character) < 32 or ord(character) == 127 for character in str(text)):
        raise SettingsError(f"{typed}: a path must not have a control character")
    try:
        path = Path(text).expanduser()
        longest, whole = max(map(_bytes, path.parts), default=0), _bytes(path.absolute())
    except (RuntimeError, UnicodeEncodeError) as error:
        raise SettingsError(f"{typed}: is no path: {error}") from error
    if longest > NAME_BYTES:
        raise SettingsError(f"{typed}: a name must have at most {NAME_BYTES} bytes; has {longest}")
    if whole > PATH_BYTES:
        raise SettingsError(f"{typed}: a path must have at most {PATH_BYTES} bytes; has {whole}")
    try:
        path.resolve()
    except RuntimeError as error:  # a link that leads to itself
        raise SettingsError(f"{typed}: is no path: {error}") from error
    return path


def _bytes(path: str | Path) -> int:
    return len(os.fsencode(path))
