"""Errors that a user can correct.

Each has a message of one line that names the setting, file, client or tensor, its value, and the
allowed values or the next step. The command line prints this line without a traceback and exits
with the error's exit code.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from raysim.process.exits import FAULT, INPUT

OPTION = re.compile(
    r"([?&][\w.-]*(?:password|passwd|pwd|secret|token)[\w.-]*=)([^&\s]*)", re.IGNORECASE
)
PASSWORDS = (re.compile(r"(:/{1,2}(?!/)[^\s/@:]*:)\S*(?=@)"), OPTION)
"""Passwords of URLs: after the user name, and in the query."""
URL = re.compile(r"(?:--?[\w-]+=|[\w.]+=)?(?:[a-z][\w+.-]*:/|[^\s/:@=]+:(?!/))", re.IGNORECASE)
"""Start of a URL in a word: alone or as value of an option or setting, with or without scheme."""
SHORTEST_PIECE = 3
"""Fewest characters of a piece of a password to mask anywhere."""
_READ: set[str] = set()
LONGEST_VALUE, LONGEST_MESSAGE = 200, 2_000
"""Most characters of a value in a message, and of a message."""


def without_passwords(text: str) -> str:
    """Return a text with the passwords of its URLs and the given passwords masked.

    A library that cannot read a URL quotes pieces of it: its supposed port may be the end of a
    password. Passwords of the command line, of environment variables and of files of URLs are
    masked in pieces, too.
    """
    for pattern in PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return without_given_passwords(text)


def without_given_passwords(text: str) -> str:
    """Return a text with the passwords given to this process masked, also in pieces."""
    lists = {
        name for name in os.environ if name.endswith("PATH")
    }  # lists of folders, separated by ":"
    variables = (os.environ[name] for name in os.environ.keys() - lists)
    with_scheme = (value for value in variables if ":/" in value)
    words = (*sys.argv[1:], *with_scheme, os.environ.get("RAYSIM_STORAGE", ""), *_READ)
    pieces = {piece for word in words if URL.match(word) for piece in _pieces(word)}
    for piece in sorted(pieces, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(piece)}(?!\w)", "***", text)
    return text


def remember_password(url: str) -> None:
    """Mask the password of a URL from a file or a caller from now on."""
    _READ.add(url)


def _pieces(url: str) -> set[str]:
    """Return the passwords of a URL, and the pieces into which a parser may split them."""
    before_host = re.sub(r"^(--?\w+=)?([\w+.-]+:/+)?", "", url.rpartition("@")[0])
    secrets = [before_host.partition(":")[2], *(value for _, value in OPTION.findall(url))]
    passwords = {*secrets, *map(unquote, secrets)}
    split = {piece for word in passwords for piece in re.split(r"[\s@:/?#&=]+", word)}
    pieces = passwords | split | {" ".join(word.split()) for word in secrets}
    return {piece for piece in pieces if len(piece) >= SHORTEST_PIECE}


def visible(text: str, most: int = LONGEST_VALUE) -> str:
    """Return a text on one line, unprintable characters escaped, a long one cut in the middle."""
    if len(text) > most:
        text = f"{text[: most // 2]}...{text[-most // 4 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RaysimError(Exception):
    """Base of all errors that a user can correct; its message is one line."""

    exit_code = INPUT

    def __init__(self, message: str) -> None:
        line = without_passwords(" ".join(message.split()))
        super().__init__(visible(line, LONGEST_MESSAGE))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class SettingsError(RaysimError):
    """Error of a setting: unknown, of the wrong type or out of range."""


class RuleError(SettingsError):
    """Error of two parts of a run that do not go together."""


class ChangedInputError(SettingsError):
    """Error of a function that changes shared data in place: the run stops.

    Attributes:
        who: The component, as in settings; empty if it is not known yet.
    """

    def __init__(self, message: str, who: str = "") -> None:
        super().__init__(f"{who}: {message}" if who else message)
        self.who = who


class DataError(RaysimError):
    """Error of data: missing, damaged or unsuited to the partition."""


class RunError(RaysimError):
    """Error of a run directory, a checkpoint or a client.

    Attributes:
        problem: The message without the advice on how the run continues.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}{advice}")
        self.problem = message


class MachineError(RunError):
    """Failure of a disk, a node or the cluster, after which the run can be resumed."""

    exit_code = FAULT


class MovedError(MachineError):
    """Error of a run directory that was renamed, deleted or replaced while a run wrote to it."""


class DamagedStateError(MachineError):
    """Error of a client's damaged state on disk; an earlier state may be intact."""


@contextmanager
def told_of(before: str, after: str = "") -> Iterator[None]:
    """Add a prefix and a suffix to SettingsErrors raised in the body.

    Raises:
        SettingsError: the body raised one.
    """
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{before}{error}{after}") from error
