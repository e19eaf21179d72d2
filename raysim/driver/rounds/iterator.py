"""Iteration over the rounds of a run, in the caller's frame."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Self

import torch

from raysim.driver.start.context import Result, Rounds
from raysim.errors import RunError
from raysim.execution.process import own_modes
from raysim.process.exits import interruptible
from raysim.storage.recorder import Row

TORCH_STATE: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_default_dtype, torch.set_default_dtype),
)
"""Getters and setters of torch's process-wide settings; the caller keeps its own values."""


class RoundIterator(Iterator[Row]):
    """Iterator over the rounds of a run; it commits a round before it returns the row.

    `finish` ends the run before its last round, as a finished one. `close` ends the run as an
    interruption does: it checkpoints the committed rounds and releases actors, Ray, the run
    directory and the tracker. A `with` statement closes the iterator, and so do its deletion and
    the exit of the interpreter.

    During a round, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt. Between rounds the caller
    has its own signal handlers, number of torch threads, deterministic mode and default dtype. The
    values in the first round hold for the run. The caller's autocast, `no_grad` and
    `inference_mode` do not affect the rounds.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._result: Result | None = None
        self._torch: list[Any] | None = None
        atexit.register(rounds.close)  # after Ray's, so it is called before Ray's

    def __next__(self) -> Row:
        """Run the next round; return its row."""
        try:
            with self._inside():
                return next(self._rounds)
        except StopIteration as end:
            self._result = end.value or self._result
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the run."""
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def result(self) -> Result:
        """The finished run.

        Raises:
            RunError: the iteration has not ended.
        """
        if self._result is None:
            raise RunError(
                "the run is not finished; run its last round, or call finish(), to get a result"
            )
        return self._result

    def finish(self) -> Result:
        """End the run after the rounds so far, as a finished one; return the result.

        Raises:
            RunError: no round has been run in this iteration, or it was closed.
            MachineError: a file cannot be written.
        """
        if self._result is not None:
            return self._result
        if self._torch is None or self._has_ended:
            why = "it is closed" if self._has_ended else "no round has been run in it"
            raise RunError(f"the iteration cannot be finished: {why}")
        try:
            with self._inside():
                self._rounds.send(True)
        except StopIteration as end:
            self._result = end.value
        self.close()
        return self.result

    def drain(self) -> Result:
        """Run all remaining rounds; return the result."""
        with self, self._inside():
            try:
                while True:
                    next(self._rounds)
            except StopIteration as end:
                self._result = end.value or self._result
        return self.result

    def close(self) -> None:
        """End the run, if it has not ended."""
        if self._has_ended:
            return
        atexit.unregister(self._rounds.close)
        with self._inside():
            self._rounds.close()

    @property
    def _has_ended(self) -> bool:
        """True if the run has ended; `close` would fail then at the interpreter's exit."""
        return getgeneratorstate(self._rounds) == GEN_CLOSED

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Set the process up as the run left it; restore the caller's settings afterwards."""
        with interruptible(), own_modes():
            outside = _torch_state()
            _set_torch(self._torch or outside)
            try:
                yield
            finally:
                self._torch = _torch_state()
                _set_torch(outside)


def _torch_state() -> list[Any]:
    return [read() for read, _ in TORCH_STATE]


def _set_torch(state: list[Any]) -> None:
    for (read, write), value in zip(TORCH_STATE, state, strict=True):
        if read() != value:
            write(value)
