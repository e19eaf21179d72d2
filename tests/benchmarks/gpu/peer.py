"""pfl's environment, made beside the first jobs."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from importlib.util import find_spec
from pathlib import Path

PATIENCE_SECONDS = 20.0


class Pfl:
    """The Python with which pfl runs, if there is one.

    Attributes:
        wanted: Whether it is to be measured.
        reason: Why it is not measured, or "".
    """

    def __init__(self, environments: Path | None) -> None:
        """Use this environment's pfl, or begin to make one of its own.

        Args:
            environments: Folder of environments; None leaves pfl out.
        """
        self.wanted = environments is not None
        self.reason = "" if environments else "it was left out"
        self._python = sys.executable if environments and find_spec("pfl") else ""
        self._made: Future[Path] | None = None
        if environments and not self._python:
            self._pool = ThreadPoolExecutor(1)
            self._made = self._pool.submit(_make, environments.absolute())

    def python(self, patience: float = PATIENCE_SECONDS) -> str:
        """Return the path of its Python, or "" where there is none, or not within the patience."""
        if self._made is not None and not self._python:
            try:
                self._python = str(self._made.result(patience))
                self.reason = ""
            except NotYetError:
                self.reason = "its environment was not ready yet"
            except Exception as error:  # of any kind: it costs no other system
                said = f"{type(error).__name__}: {error}"
                self.reason = f"its environment cannot be made: {' '.join(said.split())}"
        return self._python


def _make(environments: Path) -> Path:
    from tests.benchmarks.environments import make  # it needs a package that may not be there

    return make("pfl", environments)
