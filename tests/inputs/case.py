"""Shape of a case: one command line and the error that it must end with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command line; `KIT` in its words and variables stands for the folder of the kit.

    Attributes:
        words: The words after `raysim`.
        says: Parts of the one line on stderr, in any order.
        code: The exit code; with 0 nothing is said on stderr.
        run: Damage of `tests.inputs.runs` done to a copy of a run, which is the folder `run`.
        variables: Environment variables.
    """

    words: tuple[str, ...]
    says: tuple[str, ...] = ()
    code: int = 2
    run: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [*(f"{name}={value}" for name, value in self.variables.items()), self.run]
        return " ".join(shown(word) for word in (*given, *self.words) if word)


def shown(word: str) -> str:
    """Return a word as it stands in a test's name."""
    plain = word.encode("ascii", "backslashreplace").decode().encode("unicode_escape").decode()
    return plain if len(plain) <= 60 else f"{plain[:40]}..{len(plain)}"


def run(*overrides: str, says: tuple[str, ...], config: str = "KIT/small.toml") -> Case:
    """Return the case of `raysim run` with overrides."""
    return Case(("run", config, *overrides), says)
