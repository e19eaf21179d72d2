"""Client states on disk: tensors that clients keep between rounds, or between passes of a round.

There is one file per client and version, named by the round and pass that wrote it. It holds groups
of the method, of each stage of the channel and of the optimizer. If an owner writes no groups in a
pass, its earlier groups are copied. (Files by owner would need a version of each owner in every
checkpoint.) The driver sends with a pass the version of each client to read: the latest one handed
over. A repeated chunk reads the same state as the first time and writes the same bytes to the same
name: a lost, retried or duplicated chunk changes nothing. Workers read by name, as a listing cached
by a network file system may lack the newest version. Round state has its own files, deleted with
the round. Versions are kept back to the older of the last two checkpoints; a resumed run deletes
later ones.

A version travels with the digest of its file, and checkpoints seal it: a state is read as it was
written, or the run stops. A resumed run checks every state that its checkpoint seals.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from raysim.api.optimizer import OPTIMIZER
from raysim.display.units import in_fitting_unit
from raysim.errors import DamagedStateError, MachineError, RunError
from raysim.numbers.arrays import Integers
from raysim.numbers.tensors import Groups, Tensors, contiguous, flatten, unflatten
from raysim.numbers.tensors.packed import on_device, on_host
from raysim.storage.atomic import force_to_disk, remove, replace_file, writing

Versions = Integers
"""Round, pass and digest of each client's state [K, 3], or NEVER."""
UNSEALED = 0
"""Digest of a version that a file's name alone tells, which is not checked."""
CHECKING_THREADS, CHECKED_AT_ONCE = 4, 10_000


OF_STAGE = "@"
"""Between a stage of the channel, or the optimizer, and a group that a client keeps for it."""


def owner_of(group: str, owners: Collection[str]) -> str:
    """Return which of the owners a group of a client's state is kept for; empty: the method."""
    owner = group.rpartition(OF_STAGE)[0]
    return owner if owner in owners else ""


def optimizer_group(pass_number: int, slot: str) -> str:
    """Return the group that an optimizer keeps from a pass to the same pass of the next round."""
    return f"{OPTIMIZER}{OF_STAGE}{pass_number}.{slot}"


def of_optimizer(groups: Groups, pass_number: int) -> Groups:
    """Return the optimizer's state of this pass, by slot."""
    prefix = optimizer_group(pass_number, "")
    return {g.removeprefix(prefix): t for g, t in groups.items() if g.startswith(prefix)}


class StateVersion(NamedTuple):
    """Round and pass that wrote a client's state.

    Attributes:
        round_number: Number of rounds committed before.
        pass_number: Number of the pass in the round, from 0.
        in_round: Whether it is round state.
        digest: Digest of its file.
    """

    round_number: int
    pass_number: int
    in_round: bool = False
    digest: int = UNSEALED


NEVER = (-1, -1, UNSEALED)
"""Round, pass and digest of a client without state."""


def latest_versions(
    latest: Versions, clients: Sequence[int]
) -> dict[int, tuple[StateVersion, ...]]:
    """Return the state versions of the clients that have one."""
    rows = latest[list(clients)]  # [n, 3]
    known = np.flatnonzero(rows[:, 0] != NEVER[0])
    return {clients[at]: (_of_row(rows[at]),) for at in known.tolist()}


def updated(latest: Versions, written: Mapping[int, StateVersion]) -> Versions:
    """Return a copy of the clients' versions with the versions that a round wrote."""
    if not written:
        return latest
    result = latest.copy()
    rows = [(v.round_number, v.pass_number, v.digest) for v in written.values()]
    result[list(written)] = rows
    return result


def _of_row(row: Versions) -> StateVersion:
    round_number, pass_number, digest = row.tolist()
    return StateVersion(round_number, pass_number, digest=digest)


