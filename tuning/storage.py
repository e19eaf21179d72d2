"""Databases of studies, as messages name them."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError


def shown(storage: str) -> str:
    """Return a database's URL without its password."""
    try:
        return make_url(storage).render_as_string()
    except ArgumentError:
        return storage


def reason(error: Exception) -> str:
    """Return in one line why a database cannot be used, whatever its driver raised."""
    if isinstance(error, ImportError):
        return (
            "its driver is not installed; PostgreSQL's comes with pip install 'raysim[postgresql]'"
        )
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def missing_file(storage: str) -> bool:
    """Return whether a URL names a SQLite file that is not there; to open it would make one."""
    try:
        url = make_url(storage)
    except ArgumentError:
        return False
    return (
        url.get_backend_name() == "sqlite"
        and bool(url.database)
        and not Path(str(url.database)).exists()
    )
