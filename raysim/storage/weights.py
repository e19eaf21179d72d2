"""Files of weights: safetensors, or a state_dict saved by torch; reading executes no code."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from raysim.errors import DataError
from raysim.storage.checkpoints import MODEL
from raysim.storage.sealed.models import model_problem

ALLOWED = "a .safetensors file and a state_dict saved by torch"
MORE = re.compile(r"not an allowed global|TorchScript", re.IGNORECASE)
"""Errors of torch about files that hold more than tensors, which only code can read."""


def read_weights(path: Path, setting: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU.

    Args:
        path: The file. The model of a run directory is checked against its checkpoint.
        setting: The setting that names it, for errors.

    Raises:
        DataError: the file cannot be read, or holds something else; where it is a file of torch,
            the message has the line that converts it.
    """
    where = f"{setting}={path}"
    if path.name == MODEL and (problem := model_problem(path.parent)):
        raise DataError(f"{setting}={problem}")
    content: Any
    try:
        if path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's words on archives of TorchScript
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many types
        advice = f"allowed are {ALLOWED}"
        if MORE.search(str(error)):
            line = _converting(path, ".state_dict()", safe=False)
            advice += f"; if you trust this file and it holds a network, {line}"
        name = type(error).__name__
        raise DataError(f"{where}: cannot be read as weights ({name}); {advice}") from error
    if not isinstance(content, Mapping):
        raise DataError(f"{where}: contains {_kind(content)}, not a state_dict")
    for name, value in content.items():
        if not isinstance(value, Tensor) or not isinstance(name, str):
            raise DataError(
                f"{where}: key {name!r} holds {_kind(value)}, not a tensor;"
                f" {_inside(path, content)}"
            )
    return {name: tensor.detach() for name, tensor in content.items()}


def _inside(path: Path, content: Mapping[Any, Any]) -> str:
    """Return the line that converts a checkpoint which holds one state_dict among other things."""
    members = [
        name
        for name, value in content.items()
        if isinstance(value, Mapping)
        and value
        and all(isinstance(item, Tensor) for item in value.values())
    ]
    if len(members) != 1:
        return "save the network's state_dict() itself"
    return _converting(path, f"[{members[0]!r}]", safe=True)


def _converting(path: Path, part: str, *, safe: bool) -> str:
    loaded = f"torch.load({str(path)!r}, weights_only={safe})"
    return f"convert it in Python: torch.save({loaded}{part}, 'weights.pth')"


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"