def _digest(content: bytes) -> int:
    """Return 64 bits of a file's sha256, as a signed number; never UNSEALED."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True) or 1


class ClientStates:
    """Client states of one run directory, readable and writable from every worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: int, version: StateVersion, device: torch.device) -> Groups:
        """Return a version of a client's groups.

        Raises:
            DamagedStateError: the file is damaged or missing.
        """
        path = self._path(client, version)
        try:
            _checked(path, version)
            # Mapped: the position in the file decides a tensor's alignment, and so the last bits.
            return unflatten(on_device(load_file(path), device))
        except (OSError, ValueError, SafetensorError) as error:
            cause = getattr(error, "strerror", None) or error
            raise DamagedStateError(f"{path}: client state is damaged: {cause}") from error

    def groups(self, client: int, version: StateVersion) -> list[str]:
        """Return the names of the groups of a version, which has been read before."""
        with safe_open(self._path(client, version), framework="pt") as file:
            return sorted({name.partition("/")[0] for name in file.keys()})  # noqa: SIM118

    def of_client(
        self,
        client: int,
        versions: Sequence[StateVersion],
        initial: Groups,
        device: torch.device,
        owners: Collection[str],
    ) -> tuple[Groups, Groups]:
        """Return a client's state: the method's groups, and the groups of other owners.

        Args:
            client: The client's id.
            versions: The version of its state and that of its round state, as far as it has them.
            initial: The method's groups if the client has none yet.
            device: Device of the tensors.
            owners: Names of the other owners.

        Raises:
            DamagedStateError: a file is damaged or missing.
        """
        read = [(version, self.read(client, version, device)) for version in versions]
        states = [groups for version, groups in read if not version.in_round]
        known = any(not owner_of(group, owners) for groups in states for group in groups)
        kept: dict[str, Tensors] = {} if known else dict(initial)
        for _, groups in read:
            kept |= groups
        of_others = {group: t for group, t in kept.items() if owner_of(group, owners)}
        return {group: t for group, t in kept.items() if group not in of_others}, of_others

    def write(self, client: int, version: StateVersion, groups: Groups, needed_from: int) -> int:
        """Write a version, and delete versions that no checkpoint on disk needs.

        An existing version is not replaced: repeated training of the client gives the same bytes,
        and an actor that wrongly counts as lost may have others.

        Args:
            client: The client's id.
            version: Round and pass of the writer.
            groups: The client's groups.
            needed_from: Round of the oldest checkpoint on disk.

        Returns:
            The digest of the version's file.

        Raises:
            MachineError: the file cannot be written.
        """
        path = self._path(client, version)
        if not self.folder.parent.is_dir():  # it would be created again, empty
            raise MachineError(f"{self.folder.parent}: the run directory is gone")
        if path.exists():
            content = path.read_bytes()
        else:
            content = save(contiguous(on_host(flatten(groups))))
            replace_file(path, lambda aside: aside.write_bytes(content))
        if not version.in_round:
            older = sorted(v for v in self.versions(client) if v.round_number < needed_from)
            for stale in older[:-1]:
                remove(self._path(client, stale))
        return _digest(content)

    def check(self, versions: Versions) -> None:
        """Check that the states of these versions are on disk as they were written.

        Raises:
            OSError: a state is missing.
            ValueError: a state is damaged; the message names it.
        """
        clients = np.flatnonzero(versions[:, 0] != NEVER[0])
        with ThreadPoolExecutor(CHECKING_THREADS) as pool:
            for start in range(0, len(clients), CHECKED_AT_ONCE):
                some = clients[start : start + CHECKED_AT_ONCE].tolist()
                for _ in pool.map(self._check, some, map(_of_row, versions[some])):
                    pass

    def _check(self, client: int, version: StateVersion) -> None:
        _checked(self._path(client, version), version)

    def linked(self, folder: Path, versions: Versions) -> ClientStates:
        """Return states in another folder, which has links to the files of these versions."""
        states = ClientStates(folder)
        for client in np.flatnonzero(versions[:, 0] != NEVER[0]).tolist():
            version = _of_row(versions[client])
            link = states._path(client, version)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self._path(client, version).absolute())
        return states

    def force_to_disk(self, versions: Versions, since: int) -> None:
        """Force to disk the states written in a round or later.

        Raises:
            MachineError: the disk fails, or a file is gone.
        """
        clients = np.flatnonzero(versions[:, 0] >= since).tolist()
        paths = [self._path(client, _of_row(versions[client])) for client in clients]
        with writing(self.folder):
            force_to_disk(paths)
            force_to_disk({path.parent.parent for path in paths})

    def delete(self, versions: Iterable[tuple[int, StateVersion]]) -> None:
        """Delete versions of clients."""
        for client, version in versions:
            remove(self._path(client, version))

    def versions(self, client: int) -> list[StateVersion]:
        """Return the versions of a client's state on disk, without round state."""
        try:
            versions = [_version(path) for path in self._folder_of(client).iterdir()]
        except FileNotFoundError:
            return []
        return [version for version in versions if version is not None and not version.in_round]

    def roll_back(self, round_number: int) -> None:
        """Delete states of this round and later ones, all round state, and half-written files."""
        for path in self.folder.glob("[0-9]*/[0-9]*/*"):
            version = _version(path)
            is_stale = version and (version.in_round or version.round_number >= round_number)
            if is_stale or path.name.startswith("."):
                remove(path)

    def check_space(self, needed: int) -> None:
        """Check that `needed` bytes of states fit on the disk.

        Raises:
            RunError: the states do not fit.
        """
        existing = next(p for p in self.folder.absolute().parents if p.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise RunError(
                f"{self.folder}: client state may take {in_fitting_unit(needed, 'B')},"
                f" {in_fitting_unit(free, 'B')} are free: use fewer clients or rounds, or another"
                " `out`"
            )

    def _folder_of(self, client: int) -> Path:
        return self.folder / f"{client // 1000:05d}" / f"{client:08d}"

    def _path(self, client: int, version: StateVersion) -> Path:
        kind = ".round" if version.in_round else ""
        name = f"{version.round_number}_{version.pass_number}{kind}.safetensors"
        return self._folder_of(client) / name


def _checked(path: Path, version: StateVersion) -> bytes:
    """Return a file's content.

    Raises:
        ValueError: the content does not match the version's digest.
    """
    content = path.read_bytes()
    if version.digest not in (UNSEALED, _digest(content)):
        raise ValueError(f"{path} does not match its checksum")
    return content


def _version(path: Path) -> StateVersion | None:
    match = re.fullmatch(r"(\d+)_(\d+)(\.round)?\.safetensors", path.name)
    return StateVersion(int(match[1]), int(match[2]), bool(match[3])) if match else None
