"""Journal of a study: a file to which Optuna appends each change, also on a network file system.

Its lock is a file that is created exclusively, which NFS from version 3 on and SMB do in one step;
SQLite locks ranges of bytes, which they may not do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from raysim.core.errors import MachineError, RunError

BEGIN = b'{"op_code":'
"""Begin of each line."""


class _Journal(JournalFileBackend):
    """Journal whose file is not made anew while it is in use."""

    def __init__(self, storage: str, path: Path, lock: JournalFileOpenLock) -> None:
        super().__init__(str(path), lock)
        self._storage, self._path = storage, path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append changes, each in a line.

        Raises:
            MachineError: the file is gone.
        """
        check_there(self._storage, self._path)
        super().append_logs(logs)


def check_there(storage: str, path: Path) -> None:
    """Check that the file of an open storage is there: its process could write on without a name.

    Raises:
        MachineError: it is gone.
    """
    if not path.exists():
        raise MachineError(f"storage={storage}: the file is gone")


def open_journal(storage: str, path: Path) -> JournalStorage:
    """Open a journal, or create it; a line that a killed process left half written is dropped.

    Raises:
        RunError: the file is damaged.
        OSError: it cannot be read or written.
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
    except Exception as error:  # Optuna reads the lines as they are
        cause = " ".join(f"{type(error).__name__} {error}".split())
        raise RunError(f"damaged file: a line cannot be read: {cause}") from None


def _drop_half_line(path: Path) -> None:
    """Cut off what follows the last whole line.

    Raises:
        RunError: it is no begin of a line.
    """
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        half = content[whole:]
        if half[: len(BEGIN)] != BEGIN[: len(half)]:
            raise RunError("damaged file: it does not end with a line of a journal")
        if half:
            file.truncate(whole)
