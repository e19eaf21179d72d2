"""Client states on disk: tensors that clients keep between rounds, or between passes of a round.

One file per client and version, named by the round and pass that wrote it. The driver tells a pass
which version of each client to read: the latest of those that were handed over. So a chunk that is
trained again reads what it read the first time and writes the same bytes to the same name: a lost,
retried or duplicated chunk changes nothing. Workers read by name, as a listing that a network file
system has cached may lack the newest. Round state has files of its own, deleted with the round.
Versions stay back to the older of the last two checkpoints; a resumed run deletes later ones.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysim.core.errors import RunError
from raysim.core.tensors import Groups, contiguous, flatten, unflatten
from raysim.storage.atomic import replace_file


class StateVersion(NamedTuple):
    """Round and pass in which a client's state was written.

    Attributes:
        round_number: Rounds committed before that round.
        pass_number: Number of the pass in it, from 0.
        in_round: Whether it is round state.
    """

    round_number: int
    pass_number: int
    in_round: bool = False


NEVER = (-1, -1)
"""Round and pass of a client without state."""


def latest_versions(
    latest: npt.NDArray[np.int64], clients: Sequence[int]
) -> dict[int, tuple[StateVersion, ...]]:
    """Return the versions of clients' states, of those that have one.

    Args:
        latest: Round and pass of each client's state [K, 2], or NEVER.
        clients: The clients asked about.
    """
    rows = latest[list(clients)]  # [n, 2]
    known = np.flatnonzero(rows[:, 0] != NEVER[0])
    return {clients[at]: (StateVersion(*rows[at].tolist()),) for at in known.tolist()}


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

    def write(self, client: int, version: StateVersion, groups: Groups, needed_from: int) -> None:
        """Write a version, and delete those that no checkpoint on disk needs.

        A version that exists is left as it is: whoever trains the client again has the same bytes,
        and an actor that was given up for lost, and is not, may have others.

        Args:
            client: The client's id.
            version: Round and pass of the writer.
            groups: The client's groups.
            needed_from: Round of the oldest checkpoint on disk.

        Raises:
            MachineError: the file cannot be written.
        """
        path = self._path(client, version)
        if not path.exists():
            replace_file(path, lambda aside: save_file(contiguous(flatten(groups)), aside))
        if version.in_round:
            return
        older = sorted(v for v in self.versions(client) if v.round_number < needed_from)
        for stale in older[:-1]:
            self._path(client, stale).unlink(missing_ok=True)

    def delete(self, versions: Iterable[tuple[int, StateVersion]]) -> None:
        """Delete versions of clients."""
        for client, version in versions:
            self._path(client, version).unlink(missing_ok=True)

    def versions(self, client: int) -> list[StateVersion]:
        """Return the versions of a client's state on disk, round state left out."""
        try:
            found = [_version(path) for path in self._folder_of(client).iterdir()]
        except FileNotFoundError:
            return []
        return [version for version in found if version is not None and not version.in_round]

    def roll_back(self, round_number: int, clients: int) -> npt.NDArray[np.int64]:
        """Delete what this round or a later one wrote, all round state, and half-written files.

        Returns:
            Round and pass of the latest version left of each client, or NEVER [clients, 2].
        """
        latest = np.full((clients, 2), NEVER)
        for folder in self.folder.glob("[0-9]*/[0-9]*"):
            left = []
            for path in folder.iterdir():
                version = _version(path)
                if version and not version.in_round and version.round_number < round_number:
                    left.append(version)
                elif version or path.name.startswith("."):
                    path.unlink()
            latest[int(folder.name)] = max(left)[:2] if left else NEVER
        return latest

    def check_space(self, needed: int) -> None:
        """Check that so many bytes of states fit on the disk.

        Raises:
            RunError: they do not fit.
        """
        existing = next(p for p in self.folder.absolute().parents if p.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise RunError(
                f"{self.folder}: client state may take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB"
                " are free: use fewer clients or rounds, or another `out`"
            )

    def _folder_of(self, client: int) -> Path:
        return self.folder / f"{client // 1000:05d}" / f"{client:08d}"

    def _path(self, client: int, version: StateVersion) -> Path:
        kind = ".round" if version.in_round else ""
        name = f"{version.round_number}_{version.pass_number}{kind}.safetensors"
        return self._folder_of(client) / name


def _version(path: Path) -> StateVersion | None:
    match = re.fullmatch(r"(\d+)_(\d+)(\.round)?\.safetensors", path.name)
    return StateVersion(int(match[1]), int(match[2]), bool(match[3])) if match else None
