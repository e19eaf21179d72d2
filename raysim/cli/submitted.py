"""Checks of the commands that `raysim submit` uploads, made on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raysim
from raysim.cli.options import changes
from raysim.cli.tables import given_sweep, given_table, planner_of

if TYPE_CHECKING:
    from raysim.tuning.tables.plan import Planner
    from raysim.workloads.tables import PaperTable

Options = Mapping[str, Any]
"""Values of a command's options and arguments by name."""


def _check_file(config: str) -> None:
    """Check that a settings file is uploaded with the job."""
    from raysim.cluster import command

    command.check_file(config)


def _check_folder(setting: str, path: str | Path | None) -> None:
    """Check that a job's results do not lie in its uploaded working directory."""
    from raysim.cluster import command

    command.check_folder(setting, path)


def _overrides(options: Options) -> dict[str, Any]:
    return changes(options["overrides"], options["profile"])


def _run(options: Options) -> None:
    settings = raysim.load_config(options["config"], _overrides(options))
    _check_file(options["config"])
    _check_folder("out", settings.out)


def _tune(options: Options) -> None:
    from raysim.tuning.tune import study_of
    from raysim.workloads.sweep_values import parse_ranges

    ranges = options["ranges"]
    study = study_of(options["study"], parse_ranges(ranges, None) if ranges else None)
    study.resolve(_overrides(options))
    names = ("sampler", "pruner", "objectives", "seeds")
    study.options(*(options[key] for key in names))
    _check_file(options["study"])
    _check_folder("--out", options["out"])


def _table(options: Options) -> None:
    chosen = options["only"], options["rounds"], options["seeds"]
    table = given_table(options["name"], options["tune"] or (), options["tune_trials"])
    _check_table(table, planner_of(*chosen, _overrides(options)))
    _check_folder("--out", options["out"])


def _sweep(options: Options) -> None:
    table = given_sweep(options["config"], options["overrides"], options)
    profile = changes(None, options["profile"])
    _check_table(table, planner_of(options["only"], options["rounds"], None, profile))
    _check_file(options["config"])
    _check_folder("--out", options["out"])


def _check_table(table: PaperTable, planner: Planner) -> None:
    """Check the plan and the searches of a table or a sweep."""
    from raysim.tuning.tables.searches import read_tune, to_search

    plan = planner(table)
    if table.tune:
        to_search(plan, read_tune(table.tune))


def _figure(options: Options) -> None:
    from raysim.tuning.figures.plan import make_plan

    chosen = options["rounds"], options["only"] or ()
    make_plan(options["name"], _overrides(options), *chosen)
    _check_folder("--out", options["out"])


def _resume(options: Options) -> None:
    _check_folder("RUN_DIR", options["run_dir"])


CHECKS: Mapping[str, Callable[[Options], None]] = {
    "run": _run,
    "tune": _tune,
    "table": _table,
    "sweep": _sweep,
    "figure": _figure,
    "resume": _resume,
}
"""Check by command."""
