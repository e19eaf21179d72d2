"""`raysim.sweep`: settings with several values, each over the same seeds, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysim.display.notebook import styled
from raysim.errors import SettingsError
from raysim.notebook.lines import shown_lines
from raysim.results.metrics import parse_metric
from raysim.results.render import grid_of, html_table, to_arrow
from raysim.tuning.tables.command import run_table
from raysim.tuning.tables.plan import make_plan
from raysim.tuning.tables.results import TableResults
from raysim.user_input import as_typed, canonical, user_path
from raysim.workloads.sweep_values import override_values
from raysim.workloads.sweeps import check_axes, default_folder, read_sweep
from raysim.workloads.tables import PaperTable


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        runs: A row per run of the cells: folder `run_dir`, `seed`, the values of the axes and the
            tuned settings by dotted key, and the value of each metric, null for a run without an
            end. Columns of axes have the type of their values: words, whole numbers, numbers (even
            if some are whole) or truth values. Lists, and values of several types, are text, as
            typed in an override. A run without the setting, or with value none, has null.
        cells: A row per cell: mean, deviation and values by seed, as in `table.parquet`.
    """

    runs: pa.Table
    cells: pa.Table
    _html: str = ""

    def __repr__(self) -> str:
        metrics = ", ".join(dict.fromkeys(self.cells["metric"].to_pylist()))
        return f"Sweep({self.runs.num_rows} runs in {self.cells.num_rows} cells: {metrics})"

    def _repr_html_(self) -> str:
        """Return the table of the cells, for notebooks."""
        return self._html


def sweep(
    config: str | Path,
    axes: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    metrics: str | Sequence[str] = (),
    tune: Mapping[str, Any] | None = None,
    rows: str = "",
    only: str | Sequence[str] = (),
    rounds: int | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
) -> Sweep:
    """Run the combinations of values over seeds that the folder lacks.

    Args:
        config: A preset, or a file of settings or of a sweep.
        axes: Values by dotted key, for example {"method.name": ["fedavg", "fedprox"]}, or as text,
            "fedavg,fedprox". One without a list, such as {"local.lr": 0.1}, is of all runs.
        seeds: The seeds; None takes the file's seeds, or the settings' seed.
        overrides: Further settings of all runs by dotted key, also such that are lists.
        metrics: Metrics of the cells; none takes last_ten of the main score, or the file's.
        tune: Table `[tune]`: a search of each row, or cell, before it is trained, for example
            {"space": {"local.lr": {"low": 0.001, "high": 1, "log": True}}, "trials": 12}.
        rows: The axis that makes the rows of the table; "" takes the first. The others make its
            columns.
        only: Words that the row and column of a cell must contain to be run.
        rounds: Rounds of the longest run of each column, the others in proportion; None keeps them.
        jobs: Number of slots; None takes as many as fit.
        out: Folder; None is `runs/NAME-sweep`.

    Raises:
        RaysimError: a setting, the data or the folder does not allow it, or a run failed, after the
            others have ended.
    """
    metrics, only = ((words,) if isinstance(words, str) else (*words,) for words in (metrics, only))
    axes = axes or {}
    settings, several = _settings_and_axes(axes)
    if twice := settings.keys() & (overrides or {}).keys():
        raise SettingsError(f"{min(twice)}: is given by axes and by overrides")
    settings |= overrides or {}
    table = read_sweep(str(config), settings, several, seeds, metrics=metrics, tune=tune, by=rows)
    check_axes(
        table, {key: values for key, values in several.items() if isinstance(axes[key], str)}
    )
    planner = partial(make_plan, only=only, rounds=rounds)
    folder = user_path(out) if out else default_folder(config, settings)
    written = list[PaperTable]()
    with shown_lines("sweep") as view:
        results = run_table(
            table,
            planner,
            jobs=jobs,
            out=folder,
            line=view.line,
            show=written.append,
            progress=view.progress,
        )
    [result_table] = written
    page = styled(html_table(grid_of(result_table)))
    return Sweep(_runs_of(results, several), to_arrow(result_table), page)


def _settings_and_axes(axes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Return the settings of all runs, and the axes with their values in lists.

    As on a command line, a text may hold several values: "0.1,0.2" and "1..4".
    """
    settings, several = dict[str, Any](), dict[str, Sequence[Any]]()
    for key, levels in axes.items():
        if isinstance(levels, str):
            _, values = override_values(f"{key}={levels}")
            if len(values) > 1:
                several[key] = values
            else:
                (settings[key],) = values
        elif isinstance(levels, Iterable) and not isinstance(levels, Mapping):
            several[key] = [*levels]
        else:
            settings[key] = levels
    return settings, several


def _runs_of(results: TableResults, axes: Iterable[str]) -> pa.Table:
    """Return a row for each run that has begun; one without a recorded end has no values."""
    table = results.plan
    keys = dict.fromkeys(key for cell in table.cells for key in cell.settings)
    differing = [key for key in keys if len({repr(c.settings.get(key)) for c in table.cells}) > 1]
    named = [*dict.fromkeys([*axes, *differing, *results.searched])]
    records = results.records()
    settings = [canonical(run.settings.to_dict()) for run in records]
    columns: dict[str, Any] = {
        "run_dir": pa.array([str(record.path) for record in records.values()], pa.string()),
        "seed": pa.array([run.seed for run in records], pa.int64()),
    }
    columns |= {
        key: typed_column([run_settings.get(key) for run_settings in settings]) for key in named
    }
    for name in table.metrics:
        values = [parse_metric(name).of(r) if r.summary else None for r in records.values()]
        columns[name] = pa.array(values, pa.float64())
    return pa.table(columns)


def typed_column(values: Sequence[Any]) -> pa.Array:
    """Return words, whole numbers, numbers or truth values as they are, and others as text."""
    kinds = {type(value) for value in values if value is not None}
    for python_type, kind in ((str, pa.string()), (bool, pa.bool_()), (int, pa.int64())):
        if kinds <= {python_type}:
            return pa.array(values, kind)
    if kinds <= {int, float}:
        return pa.array(values, pa.float64())
    return pa.array([None if value is None else as_typed(value) for value in values])
