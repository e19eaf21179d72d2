"""Count of the function calls of Python, as a measure of the host's time that no load changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

UNCOUNTED = ("/tests/cuda/", "/gpu/costs.py", "/gpu/counts.py")
"""Files whose functions, and what they call, are none of what is counted."""


class PythonCalls:
    """Counts calls of functions, of Python and of C.

    Attributes:
        count: Calls so far.
    """

    def __init__(self) -> None:
        self.count = self._uncounted = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls of this thread in the body."""
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return"):
            name = frame.f_code.co_filename
            if any(part in name for part in UNCOUNTED):
                self._uncounted += 1 if event == "call" else -1
                return
        if not self._uncounted and event in ("call", "c_call"):
            self.count += 1
