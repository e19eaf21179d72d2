"""Checkpoints: safetensors and JSON with checksums, written aside and renamed.

The last two are kept; a damaged one is reported and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysim.core.arrow import checksum
from raysim.core.errors import RunError
from raysim.core.method import ServerState
from raysim.core.tensors import Tensors, contiguous, flatten, unflatten
from raysim.storage.atomic import replace_file, replace_folder

KEPT_CHECKPOINTS = 2
STATE, CLIENTS = "state.safetensors", "clients.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """State of a committed round, from which a run resumes.

    Attributes:
        number: Rounds committed; the number of the next round.
        state: The server's state.
        losses: Train loss of every client's last committed participation [K]; NaN before the first.
        stack_size: Clients that are trained stacked; None where a run has not decided it yet.
    """

    number: int
    state: ServerState
    losses: npt.NDArray[np.float64]
    stack_size: int | None = None


def save_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors atomically as one safetensors file."""
    replace_file(path, lambda aside: save_file(contiguous(tensors), aside))


class Checkpoints:
    """Checkpoints of one run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clean(self) -> None:
        """Delete half-written checkpoints, which a killed run leaves."""
        for half_written in self._folder.glob(".round_*"):
            shutil.rmtree(half_written)

    def save(
        self, checkpoint: Checkpoint, before_rename: Callable[[], object] = lambda: None
    ) -> None:
        """Write a checkpoint and delete all but the last two.

        Args:
            checkpoint: The checkpoint.
            before_rename: Called when it is on disk and not yet found by `latest`.
        """

        def write(folder: Path) -> None:
            save_file(contiguous(flatten(checkpoint.state.groups)), folder / STATE)
            known = np.flatnonzero(~np.isnan(checkpoint.losses))
            losses = {"client": known, "loss": checkpoint.losses[known]}
            save_file({n: torch.from_numpy(v) for n, v in losses.items()}, folder / CLIENTS)
            body = {
                "round": checkpoint.number,
                "info": dict(checkpoint.state.info),
                "stack_size": checkpoint.stack_size,
                "sha256": {name: checksum(folder / name) for name in (STATE, CLIENTS)},
            }
            (folder / "state.json").write_text(json.dumps(_sealed(body), indent=2))

        replace_folder(self._path(checkpoint.number), write, before_rename)
        for number in self.numbers()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(self._path(number))

    def numbers(self) -> list[int]:
        """Return the rounds of the checkpoints there are, ascending."""
        found = (re.fullmatch(r"round_(\d+)", path.name) for path in self._folder.glob("round_*"))
        return sorted(int(match[1]) for match in found if match)

    def latest(self, clients: int, report: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; None if there was never one.

        Damaged ones are renamed to `damaged_round_...`.

        Args:
            clients: K, the number of clients.
            report: Called with a line for every damaged checkpoint.

        Raises:
            RunError: all checkpoints are damaged.
        """
        numbers = self.numbers()
        if not numbers and any(self._folder.glob("round_-*")):
            raise RunError(
                f"{self._folder}: the run was stopped in a pre-pass by the first version; start it"
                " again in another `out`"
            )
        damaged: list[int] = []
        for number in reversed(numbers):
            try:
                checkpoint = self._load(self._path(number), clients)
                self._set_aside(damaged)
                return checkpoint
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                damaged.append(number)
                report(
                    f"{self._path(number)}: checkpoint is damaged ({error}); using the one before"
                )
        if numbers:
            raise RunError(
                f"{self._folder}: every checkpoint is damaged; start the run again in another `out`"
            )
        return None

    def _set_aside(self, numbers: list[int]) -> None:
        for number in numbers:
            path = self._path(number)
            aside = path.with_name(f"damaged_{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.replace(aside)

    def _load(self, folder: Path, clients: int) -> Checkpoint:
        body = json.loads((folder / "state.json").read_text())
        if not isinstance(body, dict) or _sealed(body)["seal"] != body["seal"]:
            raise ValueError("state.json does not match its checksum")
        checksums = body["sha256"]
        if isinstance(checksums, str):  # of the first version, which kept no losses
            checksums = {STATE: checksums}
        for name, expected in checksums.items():
            if checksum(folder / name) != expected:
                raise ValueError(f"{name} does not match its checksum")
        state = ServerState(unflatten(load_file(folder / STATE)), body["info"])
        losses = np.full(clients, np.nan)
        if CLIENTS in checksums:
            found = load_file(folder / CLIENTS)
            losses[found["client"].numpy()] = found["loss"].numpy()
        return Checkpoint(body["round"], state, losses, body.get("stack_size"))

    def _path(self, number: int) -> Path:
        return self._folder / f"round_{number:06d}"


def _sealed(body: dict[str, Any]) -> dict[str, Any]:
    content = {key: value for key, value in body.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "seal": hashlib.sha256(text.encode()).hexdigest()}
