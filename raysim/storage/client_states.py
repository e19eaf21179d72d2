"""Client states, in files of the run directory.

There is one file per client and state version, named by the round and pass that wrote it. The
driver sends with a pass the version of each client to read, the latest of the returned chunks. A
chunk that is trained again reads the same version and writes the same bytes to the same name, so
that a lost, retried or duplicated chunk changes nothing. Workers open files by name, because
listings of a network file system may be stale. Round states are deleted at the end of their round.
Versions are retained back to the older of the last two checkpoints; a resumed run deletes those
after its checkpoint.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysim.core.errors import RunError
from raysim.core.tensors import Groups, contiguous, flatten, unflatten
from raysim.storage.atomic import replace_file

StateVersion = tuple[int, int]
"""Round number and pass number."""
NEVER = (-1, -1)
"""Version of a client without a state; passes are counted from 0."""


class ClientStates:
    """Client states of one run directory, readable and writable from every worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: int, version: StateVersion, device: torch.device) -> Groups:
        """Return a version of a client's groups.

        Raises:
            RunError: the file is damaged or missing.
        """
        path = self._path(client, version)
        try:
            return unflatten(load_file(path, device=str(device)))
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: client state is damaged: {error}") from error

    def write(self, client: int, version: StateVersion, groups: Groups, keep_from: int) -> None:
        """Write a version, and delete the versions that no checkpoint needs.

        An existing version is not overwritten: a repeated chunk has the same bytes, and an actor
        that was wrongly counted as lost may have others.

        Args:
            client: The client's id.
            version: Round and pass of the writer.
            groups: The client's groups.
            keep_from: Round of the oldest retained checkpoint.

        Raises:
            MachineError: the file cannot be written.
        """
        path = self._path(client, version)
        if not path.exists():
            replace_file(path, lambda aside: save_file(contiguous(flatten(groups)), aside))
        older = sorted(v for v in self.versions(client) if v[0] < keep_from)
        for stale in older[:-1]:
            self._path(client, stale).unlink(missing_ok=True)

    def delete(self, versions: Iterable[tuple[int, StateVersion]]) -> None:
        """Delete versions of clients."""
        for client, version in versions:
            self._path(client, version).unlink(missing_ok=True)

    def versions(self, client: int) -> list[StateVersion]:
        """Return the existing versions of a client."""
        try:
            found = [_version(path) for path in self._path(client, NEVER).parent.iterdir()]
        except FileNotFoundError:
            return []
        return [version for version in found if version is not None]

    def roll_back(self, round_number: int, clients: int) -> npt.NDArray[np.int64]:
        """Delete the versions of this round and later ones, and partially written files.

        Returns:
            The latest remaining version of each client, or NEVER [clients, 2].
        """
        latest = np.full((clients, 2), NEVER)
        for folder in self.folder.glob("[0-9]*/[0-9]*"):
            left = []
            for path in folder.iterdir():
                version = _version(path)
                if version[0] >= round_number if version else path.name.startswith("."):
                    path.unlink()
                elif version:
                    left.append(version)
            latest[int(folder.name)] = max(left, default=NEVER)
        return latest

    def check_space(self, clients: int, versions: int, size: int) -> None:
        """Check that the states fit on the disk.

        Args:
            clients: Expected number of clients that take part at least once.
            versions: Number of further versions, retained for checkpoints.
            size: Bytes of one client's state.

        Raises:
            RunError: they do not fit.
        """
        needed = size * (clients + versions)
        existing = next(p for p in self.folder.absolute().parents if p.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise RunError(
                f"{self.folder}: client state may take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB"
                " are free: use fewer clients or rounds, or another `out`"
            )

    def _path(self, client: int, version: StateVersion) -> Path:
        shard, name = f"{client // 1000:05d}", f"{client:08d}"
        return self.folder / shard / name / f"{version[0]}_{version[1]}.safetensors"


def _version(path: Path) -> StateVersion | None:
    match = re.fullmatch(r"(-?\d+)_(\d+)\.safetensors", path.name)
    return (int(match[1]), int(match[2])) if match else None
