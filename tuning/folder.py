"""The folder of a study: where its trials' runs are, and who may write there."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import optuna

from raysim.core.errors import RunError
from raysim.storage.atomic import write_json


def make(path: Path) -> None:
    """Make a folder, if it is not there.

    Raises:
        RunError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"out={path}: cannot be written: {error.strerror}") from error


class Folder:
    """A study's folder, which `study.json` and the study in its storage both know by an id.

    So a study never takes another's runs for its own, and two tuners with folders of their own
    never share a study.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._about = path / "study.json"

    def trial(self, number: int) -> Path:
        """Return the run directory of a trial; a slot's working directory is another."""
        return self.path.absolute() / "trials" / f"{number:04d}"

    @contextmanager
    def claimed(self, study: optuna.Study) -> Iterator[None]:
        """Hold the folder for this process and this study; a killed process lets go of it.

        Raises:
            RunError: another tuner holds it, it holds another study, or the study has another.
        """
        make(self.path)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"out={self.path}: another tuner is at work there") from error
            self._match(study)
            yield

    def _match(self, study: optuna.Study) -> None:
        name, known, found = study.study_name, study.user_attrs.get("folder"), self._id()
        if found is None and (known is None or not study.get_trials(deepcopy=False)):
            new = uuid4().hex
            study.set_user_attr("folder", new)
            write_json(self._about, {"name": name, "folder": new})
        elif found is None:
            raise RunError(
                f"out={self.path}: study {name} has its trials in another folder; name that one"
            )
        elif found != known:
            raise RunError(
                f"out={self.path}: holds the trials of a study that is not in this storage; choose"
                " another --out"
            )

    def _id(self) -> str | None:
        if not self._about.exists():
            return None
        try:
            return str(json.loads(self._about.read_text(encoding="utf-8"))["folder"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._about}: is damaged: {error}; restore it") from error
