"""Storages of studies, their URLs, and errors of their drivers.

Optuna appends each change to a journal, a file that is safe on network file systems too: its lock
is an exclusively created file, which is atomic on NFS from version 3 on and on SMB. SQLite locks
ranges of bytes, which these file systems may not support.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError

from raysim.errors import MachineError, RunError, SettingsError, remember_password

BEGIN = b'{"op_code":'
"""Beginning of each line."""


class _Journal(JournalFileBackend):
    """Journal that does not create its file again while it is in use."""

    def __init__(self, storage: str, path: Path, lock: JournalFileOpenLock) -> None:
        super().__init__(str(path), lock)
        self._storage, self._path = storage, path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append changes, each in a line.

        Raises:
            MachineError: the file is missing.
        """
        check_there(self._storage, self._path)
        super().append_logs(logs)


def check_there(storage: str, path: Path) -> None:
    """Check that the file of an open storage exists; a deleted one could still be written to.

    Raises:
        MachineError: the file is missing.
    """
    if not path.exists():
        raise MachineError(f"storage={storage}: the file is gone")


def open_journal(storage: str, path: Path) -> JournalStorage:
    """Open or create a journal; an incomplete line of a killed process is dropped.

    Raises:
        RunError: the file is damaged.
        OSError: the file cannot be read or written.
    """
    lock = JournalFileOpenLock(str(path))
    journal = _Journal(storage, path, lock)
    lock.acquire()
    try:
        _drop_half_line(path)
    finally:
        lock.release()
    try:
        return JournalStorage(journal)
    except OSError:
        raise
    except Exception as error:  # Optuna does not validate the lines
        cause = " ".join(f"{type(error).__name__} {error}".split())
        raise RunError(f"damaged file: a line cannot be read: {cause}") from None


def _drop_half_line(path: Path) -> None:
    """Remove the incomplete last line.

    Raises:
        RunError: the rest is not the beginning of a line.
    """
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        half = content[whole:]
        if half[: len(BEGIN)] != BEGIN[: len(half)]:
            raise RunError("damaged file: it does not end with a line of a journal")
        if half:
            file.truncate(whole)


MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    ["9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"]
)
"""Types of file systems that several machines mount, besides `fuse.sshfs` and similar ones."""


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system; False if Linux does not tell.

    Source: proc_pid_mountinfo(5): the fifth field is the mount point, the first after "-" the type.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    resolved = folder.resolve()
    kinds = {}  # a later mount hides an earlier one of the same place
    for line in lines:
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        if resolved.is_relative_to(place):
            kinds[place] = after.split()[0]
    kind = kinds[max(kinds, key=len)] if kinds else ""
    return kind in NETWORK or kind.startswith("fuse.")


NEWER_OPTUNA = "pip install -U optuna"
"""Advice in Optuna's error about tables of a newer version."""
RESUME = "fix this, then type the same command to resume the study"


def read_url(storage: str) -> str:
    """Return a database's URL: the given one, or the content of @FILE.

    Raises:
        SettingsError: the file cannot be read.
    """
    url = storage
    if storage.startswith("@"):
        try:
            url = Path(storage[1:]).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(f"storage={storage}: the file cannot be read: {reason}") from error
    remember_password(url)
    return url


def error_line(error: Exception) -> str:
    """Return the cause of a database error in one line."""
    if isinstance(error, ImportError):
        return "its driver is not installed; for PostgreSQL: pip install 'raysim-fl[postgresql]'"
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def open_storage(storage: str) -> BaseStorage:
    """Open the storage of a URL.

    Raises:
        RunError: its file is damaged.
        Exception: the storage cannot be used; database drivers raise their own errors.
    """
    file = _file(storage)
    if file is None and not is_server(storage):
        kind = "journal" if is_journal(storage) else "sqlite"
        raise RunError(f"it names no file; four slashes begin a full path: {kind}:////FILE")
    if file is not None and is_journal(storage):
        return open_journal(storage, file)
    database = RDBStorage(storage)
    if database.engine.dialect.name == "sqlite":
        _prepare(database.engine, file is not None and is_on_network(file.parent))
        if file is not None:
            event.listen(database.engine, "begin", lambda _: check_there(storage, file))
    return database


def default_storage(folder: Path) -> str:
    """Return the URL of the storage in a study's folder: SQLite, or a journal on a network.

    An existing one is kept, even if the folder was moved.
    """
    kinds = {"study.db": "sqlite", "study.journal": "journal"}
    existing = [name for name in kinds if (folder / name).exists()]
    name = (existing or ["study.journal" if is_on_network(folder) else "study.db"])[0]
    return f"{kinds[name]}:///{(folder / name).absolute()}"


def close_storage(storage: BaseStorage) -> None:
    """Close the connections to a storage."""
    storage.remove_session()
    if isinstance(storage, RDBStorage):
        storage.engine.dispose()


def _prepare(engine: Engine, on_network: bool) -> None:
    """Run SQLite's integrity check, and set write-ahead logging: one fsync per commit, not four.

    Not on a network file system, as write-ahead logging needs memory shared by the machines.

    Raises:
        RunError: the file is damaged.
    """
    with engine.connect() as connection:
        problems = connection.exec_driver_sql("PRAGMA quick_check(1)").scalars().all()
        if problems != ["ok"]:
            raise RunError(f"damaged file: {' '.join(map(str, problems))}")
        connection.exec_driver_sql(f"PRAGMA journal_mode={'DELETE' if on_network else 'WAL'}")


def refusal(storage: str, error: Exception) -> str:
    """Return why a storage cannot be used, and the next step, in one line."""
    cause = error_line(error)
    if NEWER_OPTUNA in cause:
        return f"a newer Optuna wrote it; use the newer one: {NEWER_OPTUNA}"
    if isinstance(error, ImportError):
        return cause
    if _file(storage) and not is_missing_file(storage) and "locked" not in cause:
        return f"{cause}; restore the file, or choose another --out (and --storage, if it is given)"
    return f"{cause}; {RESUME}"


def is_missing_file(storage: str) -> bool:
    """Return whether a URL names a file that does not exist; opening would create it."""
    file = _file(storage)
    return file is not None and not file.exists()


def folder_of(storage: str) -> Path | None:
    """Return the folder of a database file; None for a server."""
    file = _file(storage)
    return file and file.parent


def is_server(storage: str) -> bool:
    """Return whether a URL names a database server, which many processes may use at once."""
    return not is_journal(storage) and make_url(storage).get_backend_name() != "sqlite"


def is_journal(storage: str) -> bool:
    """Return whether a URL names a journal."""
    return storage.startswith("journal:")


def _file(storage: str) -> Path | None:
    """Return the file of a SQLite database or a journal; None for a server."""
    try:
        url = make_url(storage)
    except (ArgumentError, ValueError):
        return None
    is_file = url.get_backend_name() == "sqlite" or is_journal(storage)
    return Path(url.database) if is_file and url.database not in (None, "", ":memory:") else None
