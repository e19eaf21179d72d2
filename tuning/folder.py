"""Folder of a study: the run directories of its trials, locked by one tuner."""

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


def make_folder(path: Path) -> None:
    """Create a folder if it does not exist.

    Raises:
        RunError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"out={path}: cannot be written: {error.strerror}") from error


class Folder:
    """Folder of a study, linked to it by an id in `study.json` and in the study's storage.

    The id keeps a study from using the runs of another one, and two tuners with different folders
    from sharing a study.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._about = path / "study.json"

    def trial(self, number: int) -> Path:
        """Return the run directory of a trial as an absolute path: slots run elsewhere."""
        return self.path.absolute() / "trials" / f"{number:04d}"

    @contextmanager
    def claimed(self, study: optuna.Study) -> Iterator[None]:
        """Lock the folder for this process and study; the lock ends with the process.

        Raises:
            RunError: another tuner has the lock, or folder and study belong to others.
        """
        make_folder(self.path)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"out={self.path}: another tuner is using this folder") from error
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
                f"out={self.path}: study {name} has its trials in another folder; pass it as --out"
            )
        elif found != known:
            raise RunError(
                f"out={self.path}: contains the trials of a study that is not in this storage;"
                " choose another --out"
            )

    def _id(self) -> str | None:
        if not self._about.exists():
            return None
        try:
            return str(json.loads(self._about.read_text(encoding="utf-8"))["folder"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._about}: damaged file: {error}; restore it") from error
