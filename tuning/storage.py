"""Database URLs of studies, and errors of their drivers."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from raysim.core.errors import SettingsError


def read_url(storage: str) -> str:
    """Return a database's URL: what is given, or the content of @FILE.

    Raises:
        SettingsError: the file cannot be read.
    """
    if not storage.startswith("@"):
        return storage
    try:
        return Path(storage[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"storage={storage}: the file cannot be read: {reason}") from error


def error_line(error: Exception) -> str:
    """Return the cause of a database error in one line."""
    if isinstance(error, ImportError):
        return "its driver is not installed; for PostgreSQL: pip install 'raysim[postgresql]'"
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_missing_file(storage: str) -> bool:
    """Return whether a URL names a SQLite file that does not exist; opening would create it."""
    try:
        url = make_url(storage)
    except (ArgumentError, ValueError):  # a port that is no number
        return False
    return (
        url.get_backend_name() == "sqlite"
        and bool(url.database)
        and not Path(str(url.database)).exists()
    )
