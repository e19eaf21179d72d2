"""Sweeps: custom tables, from settings with several values or from a TOML file.

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

It has the keys of a paper's table, too, such as `values`: see `papers.table_file`. An entry of a
paper's file is a sweep once it stands in a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from raysim.errors import SettingsError, told_of, visible
from raysim.user_input import (
    as_typed,
    decides_result,
    dotted,
    may_change,
    portable_name,
    read_file,
    short_name,
    user_path,
)
from raysim.workloads.papers.table import PaperCell, PaperTable
from raysim.workloads.papers.table_file import (
    METRIC,
    SEEDS,
    Line,
    TableEntry,
    combined,
    to_table,
    validated,
)
from raysim.workloads.presets import PRESETS
from raysim.workloads.sweep_values import MOST_VALUES, counted, override_values, seeds_of

FILE_KEYS = ("rows", "columns", "axes", "tune", "table")
"""Keys of a file of a sweep; a file of settings has none of them."""
STOPS = ("target_accuracy", "patience")
"""Settings that stop a run before its last round."""


def read_sweep(
    config: str,
    settings: Mapping[str, Any] | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | str | Sequence[int] | None = None,
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
        seeds: The seeds, or their number; the first is that of searches. None takes the file's;
            without any, they count up from the setting: one, or SEEDS with a `reference`.
        metrics: Metrics of the cells, each in columns of its own; none takes the file's, or else
            the mean of the main score over the last ten rounds.
        tune: Keys of the table `[tune]`, in place of the file's.
        by: The axis that makes the rows; "" takes the first.

    Raises:
        SettingsError: a setting or the file, which is then named, is wrong.
    """
    from_file = _from_file(config)
    with told_of(f"{config}: " if from_file else ""):
        entry, more = from_file or TableEntry(preset=config), (settings, axes, seeds)
        table = _table(entry, config, *more, metrics=metrics, tune=tune, by=by)
        asked = metrics or entry.metrics or "metric" in entry.model_fields_set
        if not asked and (metric := _main_metric(table)) != METRIC:
            table = _table(entry, config, *more, metrics=[metric], tune=tune, by=by)
    return table


def _table(
    of_file: TableEntry,
    config: str,
    settings: Mapping[str, Any] | None,
    axes: Mapping[str, Sequence[Any]] | None,
    seeds: int | str | Sequence[int] | None,
    *,
    metrics: Sequence[str],
    tune: Mapping[str, Any] | None,
    by: str,
) -> PaperTable:
    """Return the table of a sweep; see `read_sweep`."""
    axes = {**of_file.axes, **(axes or {})}
    _check_keys(of_file, settings or {}, axes)
    of_entry, settings = dotted(of_file.settings), settings or {}
    _check_seeds(of_entry, of_file.seeds)
    seeds = of_file.seeds if seeds is None else seeds
    _check_seeds(settings, seeds)
    settings = {**of_entry, **settings}
    distances: Sequence[int] = range(SEEDS if of_file.reference else 1)
    if seeds is not None:
        settings["seed"], distances = counted(seeds_of(seeds, "seeds"))
    lines = {key: _lines_of(key, values, [*axes]) for key, values in axes.items()}
    rows, parts = of_file.rows, [of_file.columns] if of_file.columns else []
    if not rows:
        by = by or next(iter(lines), "")
        if by and by not in lines:
            raise SettingsError(f"--rows={visible(by)}: must be one of {', '.join(lines)}")
        named = lines.pop(by) if by else [Line(name="all")]
        rows = tuple(Line(name=line.name, settings=line.settings) for line in named)
    elif by:
        raise SettingsError(f"--rows={visible(by)}: the file gives the rows")
    asked = [*(metrics or of_file.metrics or [of_file.metric])]
    columns, groups = _columns(product(*parts, *lines.values()), asked)
    if (count := len(rows) * len(columns)) > MOST_VALUES:
        raise SettingsError(f"{count} cells: must be at most {MOST_VALUES}")
    stem = short_name(config)
    changes = {"settings": settings, "rows": rows, "metric": asked[0]}
    changes["name"] = of_file.name or f"{portable_name(stem)}-sweep"
    changes["title"] = of_file.title or f"Sweep of {stem}"
    entry = of_file.model_copy(update=changes)
    tune = {**of_file.tune, **(tune or {})}
    return _to_the_end(to_table(entry, columns, distances, groups, tune))


