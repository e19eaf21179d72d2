"""Lost rounds, in which no or too few results count: the server's state stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysim.errors import RunError


class LostRoundError(RunError):
    """Error of a pass without a client's result that counts, or with too few."""


@contextmanager
def noted_if_lost(note: Callable[[str], None]) -> Iterator[None]:
    """Suppress `LostRoundError` in the body; show the user its message."""
    try:
        yield
    except LostRoundError as error:
        note(str(error))
