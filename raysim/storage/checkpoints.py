"""Checkpoints: safetensors and JSON with checksums, written aside and renamed.

The last two are kept; a damaged one is reported and the one before it is used. A checkpoint seals
all that a run continues from: the server's state, clients in flight, last losses, the version and
digest of each client's state, rounds' tables, settings, and the identity of the run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load, save_file

from raysim.api.method import ServerState
from raysim.api.selection import History
from raysim.api.state import State
from raysim.errors import RunError
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Tensors, aligned, contiguous, flatten, unflatten
from raysim.samples.arrow import checksum
from raysim.storage.atomic import (
    discard_folder,
    force_to_disk,
    remove,
    replace_file,
    replace_folder,
    sweep,
)
from raysim.storage.client_states import NEVER
from raysim.storage.in_flight import InFlight
from raysim.storage.recorder import METRICS, SealedTables
from raysim.storage.revisions import sealed_revisions
from raysim.storage.run_state import Best, RunState
from raysim.storage.sealed.words import read_sealed, write_sealed

KEPT_CHECKPOINTS = 2
MODEL, BEST_MODEL = "model.safetensors", "model_best.safetensors"
"""Names of a run's models, the last one and the best one."""
STATE, CLIENTS = "state.safetensors", "clients.safetensors"
IN_FLIGHT, DOWNLINK = "in_flight.safetensors", "downlink.safetensors"
COMPONENTS = "components.safetensors"
TRAINING_SAMPLES, TEST_SAMPLES = "training samples", "test samples"
LOCAL_TEST_SAMPLES, REFERENCE = "clients' own test samples", "model of the reference"
"""Names of digests in an identity."""
BASE, NO_BASE = "base of frozen tensors", "none"
"""Name in an identity of the digest of a network's base, and its value without one."""
PRIVACY, NO_PRIVACY = "accounting of privacy", "none"
"""Name in an identity of the meaning of an epsilon, and its value without one."""
SAMPLES = {"train": TRAINING_SAMPLES, "test": TEST_SAMPLES}
"""Those of a dataset's splits."""


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint of a run: the state to resume from, and the files sealed with it.

    Attributes:
        run: The state.
        identity: The run's identity, which decides the bits of a result, by name.
        forced: Differences of identity that the user accepted by force.
        ended: Whether it is the end of a run that has not run all rounds.
        tables: The tables as of its round, if the checkpoint was read.
    """

    run: RunState
    identity: Mapping[str, Any] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    ended: bool = False
    tables: SealedTables | None = None


def save_tensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """Write tensors atomically and durably as one safetensors file."""
    content = contiguous(tensors)
    replace_file(path, lambda aside: save_file(content, aside, metadata), durable=True)


def model_metadata(identity: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the metadata of the files of a run's models: the digest of its base, if it has one."""
    digest = identity.get(BASE, NO_BASE)
    return None if digest == NO_BASE else {"base": str(digest)}


