"""Sweeps: tables of one's own, from settings with several values or from a TOML file.

A setting with several values is an axis. Rows are the first axis, columns the combinations of the
others. A file names rows and columns itself, has axes beside or in place of them, and seeds:

    preset = "mnist-noniid"
    seeds = "0..4"
    settings = { rounds = 100 }
    rows = [
        { name = "FedAvg", settings = { method.name = "fedavg" } },
        { name = "FedProx", settings = { method.name = "fedprox", method.mu = 0.1 } },
    ]
    [axes]
    "partition.shards_per_client" = [1, 2]

A row or a column may have a preset of its own, and a column a metric. Values on a command line are
separated by commas outside of brackets, braces and quotes, and `0..4` is a range of whole numbers,
its ends included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from raysim.core.errors import SettingsError, visible
from raysim.core.user_input import (
    decides_result,
    dotted,
    may_change,
    override_text,
    portable_name,
    read_file,
    user_path,
)
from raysim.workloads.papers.table import PaperCell, PaperTable

METRIC = "final(test_accuracy)"
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
LIMITS = re.compile(rf"({NUMBER})\.\.({NUMBER})(:log)?")
MOST_VALUES = 10_000
"""Most values of a range, and most cells of a sweep."""
OPENING, CLOSING = "[{(", "]})"
FILE_KEYS = ("rows", "columns", "axes", "tune")
"""Keys of a file of a sweep, of which one of settings has none."""


class _Line(BaseModel):
    """A row or a column; a column may have a metric of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    preset: str = ""
    metric: str = ""
    settings: dict[str, Any] = {}


class _File(BaseModel):
    """A sweep in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    title: str = ""
    metric: str = METRIC
    metrics: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    seeds: int | str | tuple[int, ...] | None = None
    rows: tuple[_Line, ...] = ()
    columns: tuple[_Line, ...] = ()
    axes: dict[str, tuple[Any, ...] | str] = {}
    tune: dict[str, Any] = {}


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
    return [each for value in values for each in _in_range(value.strip())]


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
        key, values = _override(text)
        if key == "seed":
            seeds = _seeds_of(",".join(map(str, values)))
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
            space[key] = _override(text)[1]
    return ({"space": space} if space else {}) | ({} if trials is None else {"trials": trials})


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def read_sweep(
    config: str,
    settings: Mapping[str, Any] | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    metrics: Sequence[str] = (),
    tune: Mapping[str, Any] | None = None,
    by: str = "",
) -> PaperTable:
    """Return the table of a sweep.

    Args:
        config: A preset, or a file of settings or of a sweep.
        settings: Settings of all cells by dotted key.
        axes: Values of settings that differ between cells, by dotted key, in order.
        seeds: The seeds, which follow each other.
        metrics: Metrics of the cells, each in columns of its own; none takes the file's.
        tune: Keys of the table `[tune]`, in place of the file's.
        by: The axis that makes the rows; "" takes the first.

    Raises:
        SettingsError: a setting or the file is wrong.
    """
    given = _from_file(config) or _File(preset=config)
    axes = {**given.axes, **(axes or {})}
    _check_keys(given, settings or {}, axes)
    settings = {**dotted(given.settings), **(settings or {})}
    seeds = _seeds_of(given.seeds if seeds is None else seeds)
    lines = {key: _lines_of(key, values) for key, values in axes.items()}
    rows, parts = [*given.rows], [[*given.columns]] if given.columns else []
    if not rows:
        by = by or next(iter(lines), "")
        if by and by not in lines:
            raise SettingsError(f"--rows={visible(by)}: must be one of {', '.join(lines)}")
        rows = lines.pop(by) if by else [_Line(name="all")]
    elif by:
        raise SettingsError(f"--rows={visible(by)}: the file gives the rows")
    columns = [*product(*parts, *lines.values())]
    first_seed, count = _consecutive(seeds) if seeds else (None, 1)
    if first_seed is not None:
        settings["seed"] = first_seed
    tune = {**given.tune, **(tune or {})}
    changes = {"settings": settings, "rows": tuple(rows), "tune": tune}
    own = given.model_copy(update=changes)
    asked = metrics or given.metrics or [given.metric]
    return _table(config, own, columns, asked, count)


def default_folder(config: str | Path) -> Path:
    """Return the folder of a sweep that is given none."""
    return Path("runs") / f"{Path(config).stem}-sweep"


def differs_by_cell(key: str) -> bool:
    """Return whether cells of a sweep may differ in a setting: their results depend on it."""
    return key != "out" and (not may_change(key) or decides_result(key) or key == "reference")


def _check_keys(
    given: _File, settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]
) -> None:
    """Check which settings rows, columns, axes and the command set.

    Raises:
        SettingsError: two of them set one, or cells would differ in one that makes no difference.
    """
    owners = {
        "a row": {key for row in given.rows for key in dotted(row.settings)},
        "a column": {key for column in given.columns for key in dotted(column.settings)},
        "an axis": {*axes},
    }
    for owner, keys in owners.items():
        for key in sorted(keys):
            if key == "seed" or not differs_by_cell(key):
                raise SettingsError(f"{visible(key)}: {owner} of a sweep cannot set it")
    if "out" in {*settings, *dotted(given.settings)}:
        raise SettingsError("out: use the option --out for a sweep")
    if own := [row.name for row in given.rows if row.metric]:
        raise SettingsError(f"{visible(own[0])}: a row has no metric of its own, as a column may")
    if empty := [key for key, values in axes.items() if not values]:
        raise SettingsError(f"{visible(empty[0])}: an axis must have a value")
    owners["the command"] = {*settings}
    for (one, keys), (other, others) in combinations(owners.items(), 2):
        for key in sorted(keys):
            if any(f"{key}.".startswith(f"{k}.") or f"{k}.".startswith(f"{key}.") for k in others):
                raise SettingsError(f"{visible(key)}: is set by {one} and by {other}")


def _columns(
    combined: Sequence[Sequence[_Line]], metrics: Sequence[str]
) -> Iterator[tuple[list[str], Sequence[_Line], str]]:
    """Yield the parts of each column's name, its lines, and its metric."""
    for lines in combined:
        own = [line.metric for line in lines if line.metric][:1] or metrics
        for metric in own:
            names = [line.name for line in lines] + [metric] * (len(own) > 1)
            yield names or [metric], lines, metric


