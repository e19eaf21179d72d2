"""Checks of runs that are started again: finished ones are read, others may resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from safetensors.torch import load_file

from raysim.api.components import called
from raysim.api.rates import ENDING
from raysim.config import Settings, parse
from raysim.driver.evaluation.loading import start_tensors
from raysim.driver.privacy.checks import settings_key
from raysim.driver.rounds.hiding import claiming_of
from raysim.driver.rounds.stopping import Stopping
from raysim.driver.start.context import Result
from raysim.driver.start.identity import (
    CODE_OF_COMPONENTS,
    INITIAL_MODEL,
    NOT_COMPARABLE,
    START,
    code_of_components,
    differing_parts,
)
from raysim.errors import RunError
from raysim.numbers.tensors.digests import tensors_digest
from raysim.storage.checkpoints import SAMPLES, Checkpoints
from raysim.storage.rows.metrics import declared_in
from raysim.storage.rows.parted import read_table
from raysim.storage.run_directory import RunDirectory, difference_from
from raysim.storage.sealed.models import model_problem, sealed_models
from raysim.user_input import may_grow, override_text, parse_json


def finished_run(
    run_dir: RunDirectory, settings: Settings, note: Callable[[str], None]
) -> Result | None:
    """Return the finished run of a directory; None if it is unfinished or a model is damaged.

    The run then continues, and writes a damaged model again from the checkpoint.

    Args:
        run_dir: The run directory, after `check`.
        settings: The settings of the run.
        note: Called with a line if a model is damaged.

    Raises:
        RunError: a model is damaged, and no checkpoint has it.
    """
    recorded = _recorded(run_dir, settings)
    if not run_dir.is_finished_by(recorded):
        return None
    for path in sealed_models(run_dir.path):
        if problem := model_problem(run_dir.path, path.name):
            if not Checkpoints(run_dir.checkpoints).numbers():
                raise RunError(f"{problem}; restore it, or choose another `out`")
            note(f"{path}: is damaged; it is written again from the checkpoint")
            return None
    summary = parse_json(run_dir.summary.read_text(encoding="utf-8"))
    metrics = read_table(run_dir.metrics)
    if run_dir.grows and _goes_on(metrics, settings):
        if not Checkpoints(run_dir.checkpoints).numbers():
            raise RunError(f"{run_dir.path}: has no checkpoints left to go on from")
        return None
    _note_start(run_dir, settings.start_from, note)
    done = f"{len(metrics)} of at most {settings.rounds} rounds"
    note(f"{run_dir.path}: the run is finished ({done}); nothing is left to do")
    return Result(run_dir.path, summary, metrics, load_file(run_dir.model))


def _recorded(run_dir: RunDirectory, settings: Settings) -> Settings:
    """Return the recorded settings of the run, which may have fewer rounds."""
    if not run_dir.grows:
        return settings
    return settings.model_copy(update={"rounds": run_dir.read_config()[0]["rounds"]})


def _goes_on(metrics: pa.Table, settings: Settings) -> bool:
    """Return whether a finished run continues with settings that have more rounds."""
    stopping = Stopping(settings, declared_in(metrics.schema), settings.rounds)
    for row in metrics.to_pylist():
        stopping.add(row)
    return stopping.reason(len(metrics)) is None


def _note_start(run_dir: RunDirectory, start: str | None, note: Callable[[str], None]) -> None:
    """Note that `start_from` holds other tensors now than when a finished run began.

    The run that it names may have been trained further since; the finished result stays valid.
    """
    if start is None or not Path(start).exists():
        return
    sealed = Checkpoints(run_dir.checkpoints).identity()
    present = {START: tensors_digest(start_tensors(Path(start), note))}
    if parts := differing_parts(sealed, present):
        note(
            f"{run_dir.path}: the finished run began with another content of"
            f" start_from={start} ({', '.join(parts)})"
        )


def note_samples(
    run_dir: RunDirectory, digests: Mapping[str, str], note: Callable[[str], None]
) -> None:
    """Note that a dataset has other samples now than when a run finished.

    Args:
        run_dir: The run directory.
        digests: Digests of the present samples by split; empty if they are not known.
        note: Called with the line.
    """
    sealed = Checkpoints(run_dir.checkpoints).identity()
    present = {SAMPLES[split]: digest for split, digest in digests.items()}
    if parts := differing_parts(sealed, present):
        note(
            f"{run_dir.path}: the data has changed since the run ({', '.join(parts)}); for a run on"
            " the present data, choose another `out`"
        )


def check_same_task(run_dir: RunDirectory, identity: Mapping[str, Any]) -> None:
    """Check that a finished run had the same task; settings do not describe a user's own task.

    If `start_from` holds other tensors now, initial models are not compared.

    Raises:
        RunError: samples, clients, network or code differ, or cannot be compared.
    """
    sealed = Checkpoints(run_dir.checkpoints).identity()
    identity_here = dict(identity)
    if differing_parts(sealed, {START: identity_here.pop(START)}):
        del identity_here[INITIAL_MODEL]
    _refuse(run_dir, "a finished run of another task", differing_parts(sealed, identity_here))


def check_same_components(run_dir: RunDirectory, settings: Settings) -> None:
    """Check that a finished run had the same code of components that no file defines.

    Raises:
        RunError: the code differs, or cannot be compared.
    """
    identity = {CODE_OF_COMPONENTS: code_of_components(settings)}
    parts = differing_parts(Checkpoints(run_dir.checkpoints).identity(), identity)
    _refuse(run_dir, "a finished run with other components", parts)


def _refuse(run_dir: RunDirectory, what: str, parts: Sequence[str]) -> None:
    if not parts:
        return
    if all(NOT_COMPARABLE in part for part in parts):
        what = "a finished run that may be another one"
    raise RunError(f"out={run_dir.path}: holds {what} ({', '.join(parts)}); choose another `out`")


def check_growth(path: Path, recorded: Mapping[str, Any], settings: Settings) -> None:
    """Check the number of rounds of a resumed run: it may grow, not shrink.

    Args:
        path: The run directory.
        recorded: The settings of the run.
        settings: The settings with overrides.

    Raises:
        RunError: the run has fewer rounds, or more although it cannot grow.
    """
    before = parse(recorded).rounds
    if settings.rounds < before:
        raise RunError(
            f"rounds={settings.rounds}: must be at least {before}, as in {path}; a run cannot be"
            " shortened"
        )
    for name, rates in (("local", settings.local), ("server", settings.server)):
        if settings.rounds > before and rates.schedule in ENDING:
            raise RunError(
                f"rounds={settings.rounds}: must be {before} with {name}.schedule={rates.schedule},"
                " which ends with the planned number of rounds"
            )
    for component in claiming_of(settings):
        chosen = component.privacy and component.privacy.noise is None
        if chosen and settings.rounds > before:
            raise RunError(
                f"rounds={settings.rounds}: must be {before} with {settings_key(component)}.epsilon"
                " without a noise: the noise was chosen for that many rounds"
            )
    if settings.rounds > before and settings.asynchrony:
        raise RunError(
            f"rounds={settings.rounds}: must be {before} with {called(settings.method)}: its rounds"
            " overlap, and the end was planned for the last round"
        )


def check_unchanged(
    path: Path,
    recorded: Mapping[str, Any],
    settings: Settings,
    overrides: Mapping[str, Any],
    *,
    own_task: bool,
) -> None:
    """Check that overrides change only settings that a resumed run may change.

    Args:
        path: The run directory.
        recorded: The settings of the run.
        settings: The settings with the overrides.
        overrides: The overrides, by dotted key.
        own_task: Whether the run has its own task.

    Raises:
        RunError: they change another setting; the message says how to start a new run with them.
    """
    if difference := difference_from(recorded, settings, grows=any(map(may_grow, overrides))):
        words = " ".join(override_text(*override) for override in overrides.items())
        again = f"type: raysim run {path / 'config.json'} {words} out=none"
        if own_task:
            again = "call raysim.run with them and another `out`"
        raise RunError(
            f"{path}: is a run with {difference}, which cannot change when it is resumed; for a"
            f" new run, {again}"
        )
