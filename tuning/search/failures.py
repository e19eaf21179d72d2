"""Failures of a study's database, disk, memory and cluster, as errors that say how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from raysim.core.errors import MachineError, RunError
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import RESUME
from raysim.tuning.slots.report import hinting


@contextmanager
def study_errors(search: Search) -> Iterator[None]:
    """Turn failures of database, disk, memory and cluster into an error that says how to go on.

    Raises:
        MachineError: one of them failed; another trial would meet it too.
        RunError: the study was deleted.
    """
    try:
        with hinting(RESUME):
            yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise MachineError(f"{search.storage_failure(error)}; {RESUME}") from error
    except KeyError as error:
        if not search.is_deleted():
            raise
        raise RunError(
            f"{search.storage}: study {search.study.study_name} was deleted; restore it, or"
            " choose another --out to start anew"
        ) from error
