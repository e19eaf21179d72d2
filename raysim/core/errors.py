"""Errors that a user can correct.

Each carries one line that names the setting, file, client or tensor, its value, and the allowed
values or the next step. The command line prints this line without a traceback and exits with the
error's exit code.
"""

import re

from raysim.core.exits import FAULT, INPUT

PASSWORDS = (
    re.compile(r"(://[^\s/@:]*:)\S*(?=@)"),
    re.compile(r"([?&](?:password|passwd|pwd)=)[^&\s]*", re.IGNORECASE),
)
"""Passwords of URLs: after the user, and among the options."""


def without_passwords(text: str) -> str:
    """Return a text with the passwords of its URLs masked."""
    for pattern in PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


class RaysimError(Exception):
    """Base of all errors that a user can correct; its message is one line."""

    exit_code = INPUT

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(" ".join(message.split())))


class SettingsError(RaysimError):
    """Error of a setting: unknown, of the wrong type or out of range."""


class DataError(RaysimError):
    """Error of data: missing, damaged or unsuited to the partition."""


class RunError(RaysimError):
    """Error of a run directory, a checkpoint or a client."""


class MachineError(RunError):
    """Failure of a disk, a node or the cluster, after which the run can be resumed."""

    exit_code = FAULT


class DamagedStateError(MachineError):
    """Error of a client's state that is not on disk as it was written; an earlier one may be."""
