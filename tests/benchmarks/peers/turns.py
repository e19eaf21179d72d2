"""A system's side of taking turns: it trains one round whenever it is told to.

It is told by a line on its standard input and answers with the round's seconds, as JSON; whatever
it prints itself goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter


class EndedError(Exception):
    """No more rounds are wanted."""


class Turns:
    """The turns of this process; to be made before the system starts processes of its own."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._begun: float | None = None

    def wait(self) -> bool:
        """Answer with the seconds of the round that has ended, if any, and wait for the next turn.

        To be called between rounds. False says that no more rounds are wanted.
        """
        if self._begun is not None:
            print(json.dumps(perf_counter() - self._begun), file=self._answers, flush=True)
        wanted = bool(sys.stdin.readline())
        self._begun = perf_counter()
        return wanted
