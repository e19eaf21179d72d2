"""An interrupted study that damages strike, and its comparison with an undisturbed one."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import optuna
import pytest
import ray

from raysim.cli import app
from raysim.tuning.search.decisions import Decisions
from raysim.tuning.search.storage import close_storage, default_storage, open_storage
from raysim.tuning.studies import STUDIES
from tests.conftest import ActorStock
from tests.faults.forked import Ended
from tests.tuning.common import make_study

TRIALS, KILLED_TRIAL, KILLED_ROUND = 3, 1, 2


class Killed(BaseException):
    """Ends a tuner as a kill does: nothing that it would still do is done."""


class InterruptedStudy:
    """A study whose tuner was killed in its second trial, and the same study undisturbed.

    It runs on the Ray instance of this process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Make the studies.

        Args:
            folder: Theirs.
            name: The name; "study on a network" has a journal.
        """
        self.name, self._on_network = name, name == "study on a network"
        tuner, self.path, self.undisturbed = (
            folder / name.replace(" ", "-") / kind for kind in ("tuner", "killed", "undisturbed")
        )
        self.path.parent.mkdir()
        STUDIES["blobs"] = make_study(self.path.parent)  # type: ignore[index]
        ended = self.resume(self.undisturbed)
        assert not ended.code, ended.errors
        judge = Decisions.judge

        def dying(study: Decisions, trial: optuna.Trial, curve: Mapping[int, float]) -> bool:
            goes_on = judge(study, trial, curve)
            if trial.number == KILLED_TRIAL and max(curve, default=0) >= KILLED_ROUND:
                shutil.copytree(tuner, self.path, symlinks=True)  # before anything is closed
                raise Killed
            return goes_on

        with mock.patch.object(Decisions, "judge", dying):
            ended = self.resume(tuner)
        assert "Killed" in ended.errors, ended.errors

    def targets(self) -> Iterator[Path]:
        """Yield what is damaged: files of the study, of a finished trial, and of a running one."""
        running = self.path / "trials" / f"{KILLED_TRIAL:04d}"
        checkpoint = max((running / "checkpoints").glob("round_*"))
        if self._on_network:
            yield Path("study.journal")
            return
        files = ("config.json", "metrics.parquet", "checkpoints", checkpoint / "state.json")
        databases = ("study.db", "study.db-wal")
        yield from map(Path, (*databases, "study.json", "trials", "trials/0000/summary.json"))
        yield from ((running / name).relative_to(self.path) for name in files)

    def resume(self, path: Path) -> Ended:
        on_network = mock.patch(
            "raysim.tuning.search.storage.is_on_network", lambda _: self._on_network
        )
        with on_network:
            return here(lambda: tune(path))

    def start(self, path: Path) -> Ended:
        return self.resume(path)

    def difference(self, path: Path) -> str | None:
        """Return how a study that is to be finished differs from the undisturbed one."""
        return study_difference(path, self.undisturbed)


def here(work: Callable[[], object]) -> Ended:
    """Do the work of a child process in this one, and return how it ended."""
    said, errors, code = StringIO(), StringIO(), 0
    with redirect_stdout(said), redirect_stderr(errors):
        try:
            work()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            code = 1
            traceback.print_exc()
    return Ended(code, said.getvalue(), errors.getvalue())


def tune(path: Path) -> None:
    """Run or resume the study in a folder by the command line, which ends with SystemExit."""
    words = ["blobs", "--trials", str(TRIALS), "--jobs", "1", "--sampler", "random"]
    sys.argv = ["raysim", "tune", *words, "--out", str(path)]
    app.main()


def study_difference(path: Path, undisturbed: Path) -> str | None:
    """Return how a study that is to be finished differs from another one."""
    database = path / "study.db"
    if database.exists():
        with closing(sqlite3.connect(database)) as opened:
            if opened.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return "the database is not whole"
    found = trials_of(path)
    if found != trials_of(undisturbed):
        return f"other trials: {found}"
    for number, (_, _, value, _) in enumerate(found):
        summary = path / "trials" / f"{number:04d}" / "summary.json"
        if figure(summary) not in {None, value}:
            return f"the summary of trial {number} has another value"
    return None


def figure(summary: Path) -> float | None:
    """Return the value by which a study compares, if the summary can be read."""
    try:
        found: float | None = json.loads(summary.read_text())["final_holdout_accuracy"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def trials_of(path: Path) -> list[tuple[Any, ...]]:
    """Return number, state and parameters of each trial, its value and its curve."""
    storage = open_storage(default_storage(path))
    (study,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=study, storage=storage).get_trials()
    close_storage(storage)
    states = [(trial.number, trial.state.name) for trial in trials]
    figures = [(trial.params, trial.value, trial.intermediate_values) for trial in trials]
    return [
        (state, params, value, curve)
        for state, (params, value, curve) in zip(states, figures, strict=True)
    ]


@contextmanager
def interrupted_studies(folder: Path) -> Iterator[list[InterruptedStudy]]:
    """Make the studies on a Ray instance whose actors are kept for the next tuner."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    patch = pytest.MonkeyPatch()
    try:
        studies = [InterruptedStudy(folder, name) for name in ("study", "study on a network")]
        ActorStock().lend(patch)
        yield studies
    finally:
        patch.undo()
        ray.shutdown()
