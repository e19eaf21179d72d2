"""A case: random settings that a run accepts, and the ways to run them.

Settings that do not go together are refused before anything starts. What the refusal names is left
out, until the rest is accepted; so no rule of what goes with what is written here again.
"""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import raysim
from tests.combinations.drawing import Drawn, drawn_settings
from tests.combinations.federations import Federation

ROUNDS = 4
ATTEMPTS = 30
"""Refusals after which a case is given up."""
SETTLED: Drawn = {
    "engine.backend": "inline",
    "rounds": ROUNDS,
    "target_accuracy": None,
}
NEEDED = ("method.name", "dataset.name", "dataset.path", "dataset.target", "dataset.client")
NEEDED += ("clients", "fraction", "model.name", "seed", "partition.name")
"""Settings that are not left out to make others valid."""
SMALL = 1e-4
"""Learning rates, and noise of bad clients, with which a case goes on that diverged."""
DIVERGED = ("is not finite", "the largest that masks add")
"""Words of a run that diverged, which random settings may well do."""
REPLACEABLE = ("aggregation", "attack", "clock", "selection", "temperature")
"""Components that are left out as a whole."""


class Quiet(raysim.Listener):
    """Counts rounds; interrupts the run after one of them, if asked to."""

    def __init__(self, stop: int | None = None) -> None:
        self.rounds, self._stop = 0, stop

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.rounds += 1
        if row["round"] == self._stop:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    error: str = ""
    """One line if it was refused or stopped; a traceback if it ended in an error of Python."""
    refused: bool = False
    """Refused before it had a folder."""
    rounds: int = 0
    """Rounds that were done."""

    @property
    def crashed(self) -> bool:
        """Whether it, or one of its clients, ended in an error of Python."""
        return "Traceback" in self.error or "(traceback in" in self.error

    @property
    def diverged(self) -> bool:
        """Whether it ended in a line that says so."""
        return "Traceback" not in self.error and any(words in self.error for words in DIVERGED)


@dataclass
class Case:
    """Settings of a case, and where it runs."""

    seed: int
    number: int
    folder: Path
    settings: Drawn = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """What was refused before the settings were valid."""

    def __post_init__(self) -> None:
        self.draws = Random(f"{self.seed} {self.number}")
        self.folder.mkdir(parents=True)
        self.federation = Federation(self.draws, self.folder)
        drawn = {**drawn_settings(self.number, self.draws), **SETTLED}
        self.settings = {**drawn, **self.federation.settings}

    @property
    def command(self) -> str:
        """What to type to run this case again."""
        return f"python -m tests.combinations --seed {self.seed} --only {self.number}"

    def run(self, name: str, changes: Drawn | None = None, stop: int | None = None) -> Outcome:
        """Run the settings, some of them changed, into a folder of this name."""
        settings = {**self.settings, **(changes or {}), "out": str(self.folder / name)}

        def whole(listener: raysim.Listener) -> None:
            given = raysim.load_config("mnist-fedavg", settings)
            raysim.run(given, self.federation.task(), listener)

        return _outcome(whole, Quiet(stop), self.folder / name)

    def resume(self, name: str, overrides: Drawn | None = None) -> Outcome:
        """Go on with a run."""
        out = self.folder / name

        def rest(listener: raysim.Listener) -> None:
            raysim.resume(out, self.federation.task(), listener, overrides=overrides)

        return _outcome(rest, Quiet(), out)

    def settle(self) -> Outcome:
        """Leave out settings until the whole run is accepted; return how it ended.

        A run that diverges starts again with learning rates, and noise, with which none should.
        """
        outcome = self._accepted()
        if outcome.diverged:
            shutil.rmtree(self.folder / "whole", ignore_errors=True)
            scales = re.compile(r"method\.(.*_)?lr(_.*)?|attack\.std")
            rates = {key for key in self.settings if scales.fullmatch(key)}
            self.settings |= dict.fromkeys({"local.lr", *rates}, SMALL)
            outcome = self._accepted()
        return outcome

    def _accepted(self) -> Outcome:
        """Leave out settings until the whole run is accepted, or diverges in its rehearsal."""
        outcome = self.run("whole")
        while outcome.refused and not outcome.diverged and len(self.refusals) < ATTEMPTS:
            if outcome.crashed:
                break
            self.refusals.append(outcome.error)
            self.settings = self._without(outcome.error)
            outcome = self.run("whole")
        return outcome

    def _without(self, refusal: str) -> Drawn:
        """Return the settings without what a refusal names first; without any if it names none."""
        if refusal.startswith("fraction="):
            return self.settings | {"fraction": 1.0}
        if self.refusals.count(refusal) > 1 and refusal.startswith("method."):
            return self._less("method.")  # a default of the method does not go with the network
        owners = {key: _owner(key) for key in self.settings if key not in (*SETTLED, *NEEDED)}
        places = ((_place(refusal, key), key) for key in owners)
        named = sorted((place, key) for place, key in places if place >= 0)
        if named:
            return self._less(named[0][1])
        droppable = sorted(set(owners.values()))
        return self._less(self.draws.choice(droppable) if droppable else "method.")

    def _less(self, key: str) -> Drawn:
        """Return the settings without a key; a component's name takes its settings with it."""
        prefix = key.removesuffix("name") if key.endswith(".name") else f"{key}."
        kept = {k: v for k, v in self.settings.items() if k != key and not k.startswith(prefix)}
        if key == "method.":  # the method itself does not go with the data
            kept = {k: v for k, v in self.settings.items() if not k.startswith(key)}
            kept["method.name"] = "fedavg"
        return kept

    def clear(self) -> None:
        """Delete its files."""
        shutil.rmtree(self.folder)


def _owner(key: str) -> str:
    """Return the component that a key belongs to, or the key itself."""
    component, dot, _ = key.partition(".")
    return f"{component}.name" if dot and component in REPLACEABLE else key


def _place(refusal: str, key: str) -> int:
    """Return where a refusal names a key, or -1."""
    found = [refusal.find(f"{key}{end}") for end in ("=", ":", ".", " ", ",")]
    return min((place for place in found if place >= 0), default=-1)


def _outcome(run: Any, listener: Quiet, out: Path) -> Outcome:
    """Run; return how it ended."""
    before = out.exists()
    try:
        run(listener)
    except KeyboardInterrupt:
        return Outcome(rounds=listener.rounds)
    except raysim.RaysimError as error:
        refused = not before and not out.exists() and not listener.rounds
        return Outcome(str(error), refused, listener.rounds)
    except Exception:
        return Outcome(traceback.format_exc(), rounds=listener.rounds)
    return Outcome(rounds=listener.rounds)


def cases(seed: int, numbers: Iterator[int] | range, folder: Path) -> Iterator[Case]:
    """Yield cases of a seed one after the other; each one's files are deleted behind it."""
    for number in numbers:
        case = Case(seed, number, folder / f"{seed}-{number}")
        yield case
        case.clear()
