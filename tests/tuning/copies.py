"""Copies of a study's folder while it runs: what a tuner leaves that is killed at that moment."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raysim.tuning.search.search import Search

WRITES = (
    "create_new_trial",
    "set_trial_param",
    "set_trial_intermediate_value",
    "set_trial_system_attr",
    "set_trial_user_attr",
    "set_trial_state_values",
)


class Copies:
    """Copies of a folder, made before each write.

    Attributes:
        seen: The writes so far.
    """

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self._folder = folder
        self._kept = folder.with_name(f"{folder.name}-copies")

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Put the copies in the folder's place, one after another; yield number and write."""
        for number in sorted(int(path.name) for path in self._kept.iterdir()):
            self.put_back(number)
            yield number, self.seen[number]

    def put_back(self, number: int) -> None:
        """Put the copy that was made before a write in the folder's place."""
        shutil.rmtree(self._folder)
        (self._kept / str(number)).rename(self._folder)

    @contextmanager
    def before_writes(self, search: Search) -> Iterator[None]:
        """Make copies before the writes to a study's storage."""
        storage: Any = search.study._storage
        with pytest.MonkeyPatch.context() as change:
            for name in WRITES:
                write = self._copying(name, getattr(storage._database, name))
                change.setattr(storage._database, name, write)
            yield

    def _copying(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_write(*arguments: Any, **named: Any) -> Any:
            shutil.copytree(self._folder, self._kept / str(len(self.seen)), symlinks=True)
            self.seen.append(name)
            return write(*arguments, **named)

        return copy_and_write
