"""Values of settings as `raysim sweep` takes them: axes, seeds, and ranges to search.

Values are separated by commas outside of brackets, braces and quotes, and `0..4` is a range of
whole numbers, its ends included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from raysim.errors import SettingsError, visible

RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
LIMITS = re.compile(rf"({NUMBER})\.\.({NUMBER})(:log)?")
MOST_VALUES = 10_000
"""Most values of a range."""
OPENING, CLOSING = "[{(", "]})"


def split_values(text: str) -> list[str]:
    """Return the values of a setting on a command line, each as its text; a range as its numbers.

    Raises:
        SettingsError: a range is empty or too long.
    """
    values, depth, quote, start = list[str](), 0, "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[at - 1] != "\\" else quote
        elif character == '"':
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            values.append(text[start:at])
            start = at + 1
    values.append(text[start:])
    return [part for value in values for part in _in_range(value.strip())]


def _in_range(text: str) -> list[str]:
    """Return the numbers of a range, or a text that is none."""
    if not (match := RANGE.fullmatch(text)):
        return [text]
    first, last = map(int, match.groups())
    if not 0 <= last - first < MOST_VALUES:
        raise SettingsError(f"{text}: a range has its smaller end first, and {MOST_VALUES} at most")
    return [*map(str, range(first, last + 1))]


def parse_axes(
    overrides: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Sequence[Any]], list[int] | None]:
    """Return settings, axes and seeds, given as `dotted.key=value` and `dotted.key=A,B`.

    Raises:
        SettingsError: one is written otherwise.
    """
    settings, axes, seeds = dict[str, Any](), dict[str, Sequence[Any]](), None
    for text in overrides:
        key, values = override_values(text)
        if key == "seed":
            seeds = seeds_of(",".join(map(str, values)))
        elif len(values) > 1:
            axes[key] = values
        else:
            (settings[key],) = values
    return settings, axes, seeds


def parse_ranges(ranges: Sequence[str], trials: int | None) -> dict[str, Any]:
    """Return a table `[tune]` of ranges, as `key=LOW..HIGH`, `key=LOW..HIGH:log` or `key=A,B`.

    Args:
        ranges: The ranges.
        trials: Trials of each search; None takes the default.

    Raises:
        SettingsError: a range is written otherwise, or there are trials without a range.
    """
    space: dict[str, Any] = {}
    for text in ranges:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise SettingsError(f"--tune={visible(text)}: is written KEY=LOW..HIGH, or KEY=A,B")
        if key in space:
            raise SettingsError(f"--tune={visible(text)}: {visible(key)} has a range already")
        if match := LIMITS.fullmatch(values):
            low, high = map(_number, match.groups()[:2])
            space[key] = {"low": low, "high": high, "log": bool(match[3])}
        else:
            space[key] = override_values(text)[1]
    return ({"space": space} if space else {}) | ({} if trials is None else {"trials": trials})


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def override_values(text: str) -> tuple[str, list[Any]]:
    """Return the key of a setting and its values; words in brackets are a list without quotes."""
    from raysim.config import parse_override

    key, equals, values = text.partition("=")
    if not equals:
        parse_override(text)  # raises
    parsed = [parse_override(f"{key}={value}")[1] for value in split_values(values)]
    return key.strip(), [_listed(value) for value in parsed]


def _listed(value: Any) -> Any:
    """Return words in brackets as a list, which is no JSON, and other values as they are."""
    if not (isinstance(value, str) and value[:1] == "[" and value[-1:] == "]"):
        return value
    return [word.strip() for word in value[1:-1].split(",")]


def seeds_of(chosen: int | str | Sequence[int], key: str = "seed") -> list[int]:
    """Return seeds, which need not follow each other; an int is their number, from 0 on.

    Args:
        chosen: The seeds.
        key: Their key, for errors.

    Raises:
        SettingsError: one is no whole number, or is given twice; or there are none.
    """
    if isinstance(chosen, int):
        if not 0 < chosen <= MOST_VALUES:
            raise SettingsError(f"{key}={chosen}: must be from 1 to {MOST_VALUES}")
        return [*range(chosen)]
    texts = split_values(chosen) if isinstance(chosen, str) else [*map(str, chosen)]
    shown = f"{key}={visible(','.join(texts))}"
    if not texts or not all(re.fullmatch(r"\d+", text) for text in texts):
        raise SettingsError(f"{shown}: must be whole numbers from 0 on")
    seeds = [*map(int, texts)]
    if len({*seeds}) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise SettingsError(f"{shown}: has {twice} twice")
    return seeds


def counted(seeds: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the first of seeds, and the distances of all from it."""
    return seeds[0], tuple(seed - seeds[0] for seed in seeds)
