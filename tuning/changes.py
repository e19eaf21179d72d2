"""Changes of a published table or figure by its command: fewer runs or rounds, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from raysim.errors import SettingsError
from raysim.user_input import decides_result, override_text


def check_overrides(kind: str, overrides: Mapping[str, Any], fixed: Mapping[str, str]) -> None:
    """Check that overrides hold for all runs of a table or a figure.

    Args:
        kind: "table" or "figure".
        overrides: Settings of all runs by dotted key.
        fixed: Origin of the settings that cannot be changed, by their keys.

    Raises:
        SettingsError: an override is an option of the command, or cannot be changed.
    """
    refusals = {
        "out": f"use the option --out for a {kind}",
        "rounds": f"use the option --rounds for a {kind}, which says that it shortens",
        **{key: f"follows from {source}; leave it out" for key, source in fixed.items()},
    }
    for key, value in overrides.items():
        if key in refusals:
            raise SettingsError(f"{override_text(key, value)}: {refusals[key]}")


def check_rounds(rounds: int, most: int, whose: str) -> None:
    """Check that `--rounds` extends no run.

    Args:
        rounds: The option's value.
        most: The full rounds of the longest run.
        whose: The run with these rounds, in words.

    Raises:
        SettingsError: the option would extend a run.
    """
    if rounds > most:
        raise SettingsError(
            f"--rounds={rounds}: must be at most {most}, the rounds of {whose}; it shortens and"
            " does not extend"
        )


def shortened(rounds: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the rounds of runs, shortened so that the longest has at most `most`.

    All are shortened in proportion, to at least one round.
    """
    longest = max(rounds.values())
    if longest <= most:
        return dict(rounds)
    return {name: max(count * most // longest, 1) for name, count in rounds.items()}


def has_words(only: Sequence[str], text: str) -> bool:
    """Return whether a text has all words of `--only`, repeated or separated by commas.

    Words are whole: `iid` is not in `noniid`, nor `E=1` in `E=10`.
    """
    part = r"[\w.=&'-]"
    words = [word.strip() for option in only for word in option.split(",")]
    return all(
        re.search(rf"(?<!{part}){re.escape(word)}(?!{part})", text, re.IGNORECASE) for word in words
    )


def changed_settings(overrides: Mapping[str, Any]) -> list[str]:
    """Return the note about overrides; empty if they change no result."""
    changed = [
        override_text(*override) for override in overrides.items() if decides_result(override[0])
    ]
    return [f"Settings changed for all runs: {', '.join(changed)}."] if changed else []