def _table(
    config: str,
    given: _File,
    combined: Sequence[Sequence[_Line]],
    metrics: Sequence[str],
    seeds: int,
) -> PaperTable:
    """Return the table of rows and columns: a line of each axis combined, again for each metric."""
    names = [row.name for row in given.rows]
    parts = [*_columns(combined, metrics)]
    units = {unit_of(metric) for *_, metric in parts}
    unit = units.pop() if len(units) == 1 else None
    columns = {" ".join(each): (lines, metric) for each, lines, metric in parts}
    for kind, lines in (("rows", names), ("columns", [" ".join(each) for each, *_ in parts])):
        if twice := next((name for name in lines if lines.count(name) > 1), ""):
            raise SettingsError(f"{visible(twice)}: two {kind} have this name")
    if (count := len(names) * len(parts)) > MOST_VALUES:
        raise SettingsError(f"{count} cells: must be at most {MOST_VALUES}")
    return PaperTable(
        name=f"{portable_name(Path(config).stem)}-sweep",
        title=given.title or f"Sweep of {Path(config).stem}",
        paper=None,
        reference="",
        metric=metrics[0],
        unit=unit or "",
        rows=tuple(names),
        columns=tuple(columns),
        cells=tuple(
            PaperCell(
                row=row.name,
                column=name,
                preset=next(each for each in (row.preset, *_presets(lines), given.preset) if each),
                settings=_settings_of(given, *lines, row),
                metric="" if metric == metrics[0] else metric,
                unit=unit_of(metric) if unit is None else None,
            )
            for row in given.rows
            for name, (lines, metric) in columns.items()
        ),
        groups={" ".join(p): (" ".join(p[:-1]), p[-1]) for p, *_ in parts if len(p) > 1},
        seeds=seeds,
        row_keys={row.name: frozenset(dotted(row.settings)) for row in given.rows},
        tune=given.tune,
    )


def _presets(lines: Sequence[_Line]) -> list[str]:
    return [line.preset for line in lines]


def _settings_of(*lines: _File | _Line) -> dict[str, Any]:
    """Return the settings of a cell, by dotted key: those of the sweep, its column and its row."""
    settings = {k: v for line in lines for k, v in dotted(line.settings).items()}
    return {key: None if value == "none" else value for key, value in settings.items()}


def unit_of(metric: str) -> str:
    """Return the unit of a metric: percent of an accuracy, else none."""
    if metric.startswith(("rounds_to", "bytes_to", "seconds_to")):
        return "rounds" if metric.startswith("rounds") else ""
    return "%" if re.search(r"accuracy|f1", metric) else ""


def _from_file(config: str) -> _File | None:
    """Return the sweep of a file; None where it is no file, or one of settings.

    Raises:
        SettingsError: the file has an unknown key or lacks one.
    """
    if Path(config).suffix != ".toml":
        return None
    values = read_file(user_path(config))
    if not {*FILE_KEYS} & values.keys():
        return None
    try:
        given = _File.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{config}: {visible(place)}: {first['msg']}") from error
    beside = user_path(config).parent / given.preset
    return given.model_copy(update={"preset": str(beside)}) if beside.is_file() else given


def _override(text: str) -> tuple[str, list[Any]]:
    """Return the key of a setting and its values."""
    from raysim.config import parse_override

    key, equals, values = text.partition("=")
    if not equals:
        parse_override(text)  # raises
    return key.strip(), [parse_override(f"{key}={each}")[1] for each in split_values(values)]


def _lines_of(key: str, values: Sequence[Any] | str) -> list[_Line]:
    """Return a line for each value of an axis."""
    if isinstance(values, str):
        _, values = _override(f"{key}={values}")
    short = key.rpartition(".")[2]
    named = [str(v) if short == "name" else override_text(short, v) for v in values]
    return [
        _Line(name=name, settings={key: value}) for name, value in zip(named, values, strict=True)
    ]


def _seeds_of(given: int | str | Sequence[int] | None) -> list[int]:
    """Return the seeds; an int is their number, from 0 on."""
    if given is None:
        return []
    if isinstance(given, int):
        given = f"0..{given - 1}" if given > 0 else str(given - 1)
    texts = split_values(given) if isinstance(given, str) else [*map(str, given)]
    if not texts or not all(re.fullmatch(r"\d+", text) for text in texts):
        raise SettingsError(f"seed={visible(','.join(texts))}: must be whole numbers from 0 on")
    return [*map(int, texts)]


def _consecutive(seeds: Sequence[int]) -> tuple[int, int]:
    """Return the first of seeds that follow each other, and their number.

    Raises:
        SettingsError: they do not.
    """
    if [*seeds] != [*range(seeds[0], seeds[0] + len(seeds))]:
        text = ",".join(map(str, seeds))
        raise SettingsError(f"seed={text}: must follow each other, as in seed=0..4")
    return seeds[0], len(seeds)
