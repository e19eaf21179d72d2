"""`raysim.sweep`: settings with several values, each over the same seeds, as Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysim.core.user_input import canonical, user_path
from raysim.results.metrics import parse_metric
from raysim.results.render import to_arrow
from raysim.results.runs import read_run
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.run import Run
from raysim.tuning.studies.entries import by_key
from raysim.tuning.tables.command import run_table, write_outputs
from raysim.tuning.tables.plan import TableOptions, TablePlan
from raysim.workloads.sweeps import default_folder, read_sweep


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        runs: A row per run: its folder `run_dir`, `seed`, the values of the axes and of what was
            tuned by dotted key, as JSON, and of each metric.
        cells: A row per cell: mean, deviation and values by seed, as in `table.parquet`.
    """

    runs: pa.Table
    cells: pa.Table


def sweep(
    config: str | Path,
    axes: Mapping[str, Sequence[Any]] | None = None,
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
        axes: Values by dotted key, for example {"method.name": ["fedavg", "fedprox"]}.
        seeds: The seeds; None takes those of the file, or that of the settings.
        overrides: Settings of all runs by dotted key.
        metrics: Metrics of the cells; none takes last_ten(test_accuracy), or the file's.
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
    metrics, only = ((each,) if isinstance(each, str) else (*each,) for each in (metrics, only))
    table = read_sweep(str(config), overrides, axes, seeds, metrics=metrics, tune=tune, by=rows)
    options = TableOptions(only, rounds)
    folder = user_path(out) if out else default_folder(config)
    ended = run_table(table, options, jobs=jobs, out=folder, line=lambda text: None)
    write_outputs(ended, lambda text: None)
    ended.raise_failure()
    return Sweep(_runs_of(ended.plan, ended.folder), to_arrow(ended.results))


def _runs_of(plan: TablePlan, folder: RunsFolder) -> pa.Table:
    """Return a row for each run."""
    rows = []
    keys = dict.fromkeys(key for cell in plan.table.cells for key in cell.settings)
    axes = [key for key in keys if len({repr(c.settings.get(key)) for c in plan.table.cells}) > 1]
    axes += [key for key in dict(by_key(plan.table.tune.get("space", {}))) if key not in axes]
    for run in plan.runs:
        path = folder.path_of(run)
        record = read_run(path)
        values = {name: parse_metric(name).of(record) for name in plan.table.metrics}
        rows.append({"run_dir": str(path), "seed": run.seed, **_values(run, axes), **values})
    return pa.Table.from_pylist(rows)


def _values(run: Run, axes: Sequence[str]) -> dict[str, str | None]:
    """Return the values of the axes in a run, as JSON; None where it has no such setting."""
    settings = canonical(run.settings.to_dict())
    return {key: json.dumps(settings[key]) if key in settings else None for key in axes}