def _to_the_end(table: PaperTable) -> PaperTable:
    """Return a sweep whose runs go to their last round, unless it gives a rule that stops them.

    A preset's own rule would cut them, by a score, before the values that are compared. It stays if
    all metrics of its cells are of the rounds until its target.
    """
    stops = {preset: _stops_of(preset) for preset in dict.fromkeys(c.preset for c in table.cells)}
    for preset, overrides in stops.items():
        target, built = (
            overrides.get("target_accuracy"),
            [c for c in table.cells if c.preset == preset],
        )
        if target is not None and all(_is_until(target, table.metric_of(c), c) for c in built):
            del overrides["target_accuracy"]
    cells = [
        replace(cell, settings={**dict.fromkeys(stops[cell.preset]), **cell.settings})
        for cell in table.cells
    ]
    notes = [
        f"Runs do not stop at {key}={value:g} of {preset}; to stop them there, set it."
        for preset, rules in stops.items()
        for key, value in rules.items()
        if any(key not in cell.settings for cell in table.cells if cell.preset == preset)
    ]
    return replace(table, cells=tuple(cells), notes=(*table.notes, *notes))


def _stops_of(preset: str) -> dict[str, Any]:
    """Return the rules that stop runs which a preset gives, also to a file that is built on it."""
    values: dict[str, Any] = {"preset": preset}
    if preset not in PRESETS:
        with suppress(SettingsError):  # of a file that is wrong, which the plan names
            values = read_file(user_path(preset))
    base = PRESETS.get(str(values.get("preset")))
    base_values = base.values if base else {}
    return {
        key: base_values[key]
        for key in STOPS
        if base_values.get(key) is not None and key not in values
    }


def _is_until(target: float, metric: str, cell: PaperCell) -> bool:
    """Return whether runs that stop at a target accuracy have the values of a metric.

    They stop at their main score; False if settings are wrong, which the plan says with a row.
    """
    from raysim.results.metrics import parse_metric  # which import torch
    from raysim.storage.declared import is_main_score

    try:
        parsed = parse_metric(metric)
        sought = 0 < (parsed.target or 0) <= target
        return sought and is_main_score(cell.resolve(), parsed.column)
    except SettingsError:
        return False


def _main_metric(table: PaperTable) -> str:
    """Return the mean over the last ten rounds of the main score that all cells have.

    Where cells are not evaluated alike, or settings are wrong, which the plan says with the name of
    a row, it is METRIC.
    """
    from raysim.storage.declared import deploys_own_models, main_score_of  # which import torch

    try:
        settings = [cell.resolve() for cell in table.cells]
        own_models = any(map(deploys_own_models, settings))
        scores = {main_score_of(cell_settings, own_models=own_models) for cell_settings in settings}
    except SettingsError:
        return METRIC
    score = scores.pop() if len(scores) == 1 else None
    return f"last_ten({score.name})" if score else METRIC


def check_axes(table: PaperTable, axes: Mapping[str, Sequence[Any]]) -> None:
    """Check that no axis given as text has plain values of a setting that is a list.

    Elsewhere such values with commas are one list.

    Raises:
        SettingsError: an axis has.
    """
    try:
        settings = dotted(table.cells[0].resolve().to_dict())
    except SettingsError:  # which the plan raises, with the name of its row
        return
    for key, values in axes.items():
        plain = [value for value in values if isinstance(value, str) and value[:1] != "["]
        if plain and isinstance(settings.get(key), list | tuple):
            text, one_by_one = ",".join(map(str, values)), ",".join(f"[{v}]" for v in values)
            raise SettingsError(
                f"{key}={visible(text)}: is a list; for one list write"
                f" {key}={visible(f'[{text}]')}, for an axis of lists {key}={visible(one_by_one)}"
            )


def default_folder(config: str | Path, settings: Mapping[str, Any]) -> Path:
    """Return the folder of a sweep that is given none: of its preset, and of the data it is on.

    Args:
        config: The preset or file.
        settings: Settings of all cells by dotted key.
    """
    path = settings.get("dataset.path")
    data = [portable_name(Path(path).stem)] if isinstance(path, str) else []
    return Path("runs") / "-".join([short_name(config), *data, "sweep"])


def differs_by_cell(key: str) -> bool:
    """Return whether cells of a sweep may differ in a setting: their results depend on it."""
    return key != "out" and (not may_change(key) or decides_result(key) or key == "reference")


