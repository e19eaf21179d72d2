"""Errors of trials: those of the machine, which stop a study, and those of the trial."""

from __future__ import annotations

import errno
import os

import pytest
from ray.exceptions import RayActorError, RayTaskError

from raysim.errors import MachineError, RunError
from raysim.tuning.slots.report import machine_failure


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


FULL = MachineError("a: cannot be written: no space")
OF_THE_MACHINE = {
    "a full disk": (system(errno.ENOSPC), "OSError: [Errno 28] No space left on device"),
    "a broken disk": (system(errno.EIO), "OSError: [Errno 5] Input/output error"),
    "a disk that is read only": (system(errno.EROFS), "OSError: [Errno 30] Read-only file system"),
    "memory": (MemoryError("12 GiB"), "MemoryError: 12 GiB"),
    "Ray": (RayActorError(), "RayActorError: The actor experienced an error"),
    "a failure of a run, without its hint": (
        chained(MachineError(f"{FULL}; type: raysim resume b"), chained(FULL, OSError())),
        str(FULL),
    ),
    "a message with its cause": (
        chained(RunError("out=a: cannot be written"), system(errno.ENOSPC)),
        "out=a: cannot be written",
    ),
}
OF_THE_TRIAL = {
    "a client": RunError("client 3: loss is not finite"),
    "a bug": ZeroDivisionError("division by zero"),
    "a missing file": system(errno.ENOENT),
    "a bug in an actor": RayTaskError("train", "traceback", ZeroDivisionError()),
}


@pytest.mark.parametrize("name", OF_THE_MACHINE)
def test_failures_of_the_machine(name):
    error, message = OF_THE_MACHINE[name]
    found = machine_failure(error)
    assert found is not None and found.startswith(message) and "\n" not in found


@pytest.mark.parametrize("name", OF_THE_TRIAL)
def test_failures_of_the_trial(name):
    assert machine_failure(OF_THE_TRIAL[name]) is None
