"""The matrix: every file of an interrupted run or study, damaged in every way, and then resumed.

It ends like the undisturbed one, or with one line that says what to do; what the line says is done,
and then it ends so. Anything else is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from tests.faults.damages import DAMAGES, NotApplicableError
from tests.faults.forked import Ended, raysim_command

SAME, ONE_LINE, FAILED, NONE = "same bytes", "one line", "FAILED", "-"
_NUMBERS = count()


class Interrupted(Protocol):
    """An interrupted run or study, and what a user may do with a copy of it.

    Attributes:
        name: Its name in the table.
        path: Where it lies.
    """

    name: str
    path: Path

    def resume(self, path: Path) -> Ended:
        """Resume a copy."""

    def start(self, path: Path) -> Ended:
        """Start it again in another folder."""

    def difference(self, path: Path) -> str | None:
        """Return how a copy that is finished differs from an undisturbed one."""


@dataclass(frozen=True)
class Verdict:
    """What became of a damaged run or study.

    Attributes:
        row: The file, as the table names it.
        damage: One of DAMAGES.
        outcome: SAME, ONE_LINE, FAILED, or NONE where there is no such damage.
        words: The line, or what failed.
    """

    row: str
    damage: str
    outcome: str
    words: str = ""


@dataclass(frozen=True)
class Strike:
    """One damage of one file.

    Attributes:
        of: The interrupted run or study.
        target: The file's path in it.
        damage: One of DAMAGES.
        folder: For the copy that is damaged.
        whole: Where the file is whole, if not in the interrupted one.
    """

    of: Interrupted
    target: Path
    damage: str
    folder: Path
    whole: Path | None = None

    @property
    def row(self) -> str:
        """The file without times, hosts and process ids."""
        named = re.sub(r"(events\.out\.tfevents)\S*", r"\1", str(self.target))
        return f"{self.of.name}: {named}"

    def verdict(self) -> Verdict:
        """Damage a copy, resume it, and judge the end."""
        copy = Copy(self, self.whole or self.of.path)
        try:
            DAMAGES[self.damage](copy.file)
        except NotApplicableError:
            return Verdict(self.row, self.damage, NONE)
        try:
            outcome, words = judge(copy, self.of.resume(copy.path))
            said = " ".join(words.split()).replace(str(copy.path), "RUN")
            return Verdict(self.row, self.damage, outcome, said)
        finally:
            copy.remove()


class Copy:
    """A copy of an interrupted run or study."""

    def __init__(self, strike: Strike, origin: Path) -> None:
        self.strike = strike
        self.path = strike.folder / f"copy-{os.getpid()}-{next(_NUMBERS)}"
        shutil.copytree(origin, self.path, symlinks=True)

    @property
    def file(self) -> Path:
        """The file that the damage strikes."""
        return self.path / self.strike.target

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.rmtree(self.elsewhere, ignore_errors=True)

    @property
    def elsewhere(self) -> Path:
        """Another folder, for a run that is started again."""
        return self.path.with_name(f"{self.path.name}-again")

    def wrong_with(self, ended: Ended) -> str:
        """Return how a run that is to be finished differs from the undisturbed one, or nothing."""
        if ended.code:
            return f"exit code {ended.code}: {last_line(ended.errors)}"
        path = self.elsewhere if self.elsewhere.exists() else self.path
        return self.strike.of.difference(path) or ""


def judge(copy: Copy, ended: Ended) -> tuple[str, str]:
    """Return the outcome of a run that was resumed, and the words for it."""
    if "Traceback" in ended.errors + ended.said:
        return FAILED, f"traceback: {last_line(ended.errors or ended.said)}"
    if not ended.code:
        wrong = copy.wrong_with(ended)
        return (FAILED, f"silent: {wrong}") if wrong else (SAME, "")
    lines = ended.errors.splitlines()
    if ended.code < 0 or len(lines) != 1 or not lines[0].startswith("raysim: "):
        return FAILED, f"exit code {ended.code}, {len(lines)} lines: {last_line(ended.errors)}"
    advised = {pattern: re.search(pattern, lines[0]) for pattern in ADVICE}
    if not any(advised.values()):
        return FAILED, f"says not what to do: {lines[0]}"
    for pattern, found in advised.items():
        if found and (wrong := carry_out(pattern, found, copy)):
            return FAILED, f"not true ({found[0]}: {wrong}): {lines[0]}"
    return ONE_LINE, lines[0]


def carry_out(pattern: str, advised: re.Match[str], copy: Copy) -> str:
    """Do what a line advises; return why it was not true, or nothing."""
    again = Copy(copy.strike, copy.path)
    try:
        text = advised[0].replace(str(copy.path), str(again.path))
        return again.wrong_with(ADVICE[pattern](again, text))
    finally:
        again.remove()


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1]


def _type(copy: Copy, advice: str) -> Ended:
    return raysim_command(*advice.split()[1:])


def _delete(copy: Copy, advice: str) -> Ended:
    _remove(copy.file)
    return copy.strike.of.resume(copy.path)


def _restore(copy: Copy, advice: str) -> Ended:
    """Restore a file, and those that belong to it: a database and its write-ahead log."""
    original = (copy.strike.whole or copy.strike.of.path) / copy.strike.target
    copy.file.parent.mkdir(parents=True, exist_ok=True)
    for whole in original.parent.glob(f"{original.name.removesuffix('-wal')}*"):
        file = copy.file.with_name(whole.name)
        _remove(file)
        shutil.copytree(whole, file) if whole.is_dir() else shutil.copy2(whole, file)
    return copy.strike.of.resume(copy.path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _start_again(copy: Copy, advice: str) -> Ended:
    return copy.strike.of.start(copy.elsewhere)


def _compare(copy: Copy, advice: str) -> Ended:
    return Ended(0, "", "")


ADVICE: Mapping[str, Callable[[Copy, str], Ended]] = {
    r"(?<!fix this, then type: )\braysim resume [^;`)]*": _type,
    r"\b(?:delete|remove|move|fix this)\b": _delete,
    r"\brestore\b": _restore,
    r"\buse the newer\b": _restore,
    r"\banother `?(?:--)?out\b`?": _start_again,
    r"\banother --name \(and --out\b": _start_again,
    r"\bthe run is finished\b": _compare,
}
"""What a line may advise, and how it is carried out."""
