"""Checks and starts of runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from raysim.config import Settings
from raysim.driver.evaluation.loading import read_start
from raysim.driver.listeners.listener import Listener
from raysim.driver.listeners.trackers import check_tracker
from raysim.driver.rounds.iterator import RoundIterator
from raysim.driver.rounds.rehearsal import rehearse
from raysim.driver.start.checks.preflight import with_cohort
from raysim.driver.start.context import Result
from raysim.driver.start.start import check_run, drive, reserved_directory
from raysim.facade.settings import loaded_settings
from raysim.federation.federation import Federation, from_settings
from raysim.federation.prepared import known_digests
from raysim.federation.task import Task, from_task
from raysim.notebook.runs import shown
from raysim.storage.run_directory import RunDirectory
from raysim.workloads.datasets.fetch import data_root


def check(
    settings: Settings | str | Path, task: Task | None = None, listener: Listener | None = None
) -> None:
    """Check that a run can start: its settings, data and network, with a rehearsal.

    Missing data is fetched; nothing is written to the run directory.

    Args:
        settings: From `load_config`, or the name of a preset or file.
        task: See `run`.
        listener: Told how the data is prepared.

    Raises:
        RaysimError: a setting or a file does not allow the run.
    """
    settings = with_cohort(loaded_settings(settings), task)
    check_tracker(settings.tracker)
    with shown(listener) as told:
        federation = federation_of(settings, task, told)
        run_dir = RunDirectory(Path(settings.out or "runs"))
        rehearse(check_run(settings, federation, run_dir, told.note))


def rounds(
    settings: Settings | str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    force: bool = False,
) -> RoundIterator:
    """Iterate over the rounds of a run, from the first or where `settings.out` stopped.

    Each is a row of `metrics.parquet`, and is committed:

        with raysim.rounds(settings) as rounds:
            for row in rounds:
                if (row["train_loss"] or 0) > 10:
                    break
        rounds.result  # that of `run`, if the last round has been reached

    The end of the `with` statement closes the run: it checkpoints the committed rounds and releases
    the run directory, actors and Ray. `rounds` with the same settings, or `resume`, continues to
    the bytes of an uninterrupted run; rounds committed before are not yielded again.

    The arguments are those of `run`; without a listener nothing is shown.

    Raises:
        RaysimError: an error that you can correct; its message says how.
    """
    settings, listener = with_cohort(loaded_settings(settings), task), listener or Listener()
    own_task = task is not None
    held = reserved_directory(settings, listener, own_task=own_task, force=force)
    return begun(settings, task, held, listener, force=force)


def run(
    settings: Settings | str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    force: bool = False,
) -> Result:
    """Simulate a federation, from the first round or where `settings.out` stopped.

    Args:
        settings: From `load_config`, or the name of a preset or file; if their run is finished, it
            is returned.
        task: Your own clients, test set and model, in place of the settings'.
        listener: Told how the run goes. None shows a progress bar and a curve in a notebook, and
            nothing elsewhere; `raysim.Listener()` shows nothing.
        force: Resume even if data, versions or machines differ from before; the run records it.

    Raises:
        RaysimError: an error that you can correct; its message says how.
        KeyboardInterrupt: the run was interrupted and can be resumed.
    """
    with shown(listener, "starting") as told:
        return rounds(settings, task, told, force=force).drain()


def begun(
    settings: Settings,
    task: Task | None,
    directory: AbstractContextManager[RunDirectory],
    listener: Listener,
    *,
    force: bool,
) -> RoundIterator:
    """Return the rounds of a run in a directory, from the first or from where it stopped."""
    prepare, own_task = partial(federation_of, settings, task), task is not None
    return RoundIterator(
        drive(
            settings,
            prepare,
            lambda: known_digests(settings, data_root()),
            directory,
            listener,
            own_task=own_task,
            force=force,
        )
    )


def federation_of(settings: Settings, task: Task | None, listener: Listener) -> Federation:
    """Return samples, client indices and network of a run, and the tensors that it starts from."""
    note, told = listener.note, (listener.preparing, listener.note)
    opened = from_task(task, note) if task else from_settings(settings, data_root, *told)
    opened = replace(opened, data_root=data_root)
    if settings.start_from is None:
        return opened
    return replace(opened, start=read_start(Path(settings.start_from), note))
