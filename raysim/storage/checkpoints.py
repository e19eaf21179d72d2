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

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysim.core.arrow import checksum
from raysim.core.errors import RunError
from raysim.core.method import ServerState
from raysim.core.tensors import Tensors, contiguous, flatten, unflatten
from raysim.storage.atomic import replace_file, replace_folder

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Server state after a committed round.

    Attributes:
        number: Number of committed rounds, which is the number of the next round.
        state: The server state.
    """

    number: int
    state: ServerState


def save_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors atomically as one safetensors file."""
    replace_file(path, lambda aside: save_file(contiguous(tensors), aside))


class Checkpoints:
    """Checkpoints of one run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for half_written in folder.glob(".round_*"):
            shutil.rmtree(half_written)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and delete all but the last two."""

        def write(folder: Path) -> None:
            tensors = flatten(checkpoint.state.groups)
            save_file(contiguous(tensors), folder / "state.safetensors")
            body = {
                "round": checkpoint.number,
                "info": dict(checkpoint.state.info),
                "sha256": checksum(folder / "state.safetensors"),
            }
            (folder / "state.json").write_text(json.dumps(_sealed(body), indent=2))

        replace_folder(self._path(checkpoint.number), write)
        for number in self.numbers()[:-KEPT]:
            shutil.rmtree(self._path(number))

    def numbers(self) -> list[int]:
        """Return the rounds of the existing checkpoints, ascending."""
        found = (re.fullmatch(r"round_(-?\d+)", path.name) for path in self._folder.glob("round_*"))
        return sorted(int(match[1]) for match in found if match)

    def latest(self, report: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint; None if there are no checkpoints.

        Damaged ones are renamed to `damaged_round_...`.

        Args:
            report: Called with a message for every damaged checkpoint.

        Raises:
            RunError: all checkpoints are damaged.
        """
        numbers = self.numbers()
        damaged: list[int] = []
        for number in reversed(numbers):
            try:
                checkpoint = self._load(self._path(number))
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

    def _load(self, folder: Path) -> Checkpoint:
        body = json.loads((folder / "state.json").read_text())
        if not isinstance(body, dict) or _sealed(body)["seal"] != body["seal"]:
            raise ValueError("state.json does not match its checksum")
        if checksum(folder / "state.safetensors") != body["sha256"]:
            raise ValueError("state.safetensors does not match its checksum")
        groups = unflatten(load_file(folder / "state.safetensors"))
        return Checkpoint(body["round"], ServerState(groups, body["info"]))

    def _path(self, number: int) -> Path:
        return self._folder / f"round_{number:06d}"


def _sealed(body: dict[str, Any]) -> dict[str, Any]:
    content = {key: value for key, value in body.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "seal": hashlib.sha256(text.encode()).hexdigest()}
