"""Loading of a network's weights from a local file; downloads nothing, executes no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from raysim.errors import DataError, SettingsError
from raysim.storage.weights import read_weights

OPTIONAL_KEY = "num_batches_tracked"
"""BatchNorm's counter, missing in old files; it starts at 0."""


def load_weights(network: nn.Module, path: str, head: str) -> None:
    """Copy the weights of a file into a network.

    Args:
        network: The initialised network.
        path: A safetensors file, or a state_dict saved by torch.
        head: Path of the last layer; it stays as initialised if the file's layer has another
            number of classes.

    Raises:
        SettingsError: the file does not exist.
        DataError: the file cannot be read, or a key is missing, unknown or has another shape.
    """
    loaded = _read(Path(path))
    tensors = network.state_dict()
    weight = loaded.get(f"{head}.weight")
    if weight is not None and weight.shape[1:] == tensors[f"{head}.weight"].shape[1:]:
        other = len(weight) != len(tensors[f"{head}.weight"])
        names = [name for name in tensors if other and name.startswith(f"{head}.")]
        loaded = {name: tensor for name, tensor in loaded.items() if name not in names}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in names}
    if problem := _mismatch(tensors, loaded):
        raise DataError(f"model.pretrained={path}: {problem}")
    network.load_state_dict(loaded, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise SettingsError(
            f"model.pretrained={path}: no such file; must be a local file of weights"
            " (.safetensors, or saved by torch)"
        )
    return read_weights(path, "model.pretrained")


def _mismatch(tensors: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str | None:
    """Describe the first key that does not match; None if all match."""
    for name, tensor in tensors.items():
        other = loaded.get(name)
        if other is None:
            if not name.endswith(OPTIONAL_KEY):
                return f"lacks the key {name!r} of the network"
        elif other.shape != tensor.shape:
            return (
                f"key {name!r} has shape {tuple(other.shape)}, in the network it has"
                f" {tuple(tensor.shape)}"
            )
        elif other.is_floating_point() != tensor.is_floating_point():
            return f"key {name!r} holds {other.dtype}, in the network it holds {tensor.dtype}"
    unknown = next((name for name in loaded if name not in tensors), None)
    return f"has the key {unknown!r}, which the network lacks" if unknown is not None else None
