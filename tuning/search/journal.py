"""Journal of a study: a file to which Optuna appends each change, also on a network file system.

Its lock is a file that is created exclusively, which NFS from version 3 on and SMB do in one step;
SQLite locks ranges of bytes, which they may not do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from raysim.core.errors import RunError

BEGIN = b'{"op_code":'
"""Begin of each line."""


class _Journal(JournalFileBackend):
    """Journal whose file is not made anew while it is in use."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append changes, each in a line.

        Raises:
            StorageInternalError: the file is gone.
        """
        if not Path(self._file_path).exists():
            raise StorageInternalError(f"{self._file_path}: the file is gone")
        super().append_logs(logs)


def open_journal(path: Path) -> JournalStorage:
    """Open a journal, or create it; a line that a killed process left half written is dropped.

    Raises:
        RunError: the file is damaged.
        OSError: it cannot be read or written.
    """
    lock = JournalFileOpenLock(str(path))
    journal = _Journal(str(path), lock)
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
