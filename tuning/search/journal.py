"""Journal of a study: a file to which Optuna appends each change, also on a network file system.

Its lock is an exclusively created file, which is atomic on NFS from version 3 on and on SMB; SQLite
locks ranges of bytes, which these may not support.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from raysim.errors import MachineError, RunError

BEGIN = b'{"op_code":'
"""Beginning of each line."""


class _Journal(JournalFileBackend):
    """Journal whose file is not created again while it is in use."""

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