def _check_keys(
    entry: TableEntry, settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]
) -> None:
    """Check which settings rows, columns, axes and the command set.

    Raises:
        SettingsError: two of them set one, or cells would differ in one that makes no difference.
    """
    owners = {
        "a row": {key for row in entry.rows for key in dotted(row.settings)},
        "a column": {key for column in entry.columns for key in dotted(column.settings)},
        "an axis": {*axes},
    }
    for owner, keys in owners.items():
        for key in sorted(keys):
            if key == "seed" or not differs_by_cell(key):
                hint = "; `seeds` gives the seeds of all cells" if key == "seed" else ""
                raise SettingsError(f"{visible(key)}: {owner} of a sweep cannot set it{hint}")
    if "out" in {*settings, *dotted(entry.settings)}:
        raise SettingsError("out: use the option --out for a sweep")
    if empty := [key for key, values in axes.items() if not values]:
        raise SettingsError(f"{visible(empty[0])}: an axis must have a value")
    owners["the command"] = {*settings}
    for (one, keys), (other, others) in combinations(owners.items(), 2):
        for key in sorted(keys):
            if any(f"{key}.".startswith(f"{k}.") or f"{k}.".startswith(f"{key}.") for k in others):
                raise SettingsError(f"{visible(key)}: is set by {one} and by {other}")


def _check_seeds(settings: Mapping[str, Any], seeds: int | str | Sequence[int] | None) -> None:
    """Check that settings have no `seed` where there are seeds.

    Raises:
        SettingsError: they have.
    """
    if seeds is not None and "seed" in settings:
        shown = seeds if isinstance(seeds, int | str) else [*seeds]
        raise SettingsError(
            f"seed={visible(str(settings['seed']))}: seeds={visible(str(shown))} gives the seeds;"
            " leave one of them out"
        )


def _columns(
    products: Iterable[tuple[Line, ...]], metrics: Sequence[str]
) -> tuple[list[Line], dict[str, tuple[str, str]]]:
    """Return the columns: a line of each axis combined, again for each metric; and their groups."""
    columns, groups = list[Line](), dict[str, tuple[str, str]]()
    for lines in products:
        metrics_of_lines = [line.metric for line in lines if line.metric][:1] or metrics
        for metric in metrics_of_lines:
            names = [*(line.name for line in lines), *[metric] * (len(metrics_of_lines) > 1)] or [
                metric
            ]
            columns.append(combined(lines, " ".join(names), metric))
            if len(names) > 1:
                groups[columns[-1].name] = (" ".join(names[:-1]), names[-1])
    return columns, groups


def _from_file(config: str) -> TableEntry | None:
    """Return the sweep of a file; None where it is no file, or one of settings.

    Raises:
        SettingsError: the file has an unknown key or lacks one, or has several tables.
    """
    if Path(config).suffix != ".toml":
        return None
    values = read_file(user_path(config))
    if isinstance(tables := values.get("table"), list):
        if len(tables) != 1 or len(values) > 1 or not isinstance(tables[0], dict):
            raise SettingsError(
                f"{config}: must have one [[table]], with its [[table.rows]], and nothing beside"
                f" it; has {len(tables)} and {len(values) - 1} other keys"
            )
        (values,) = tables
    if not {*FILE_KEYS} & values.keys():
        return None
    with told_of(f"{config}: "):
        entry = validated(values)
    changes = {"preset": _preset(config, entry.preset)}
    lines = {"rows": entry.rows, "columns": entry.columns}
    return entry.model_copy(update=changes | {k: _beside(config, v) for k, v in lines.items()})


def _beside(config: str, lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return lines whose presets are found next to a file."""
    changes = ({"preset": _preset(config, line.preset)} for line in lines)
    return tuple(
        line.model_copy(update=change) for line, change in zip(lines, changes, strict=True)
    )


def _preset(config: str, preset: str) -> str:
    """Return a preset, or the path of the one that lies next to a file."""
    beside = user_path(config).parent / preset
    return str(beside) if beside.is_file() else preset


def _lines_of(key: str, values: Sequence[Any] | str, axes: Sequence[str]) -> list[Line]:
    """Return a line for each value of an axis; it is named in full where another ends likewise."""
    if isinstance(values, str):
        _, values = override_values(f"{key}={values}")
    short = key.rpartition(".")[2]
    if short != "name" and [axis.rpartition(".")[2] for axis in axes].count(short) > 1:
        short = key
    return [Line(name=_named(short, value), settings={key: value}) for value in values]


def _named(short: str, value: Any) -> str:
    """Return the name of an axis's value: that of a component, or the setting as it is typed."""
    if isinstance(value, list | tuple):
        return f"{short}=[{','.join(map(str, value))}]"
    return as_typed(value) if short == "name" else f"{short}={as_typed(value)}"
