"""Values that a user gives: limits of numbers, nested values, paths and settings files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from raysim.core.errors import SettingsError, visible

MOST = 10**9
"""Upper limit of counts: the product of two, as of samples and epochs, fits in 64 bits."""
Count = Annotated[int, Field(ge=1, le=MOST)]
"""A number of clients, samples, rounds, epochs or steps."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A seed; tables and other tools read it as a 64-bit integer."""
LEVELS = 20
"""Most levels of nested values; settings have four."""
FILE_BYTES = 1_000_000
"""Most bytes of a settings file."""

NAME_BYTES = 255
"""Most bytes of a name in a path, of all common file systems."""
PATH_BYTES = 3_500
"""Most bytes of a path: Linux takes 4,096, and names are added for what lies below."""


def check_plain(values: Mapping[str, Any]) -> None:
    """Check that nested values are few levels deep, and that their text is text.

    Raises:
        SettingsError: they are not; pydantic and JSON would fail on them.
    """
    left: list[tuple[str, int, Any]] = [("", 0, values)]
    while left:
        key, level, value = left.pop()
        if level > LEVELS:
            raise SettingsError(f"{visible(key)}: nested in more than {LEVELS} levels")
        if isinstance(value, Mapping):
            left += [(f"{key}.{k}" if key else str(k), level + 1, v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            left += [(key, level + 1, item) for item in value]
        elif isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            raise SettingsError(f"{visible(key)}={visible(value)}: must be text in UTF-8")


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_text(path: Path) -> str:
    """Read a settings file.

    Raises:
        OSError: it cannot be read, or is no file.
        ValueError: it has more than FILE_BYTES, or is no text.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError("is no file")  # of a pipe, reading would wait
    with path.open("rb") as file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ValueError(f"has more than {FILE_BYTES // 10**6} MB")
    return content.decode("utf-8")


def user_path(text: str | Path, setting: str = "") -> Path:
    """Return a path with the `~` of a home directory expanded.

    Args:
        text: The path as it was given.
        setting: The setting or option that gives it, for errors.

    Raises:
        SettingsError: it is empty, too long, has a control character, or names no user.
    """
    given = f"{setting}={visible(str(text))}" if setting else visible(str(text))
    if not str(text):
        raise SettingsError(f"{setting or 'path'}=: must be at least one character")
    if any(ord(character) < 32 or ord(character) == 127 for character in str(text)):
        raise SettingsError(f"{given}: a path must not have a control character")
    try:
        path = Path(text).expanduser()
        longest, whole = max(map(_bytes, path.parts), default=0), _bytes(path.absolute())
    except (RuntimeError, UnicodeEncodeError) as error:
        raise SettingsError(f"{given}: is no path: {error}") from error
    if longest > NAME_BYTES:
        raise SettingsError(f"{given}: a name must have at most {NAME_BYTES} bytes; has {longest}")
    if whole > PATH_BYTES:
        raise SettingsError(f"{given}: a path must have at most {PATH_BYTES} bytes; has {whole}")
    return path


def _bytes(path: str | Path) -> int:
    return len(os.fsencode(path))
