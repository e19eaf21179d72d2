"""Study folders: the run directories of the trials, the locks of tuners, and the study's id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import optuna
from optuna.trial import FrozenTrial, Trial

from raysim.errors import MachineError, RunError
from raysim.storage.atomic import remove, sweep, write_json
from raysim.storage.lock import is_locked, lock_folder
from raysim.storage.run_directory import RunDirectory, difference_from
from raysim.storage.schema import GRIDS, SCHEMA, check_schema
from raysim.tuning.studies.study import ResolvedStudy
from raysim.user_input import dotted, parse_json

PATIENCE = 600.0
"""Seconds to wait for another tuner that starts, or draws a trial."""


class StudyFolder:
    """Folder of one study; `study.json` and the study's storage hold the same id.

    The id prevents a study from using another study's runs, and two tuners with different folders
    from sharing a study. Tuners that share a study share its folder. In it each tuner locks its own
    folder, which shows the others that it is running.
    """

    def __init__(self, path: Path, seeds: int = 1, tuner: str | None = None) -> None:
        """Set the folder.

        Args:
            path: The folder.
            seeds: Number of runs of a trial.
            tuner: Id of this tuner if others may use the folder at the same time.
        """
        self.path, self._seeds, self._tuner = path, seeds, tuner
        self._about, self._tuners = path / GRIDS["study"], path / "tuners"

    def trial(self, number: int) -> Path:
        """Return the folder of a trial as an absolute path, since slots run elsewhere."""
        return self.path.absolute() / "trials" / f"{number:04d}"

    def runs(self, number: int) -> list[Path]:
        """Return the run directories of a trial, by seed."""
        folder = self.trial(number)
        if self._seeds == 1:
            return [folder]
        return [folder / f"seed-{index}" for index in range(self._seeds)]

    def other_parameter(self, trial: Trial | FrozenTrial) -> str | None:
        """Return a trial's first parameter with another value in one of its runs.

        Raises:
            RunError: the settings of a run cannot be read.
        """
        for run in self.runs(trial.number):
            config = dotted(RunDirectory(run).read_config()[0]) if run.exists() else trial.params
            for key, value in trial.params.items():
                if config.get(key) != value:
                    return key
        return None

    def summaries(self, number: int) -> list[dict[str, Any]] | None:
        """Return the summaries of a trial's runs; None if one is missing or damaged."""
        paths = [run / "summary.json" for run in self.runs(number)]
        try:
            return [dict(parse_json(path.read_text(encoding="utf-8"))) for path in paths]
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Lock the folder for this process; the locks end with the process.

        Raises:
            RunError: another tuner uses the folder, which is not shared.
        """
        with ExitStack() as stack:
            if self._tuner is None:
                stack.enter_context(lock_folder(self.path, "another tuner is using this folder"))
                sweep(self.path)
            else:
                with self.alone():
                    if not self._others():
                        sweep(self.path)
                    folder_here = self._tuners / self._tuner
                    stack.callback(remove, folder_here)
                    stack.enter_context(lock_folder(folder_here, "another tuner has this id"))
            self._make_trials()
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent other tuners from starting or drawing a trial during the body.

        Raises:
            RunError: another tuner has done so for too long.
        """
        if self._tuner is None:
            yield
            return
        held = f"another tuner has been starting, or drawing a trial, for {PATIENCE:g} seconds"
        with lock_folder(self.path, held, PATIENCE):
            yield

    def at_work(self) -> list[str]:
        """Return the ids of the running tuners that share the folder."""
        return [] if self._tuner is None else [self._tuner, *self._others()]

    def _others(self) -> list[str]:
        """Return the other running tuners, and remove the folders of killed ones."""
        others = [path for path in self._tuners.glob("*") if path.name != self._tuner]
        for path in others:
            if not is_locked(path):
                remove(path)
        return [path.name for path in others if path.exists()]

    def _make_trials(self) -> None:
        """Create the folder of the run directories.

        Raises:
            MachineError: the folder cannot be created.
        """
        path = self.path / "trials"
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise MachineError(
                f"{path}: no folder that can be written: {error.strerror}"
            ) from error

    def match(self, study: optuna.Study) -> None:
        """Check that folder and study belong together; a new study gets this folder.

        Raises:
            RunError: the folder holds another study or another version's, or the study has another
                folder.
        """
        name, known, recorded = study.study_name, study.user_attrs.get("folder"), self._read()
        if recorded is None and known is None:
            new = uuid4().hex
            study.set_user_attr("folder", new)
            write_json(self._about, {"schema": SCHEMA, "name": name, "folder": new})
        elif recorded is None and self._holds_runs_of(study):
            write_json(self._about, {"schema": SCHEMA, "name": name, "folder": known})
        elif recorded is None:
            raise RunError(
                f"out={self.path}: study {name} has its trials in another folder, or study.json is"
                " gone; pass the other folder as --out, restore study.json, or choose another"
                " --name"
            )
        elif known is None and recorded.get("name") == name and self._lacks_storage(study):
            new = uuid4().hex  # so that the storage before, if there is one, has it no longer
            write_json(self._about, {"schema": SCHEMA, "name": name, "folder": new})
            study.set_user_attr("folder", new)
        elif recorded["folder"] != known:
            raise RunError(
                f"out={self.path}: contains the trials of a study that is not in this storage;"
                " choose another --out"
            )

    def _lacks_storage(self, study: optuna.Study) -> bool:
        """Return whether a study without trials is new to a folder that has runs; see `left`."""
        return not study.get_trials(deepcopy=False) and bool(self._numbers())

    def _numbers(self) -> list[int]:
        """Return the numbers of the trials that have a folder."""
        folders = self.trial(0).parent.glob("[0-9]*")
        return [int(path.name) for path in folders if path.is_dir()]

    def left(self, study: optuna.Study, resolved: ResolvedStudy) -> list[dict[str, Any] | None]:
        """Return the parameters of trials with runs in the folder, but not in the study's storage.

        Their study has lost its storage. None for a trial without a readable run.

        Args:
            study: The study, in the storage.
            resolved: Its settings and space.

        Raises:
            RunError: a run has other settings.
        """
        first, last = len(study.get_trials(deepcopy=False)), max(self._numbers(), default=-1)
        return [self._values_of(n, resolved) for n in range(first, last + 1)]

    def _values_of(self, number: int, resolved: ResolvedStudy) -> dict[str, Any] | None:
        run = self.runs(number)[0]
        try:
            recorded = RunDirectory(run).read_config()[0]
        except RunError:
            return None
        held, values = dotted(recorded), dict[str, Any]()
        for key in resolved.space:
            if resolved.space.is_active(key, values) and key in held:
                values[key] = held[key]
        if other := difference_from(recorded, resolved.settings.override(values)):
            raise RunError(
                f"out={self.path}: its study is not in this storage, and trial {number} has"
                f" {other}; choose another --out"
            )
        return values

    def _holds_runs_of(self, study: optuna.Study) -> bool:
        """Return whether this folder without `study.json` has only runs of the study."""
        trials = [t for t in study.get_trials(deepcopy=False) if self.trial(t.number).exists()]
        try:
            return bool(trials) and not any(map(self.other_parameter, trials))
        except RunError:
            return False

    def _read(self) -> dict[str, Any] | None:
        """Return the content of `study.json`; None without a study."""
        if not self._about.exists():
            return None
        try:
            recorded: dict[str, Any] = dict(parse_json(self._about.read_text(encoding="utf-8")))
            recorded["folder"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._about}: damaged file: {error}; restore it") from error
        check_schema(self._about, recorded)
        return recorded
