"""Models of run directories, checked against the checksum that the newest checkpoint seals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, save
from torch import Tensor

from raysim.errors import RunError
from raysim.numbers.tensors import contiguous, unflatten
from raysim.samples.arrow import checksum
from raysim.storage.checkpoints import BEST_MODEL, MODEL, STATE, Checkpoints, model_metadata
from raysim.user_input import resume_advice

CHECKPOINTS = "checkpoints"


def read_model(run: Path, note: Callable[[str], None], name: str = MODEL) -> dict[str, Tensor]:
    """Return a deployed model of a run, from its newest checkpoint if the file is damaged.

    Args:
        run: The run directory.
        note: Called with a line if the checkpoint's model is used.
        name: MODEL, or BEST_MODEL of its best round.

    Raises:
        RunError: there is no model, or it is damaged and not in the newest checkpoint.
    """
    problem = model_problem(run, name)
    if problem is None:
        return load_file(run / name)
    if (copy := _of_checkpoint(run, name)) is None:
        raise RunError(problem)
    folder, model = copy
    note(f"{problem}; meanwhile taking the model of {folder}")
    return model


def sealed_models(run: Path) -> list[Path]:
    """Return the files of a finished run's models: the last one, and the best one if it is sealed.

    A run without evaluation has no best model.
    """
    _, best, _ = _sealed(run, BEST_MODEL)
    return [run / MODEL, *([run / BEST_MODEL] if best else [])]


def model_problem(run: Path, name: str = MODEL) -> str | None:
    """Return a line if the model of a run differs from the one that its newest checkpoint sealed.

    Without a readable checkpoint the model must be a file of tensors. None if the model is valid.
    """
    path = run / name
    _, digest, own_task = _sealed(run, name)
    try:
        if digest is None:
            with safe_open(path, "pt"):
                return None
        if checksum(path) == digest:
            return None
        problem = "does not match its checksum in the newest checkpoint"
    except (OSError, SafetensorError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    advice = f"; to write it again, {resume_advice(run, own_task=own_task)}" if digest else ""
    return f"{path}: {problem}{advice}"


def _of_checkpoint(run: Path, name: str) -> tuple[Path, dict[str, Tensor]] | None:
    """Return the newest checkpoint's folder with the model; None if no checkpoint has the model."""
    folder, digest, _ = _sealed(run, name)
    if folder is None or digest is None:
        return None
    try:
        groups = [*unflatten(load((folder / STATE).read_bytes())).values()]
        if (folder / BEST_MODEL).exists():
            groups.append(load((folder / BEST_MODEL).read_bytes()))
    except (OSError, ValueError, SafetensorError):
        return None
    metadata = model_metadata(Checkpoints(run / CHECKPOINTS).identity())
    for group in groups:
        content = save(contiguous(group), metadata)
        if hashlib.sha256(content).hexdigest() == digest:
            with TemporaryDirectory() as other:  # mapped: a tensor's alignment decides last bits
                path = Path(other) / name
                path.write_bytes(content)
                return folder, load_file(path)
    return None


def _sealed(run: Path, name: str) -> tuple[Path | None, str | None, bool]:
    """Return the newest checkpoint's folder, the model's checksum, and whether the task is own."""
    folder = run / CHECKPOINTS
    newest = Checkpoints(folder).newest() if folder.is_dir() else None
    if newest is None:
        return None, None, False
    digest, config = newest[1].get(Path(name).stem), newest[1].get("config")
    own_task = isinstance(config, dict) and bool(config.get("own_task"))
    return newest[0], digest if isinstance(digest, str) else None, own_task