class Checkpoints:
    """Checkpoints of one run directory."""

    def __init__(self, folder: Path, config: Mapping[str, Any] | None = None) -> None:
        """Open the folder; every checkpoint also seals the content of `config.json`.

        Raises:
            RunError: there is a file where the folder belongs.
        """
        self._folder = folder
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder}: must be a folder; move this file away")
        self._config = config

    def save(
        self,
        checkpoint: Checkpoint,
        seal_tables: Callable[[Path], Mapping[str, str]] = lambda folder: {},
        models: Iterable[Path] = (),
    ) -> None:
        """Write a checkpoint and delete all but the last two.

        Args:
            checkpoint: The checkpoint.
            seal_tables: Called when the states are on disk and `latest` does not find them yet;
                writes tables into the folder and returns the checksums of those outside it.
            models: Files of deployed models, for their checksums.
        """

        def write(folder: Path) -> None:
            run = checkpoint.run
            for name, tensors in _tensors_of(run).items():
                save_file(contiguous(tensors), folder / name)
            if states := _flat(run.components):
                save_arrays(states, folder / COMPONENTS)
            force_to_disk(sorted(folder.glob("*.safetensors")))
            body = {
                "round": run.number,
                "info": dict(run.state.info),
                "stack_size": run.stack_size,
                "identity": dict(checkpoint.identity),
                "forced": checkpoint.forced,
                "ticks": run.ticks,
                **({"costs": dict(run.costs)} if run.costs else {}),
                **({"ended": True} if checkpoint.ended else {}),
                **({"in_flight": run.in_flight.to_json()} if run.in_flight else {}),
                "config": self._config,
                **({"best": run.best.number} if run.best else {}),
                **{path.stem: checksum(path) for path in models},
                "closed": dict(seal_tables(folder)),
                "sha256": {path.name: checksum(path) for path in sorted(folder.iterdir())},
            }
            write_sealed(folder, body)

        replace_folder(self._path(checkpoint.run.number), write)
        for number in self.numbers()[:-KEPT_CHECKPOINTS]:
            discard_folder(self._path(number))
        sweep(self._folder)

    def numbers(self) -> list[int]:
        """Return the rounds of the checkpoints there are, ascending."""
        matches = (re.fullmatch(r"round_(\d+)", path.name) for path in self._folder.glob("round_*"))
        return sorted(int(match[1]) for match in matches if match)

    def words(self) -> dict[str, Any]:
        """Return the words that the newest readable checkpoint seals; empty without one."""
        for number in reversed(self.numbers()):
            with suppress(OSError, ValueError):
                return read_sealed(self._path(number))
        return {}

    def identity(self) -> dict[str, Any]:
        """Return the identity at the newest readable checkpoint; empty without one."""
        identity = self.words().get("identity")
        return identity if isinstance(identity, dict) else {}

    def revisions(self) -> dict[str, Any] | None:
        """Return the revisions of the run's components, None without a readable checkpoint."""
        return sealed_revisions(self.identity())

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the folder of the newest checkpoint and its words; None where it is damaged."""
        for number in self.numbers()[-1:]:
            with suppress(OSError, ValueError):
                return self._path(number), read_sealed(self._path(number))
        return None

    def metrics(self) -> Path | None:
        """Return the newest whole copy of `metrics.parquet`, None without one."""
        for number in reversed(self.numbers()):
            path = self._path(number) / METRICS
            try:
                if read_sealed(path.parent)["sha256"].get(METRICS) == checksum(path):
                    return path
            except (OSError, ValueError, KeyError, AttributeError):
                continue
        return None

    def latest(
        self,
        clients: int,
        report: Callable[[str], None],
        check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; None if there was never one.

        Damaged ones are renamed to `damaged_round_...`.

        Args:
            clients: See `newest_whole`, as of the other arguments.
            report: See `newest_whole`.
            check: See `newest_whole`.

        Raises:
            RunError: all checkpoints are damaged.
        """
        checkpoint, damaged = self.newest_whole(clients, report, check)
        self._set_aside(damaged)
        return checkpoint

    def newest_whole(
        self,
        clients: int,
        report: Callable[[str], None],
        check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> tuple[Checkpoint | None, list[int]]:
        """Return the newest whole checkpoint and the numbers of later ones; change nothing.

        Args:
            clients: K, the number of clients.
            report: Called with a line for every damaged checkpoint.
            check: Raises OSError or ValueError if a file that a checkpoint seals outside its folder
                is damaged or missing.

        Raises:
            RunError: all checkpoints are damaged.
        """
        numbers = self.numbers()
        checkpoint, damaged = self._newest_whole(numbers, clients, report, check)
        if numbers and checkpoint is None:
            raise RunError(
                f"{self._folder}: every checkpoint is damaged; restore the files that the notes"
                " name, or start the run again in another `out`"
            )
        return checkpoint, damaged

    def before(
        self,
        number: int,
        clients: int,
        report: Callable[[str], None],
        check: Callable[[Checkpoint], None],
    ) -> Checkpoint | None:
        """Return the newest checkpoint before a round that is whole, or None; change nothing.

        Args:
            number: The round, counted from 1.
            clients: See `newest_whole`, as of the other arguments.
            report: See `newest_whole`.
            check: See `newest_whole`.
        """
        earlier = [found for found in self.numbers() if found < number]
        return self._newest_whole(earlier, clients, report, check)[0]

    def _newest_whole(
        self,
        numbers: Sequence[int],
        clients: int,
        report: Callable[[str], None],
        check: Callable[[Checkpoint], None],
    ) -> tuple[Checkpoint | None, list[int]]:
        """Return the newest whole checkpoint of some, and the numbers of damaged later ones."""
        damaged: list[int] = []
        for number in reversed(numbers):
            try:
                checkpoint = self._load(self._path(number), clients)
                check(checkpoint)
                return checkpoint, damaged
            except (OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError) as error:
                damaged.append(number)
                line = f"{self._path(number)}: checkpoint is damaged ({_cause(error)})"
                report(f"{line}; using the one before")
        return None, damaged

    def _set_aside(self, numbers: list[int]) -> None:
        for number in numbers:
            path = self._path(number)
            aside = path.with_name(f"damaged_{path.name}")
            remove(aside)
            path.replace(aside)

    def _load(self, folder: Path, clients: int) -> Checkpoint:
        body = read_sealed(folder)
        # Read, not mapped: a network file system cannot delete a folder with a mapped file.
        contents = {name: (folder / name).read_bytes() for name in body["sha256"]}
        for name, expected in body["sha256"].items():
            if hashlib.sha256(contents[name]).hexdigest() != expected:
                raise ValueError(f"{name} does not match its checksum")
        history = History.empty(clients)
        versions = np.full((clients, len(NEVER)), NEVER)
        arrays = {name: values.numpy() for name, values in load(contents[CLIENTS]).items()}
        history.losses[arrays["client"]] = arrays["loss"]
        history.last_round[arrays["client"]] = arrays["last_round"]
        history.times[arrays["client"]] = arrays["times"]
        versions[arrays["state_client"]] = arrays["state_version"]
        under_way = body.get("in_flight")
        run = RunState(
            number=body["round"],
            state=ServerState(unflatten(_in_order(contents[STATE])), body["info"]),
            history=history,
            versions=versions,
            stack_size=body["stack_size"],
            best=_best(body, contents),
            components=_by_owner(contents),
            downlink=unflatten(_in_order(contents[DOWNLINK])) if DOWNLINK in contents else {},
            ticks=body["ticks"],
            costs=body.get("costs", {}),
            in_flight=under_way and InFlight.of(under_way, _in_order(contents[IN_FLIGHT])),
        )
        return Checkpoint(
            run,
            identity=body["identity"],
            forced=tuple(body["forced"]),
            ended=body.get("ended", False),
            tables=SealedTables(folder, body["closed"]),
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"round_{number:06d}"


def _in_order(content: bytes) -> dict[str, torch.Tensor]:
    """Return a file's tensors by name, aligned as they were; `load` gives them in any order."""
    return {name: aligned(tensor) for name, tensor in sorted(load(content).items())}


def _best(body: Mapping[str, Any], contents: Mapping[str, bytes]) -> Best | None:
    """Return the best model that a checkpoint seals; None where it has none."""
    if "best" not in body:
        return None
    return Best(body["best"], _in_order(contents[BEST_MODEL]) if BEST_MODEL in contents else None)


def _flat(states: Mapping[str, State]) -> dict[str, Array]:
    """Return the states of several owners as one, with arrays named `owner/name`."""
    named = ((f"{owner}/{n}", a) for owner, state in states.items() for n, a in state.items())
    return {name: array.copy("C") for name, array in named}


def _by_owner(contents: Mapping[str, bytes]) -> dict[str, State]:
    """Return the states of components by owner, from their file; without one there are none."""
    states: dict[str, dict[str, Any]] = {}
    arrays = load_arrays(contents[COMPONENTS]) if COMPONENTS in contents else {}
    for key, array in arrays.items():
        owner, _, name = key.partition("/")
        states.setdefault(owner, {})[name] = array
    return dict(states)


def _tensors_of(run: RunState) -> dict[str, Tensors]:
    """Return the tensors of a state by their files; optional files may have no tensors."""
    best, under_way = run.best, run.in_flight
    groups = {
        STATE: flatten(run.state.groups),
        CLIENTS: _of_clients(run),
        DOWNLINK: flatten(run.downlink) or None,
        BEST_MODEL: best.model if best else None,
        IN_FLIGHT: under_way.tensors() if under_way else None,
    }
    return {name: tensors for name, tensors in groups.items() if tensors is not None}


def _of_clients(run: RunState) -> dict[str, torch.Tensor]:
    """Return losses and versions of the clients that have one, so that others cost nothing."""
    history = run.history
    known = np.flatnonzero(~np.isnan(history.losses) | (history.times > 0))
    stateful = np.flatnonzero(run.versions[:, 0] != NEVER[0])
    values = {
        "client": known,
        "loss": history.losses[known],
        "last_round": history.last_round[known],
        "times": history.times[known],
        "state_client": stateful,
        "state_version": run.versions[stateful],
    }
    return {name: torch.from_numpy(array) for name, array in values.items()}


def _cause(error: Exception) -> str:
    """Return an error in one line; a file's error without the errno."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
