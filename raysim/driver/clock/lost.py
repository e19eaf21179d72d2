"""Lost rounds, in which no client's result counts: the server's state stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysim.core.errors import RunError


class LostRoundError(RunError):
    """Error of a pass of which no client's result counts."""


@contextmanager
def noted_if_lost(note: Callable[[str], None]) -> Iterator[None]:
    """Leave the body where its round is lost; show the user one line."""
    try:
        yield
    except LostRoundError as error:
        note(str(error))
