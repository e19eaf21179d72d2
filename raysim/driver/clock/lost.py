"""Lost rounds: too few results count, or none, and the server's state stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysim.errors import RunError


class LostRoundError(RunError):
    """Error of a pass in which too few results count, or none."""


@contextmanager
def noted_if_lost(note: Callable[[str], None]) -> Iterator[None]:
    """Suppress `LostRoundError` in the body; show the user its message."""
    try:
        yield
    except LostRoundError as error:
        note(str(error))
