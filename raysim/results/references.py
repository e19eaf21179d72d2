"""References: runs that give the models for the analyses of other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysim.errors import RunError
from raysim.numbers.tensors.digests import tensors_digest
from raysim.results.runs import RunRecord, read_run, result_settings
from raysim.storage.checkpoints import REFERENCE
from raysim.storage.sealed.models import read_model

UNREAD = "reference.model"
"""Key of the digest of a model with unknown settings."""
SHOWN_DIGITS = 12


def reference_settings(record: RunRecord) -> dict[str, Any]:
    """Return the settings of a run's reference by `reference.KEY`, the seed left out.

    If the reference cannot be read or has another model by now, the digest of the model that the
    run was compared with replaces them, or its folder if no digest is sealed. A run without a
    reference has none.
    """
    folder, digest = record.settings.get("reference"), record.sealed(REFERENCE)
    if folder is None:
        return {}
    if (reference := _with_model(Path(folder), digest)) is None:
        return {UNREAD: digest[:SHOWN_DIGITS] if digest else folder}
    settings = {**result_settings(reference.settings), "own_task": reference.own_task}
    return {f"reference.{key}": value for key, value in settings.items()}


def reference_notes(record: RunRecord, folder: str | None) -> list[str]:
    """Return a line if the reference has changed since the run was compared with it.

    Args:
        record: The run.
        folder: The present folder of its reference, which may have been moved.
    """
    if folder is None or _with_model(Path(folder), record.sealed(REFERENCE)):
        return []
    return [
        f"{record.path}: was compared with another model than its reference has now, {folder};"
        " delete it to run it again"
    ]


def _with_model(folder: Path, digest: str | None) -> RunRecord | None:
    """Return the run in a folder if its model has a digest."""
    try:
        record = read_run(folder)
        model = read_model(folder, lambda text: None)
    except RunError:
        return None
    return record if tensors_digest(model) == digest else None
