"""Trained networks of a round's clients, one safetensors file each.

Workers write them to `client_models/round_000012/17.safetensors`, on storage that all nodes share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from raysim.numbers.tensors import Tensors, contiguous
from raysim.storage.atomic import discard_folder, remove, replace_file, writing


@dataclass(frozen=True)
class ClientModels:
    """Files of the clients' networks of one run.

    Attributes:
        folder: The folder of the files.
        metadata: Metadata of each file, as of the run's models.
    """

    folder: Path
    metadata: dict[str, str] | None

    def save(self, number: int, client: int, tensors: Tensors) -> None:
        """Write the network of a client of a round.

        Raises:
            MachineError: the file cannot be written.
        """
        path = self._path(number, client)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        content = contiguous({name: tensor.cpu() for name, tensor in tensors.items()})
        replace_file(path, lambda aside: save_file(content, aside, self.metadata))

    def delete(self, number: int, clients: Collection[int]) -> None:
        """Delete the networks of clients without a result that counts."""
        for client in clients:
            remove(self._path(number, client))

    def keep_only(self, number: int) -> None:
        """Delete the networks of all rounds but one."""
        kept = self._path(number, 0).parent
        for folder in self.folder.glob("*"):
            if folder != kept:
                discard_folder(folder)

    def _path(self, number: int, client: int) -> Path:
        return self.folder / f"round_{number:06d}" / f"{client}.safetensors"
