"""Artifacts of a study for optuna-dashboard: models of its trials, and its plots.

They are in `artifacts/` next to a database file, or else in the study's folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import optuna
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
from optuna.trial import Trial

from raysim.storage.atomic import writing

ARTIFACTS = "artifacts"
"""Name of the folder of artifacts."""


class ArtifactFolder(FileSystemArtifactStore):
    """Artifacts in a folder: hard links to files if possible, else copies.

    The files must not be changed in place.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Store the content of an open file under an id, in place of an earlier one."""
        path = self.path / artifact_id
        path.unlink(missing_ok=True)
        try:
            os.link(content_body.name, path)
        except OSError:  # the folder is on another disk, or its disk has no links
            super().write(artifact_id, content_body)


def attach(to: optuna.Study | Trial, files: Sequence[Path], folder: Path) -> None:
    """Attach files to a study or a running trial, replacing files of the same names.

    Raises:
        MachineError: the files cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store = ArtifactFolder(folder)
        known = {meta.filename: meta.artifact_id for meta in get_all_artifact_meta(to)}
        for file in files:
            if file.name not in known:
                upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=to)
                continue
            with file.open("rb") as content:
                store.write(known[file.name], content)
