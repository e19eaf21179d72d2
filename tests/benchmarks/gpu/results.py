"""Results of the GPU benchmark: what came of each job so far, in lines of JSON; the last counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME = "results.jsonl"
DONE, UNDER_WAY = "done", "under way"
Row = dict[str, Any]
Emit = Callable[[Sequence[Row]], None]
"""Takes all rows of a job so far, in place of those that it took before."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        job: Its name.
        part: The part of the benchmark that it belongs to.
        state: "done", or why it is not.
        seconds: Seconds that it took.
        rows: Its rows, as far as it came.
        device: The machine's GPU.
    """

    job: str
    part: str
    state: str
    seconds: float
    device: str
    rows: Sequence[Row] = field(default_factory=list)


class Results:
    """The outcomes in a folder; a later one of a job takes the place of those before."""

    def __init__(self, out: Path, device: str) -> None:
        """Read what is there already.

        Raises:
            SystemExit: it is of another GPU.
        """
        self._path, self.device = out / NAME, device
        found = _read(self._path) if self._path.exists() else []
        if others := {each.device for each in found} - {device}:
            raise SystemExit(f"--out {out}: holds results of {', '.join(others)}; name another")
        self.outcomes = {each.job: each for each in found}

    def show(self, outcome: Outcome) -> None:
        """Take an outcome for the page, without keeping it."""
        self.outcomes[outcome.job] = outcome

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.show(outcome)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(asdict(outcome))}\n")

    def is_done(self, job: str) -> bool:
        """Return whether a job need not run again."""
        return job in self.outcomes and self.outcomes[job].state == DONE

    def of(self, *parts: str) -> list[Outcome]:
        """Return the outcomes of some parts."""
        return [each for each in self.outcomes.values() if each.part in parts]


def _read(path: Path) -> list[Outcome]:
    """Return the outcomes in a file; a last line that was not written to its end is removed."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [Outcome(**json.loads(line)) for line in whole.splitlines()]
