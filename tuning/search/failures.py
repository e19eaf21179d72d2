"""Failures of a study's database, disk, memory and cluster, as errors with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from raysim.errors import MachineError, RunError
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import RESUME
from raysim.tuning.slots.report import hinting


@contextmanager
def study_errors(search: Search) -> Iterator[None]:
    """Turn failures of database, disk, memory and cluster into an error with the next step.

    Raises:
        MachineError: one of them failed, for other trials, too.
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
            " choose another --out to start again"
        ) from error
