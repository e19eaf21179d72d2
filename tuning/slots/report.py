"""Reports of slots; distinction of failures of the machine from failures of the run."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError, RayTaskError

from raysim.errors import MachineError, RaysimError, without_passwords

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.ENOMEM, errno.EMFILE, errno.ENFILE),
}
"""Numbers of system errors that affect other runs, too."""


@dataclass(frozen=True)
class Report:
    """Report of a slot about its run.

    Attributes:
        curve: Accuracy on the held-out samples by round: of the pause, of all unreported
            evaluations if the run was resumed before it, or of all evaluations if it is finished.
        summary: Summary of the run if the run is finished.
        error: Error message if the run failed.
        machine_error: Error message if disk, memory or cluster failed: the run can be resumed.
        paused_seconds: Duration of the pause at the previous evaluation.
        notes: Lines of the run for the user since the previous report.
    """

    curve: Mapping[int, float] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    error: str | None = None
    machine_error: str | None = None
    paused_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def is_evaluation(self) -> bool:
        """Return whether the run has not ended."""
        return self.summary is None and self.error is None and self.machine_error is None


@dataclass(frozen=True)
class SlotLost:
    """Event: a slot was lost with its run.

    Attributes:
        cause: One line.
        suspicious: Whether the run may be the cause; not if the node was lost.
    """

    cause: str
    suspicious: bool


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and the chain of its causes, the earliest last."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return chain


def machine_failure(error: BaseException) -> str | None:
    """Return the message of an error if disk, memory or cluster caused it, else None.

    Of several in a chain it is the earliest: later ones advise to resume the run alone.
    """
    chain = causes(error)
    if failures := [cause for cause in chain if isinstance(cause, MachineError)]:
        return str(failures[-1])
    return error_line(error) if any(map(_is_of_the_machine, chain)) else None


def _is_of_the_machine(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in DISK_ERRORS
    if isinstance(error, RayTaskError):  # an exception of the code that a task ran
        return False
    return isinstance(error, MemoryError | RayError)


@contextmanager
def hinting(next_step: str) -> Iterator[None]:
    """Turn a failure of disk, memory or cluster into an error with the next step.

    Raises:
        MachineError: one of them failed, for other runs, too.
    """
    try:
        yield
    except Exception as error:
        if (failure := machine_failure(error)) is None:
            raise
        raise MachineError(f"{failure}; {next_step}") from error


def error_line(error: BaseException) -> str:
    """Return an error in one line, with its class unless it is raysim's own."""
    if isinstance(error, RaysimError):
        return str(error)
    return without_passwords(f"{type(error).__name__}: {' '.join(str(error).split())}")
