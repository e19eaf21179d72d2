"""Copies of a study's folder while it runs: what a tuner leaves that is killed at that moment."""

from __future__ import annotations

import os
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
    """Copies of a folder, made before each write, or before each that `every` divides.

    Attributes:
        seen: The writes so far.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        self.seen: list[str] = []
        self._folder, self._every = folder, every
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
                write = self._copying(getattr(storage._database, name), lambda *_, name=name: name)
                change.setattr(storage._database, name, write)
            yield

    @contextmanager
    def before_files(self) -> Iterator[None]:
        """Make copies before the files and folders of trials are put in place."""
        with pytest.MonkeyPatch.context() as change:
            change.setattr(os, "replace", self._copying(os.replace, _file_of_a_trial))
            yield

    def _copying(
        self, write: Callable[..., Any], name_of: Callable[..., str | None]
    ) -> Callable[..., Any]:
        def copy_and_write(*arguments: Any, **named: Any) -> Any:
            if (name := name_of(*arguments)) is not None:
                if (len(self.seen) + 1) % self._every == 0:
                    shutil.copytree(self._folder, self._kept / str(len(self.seen)), symlinks=True)
                self.seen.append(name)
            return write(*arguments, **named)

        return copy_and_write


def _file_of_a_trial(source: Any, target: Any) -> str | None:
    return str(target) if "trials" in Path(target).parts else None
