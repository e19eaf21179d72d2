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
LONGEST_VALUE, LONGEST_MESSAGE = 200, 2_000
"""Most characters of a value in a message, and of a message."""


def without_passwords(text: str) -> str:
    """Return a text with the passwords of its URLs masked."""
    for pattern in PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def visible(text: str, most: int = LONGEST_VALUE) -> str:
    """Return a text on one line: what cannot be printed escaped, the middle of a long one cut."""
    if len(text) > most:
        text = f"{text[: most // 2]}...{text[-most // 4 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RaysimError(Exception):
    """Base of all errors that a user can correct; its message is one line."""

    exit_code = INPUT

    def __init__(self, message: str) -> None:
        line = without_passwords(" ".join(message.split()))
        super().__init__(visible(line, LONGEST_MESSAGE))


class SettingsError(RaysimError):
    """Error of a setting: unknown, of the wrong type or out of range."""


class DataError(RaysimError):
    """Error of data: missing, damaged or unsuited to the partition."""


class RunError(RaysimError):
    """Error of a run directory, a checkpoint or a client."""


class MachineError(RunError):
    """Failure of a disk, a node or the cluster, after which the run can be resumed."""

    exit_code = FAULT


class MovedError(MachineError):
    """Error of a run directory that was renamed, deleted or replaced while a run wrote to it."""


class DamagedStateError(MachineError):
    """Error of a client's state that is not on disk as it was written; an earlier one may be."""
