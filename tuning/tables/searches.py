"""Searches of a sweep: a study of each row, or of each cell, on held-out samples.

The runs of a search do not open the test set. By default its trials are points of one quasi-random
sequence, the same for all rows and independent of the number of slots, and the settings' own
values are the first trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raysim.api.components import explain, suggest
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.tuning.studies.entries import Entry, by_key, read_entries
from raysim.tuning.studies.ranges import contains, typed
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import ResolvedStudy, Study, StudyTable
from raysim.user_input import dotted
from raysim.workloads.sweeps import differs_by_cell
from raysim.workloads.tables import PaperCell, PaperTable

FIXED = ("rounds", "seed", "target_accuracy", "patience", "patience_metric", "patience_mode")
FIXED_GROUPS = ("evaluation.", "engine.")
"""Settings, and groups of them, that decide a trial's budget or its judge."""


class TuneTable(BaseModel):
    """Table `[tune]` of a sweep."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: dict[str, Any] = Field(description="ranges by setting, as in [study]")
    rows: dict[str, dict[str, Any]] = Field(
        default={}, description="ranges of a row in place of those of space, by its name"
    )
    trials: int = Field(default=12, ge=1, le=10**6, strict=True, description="trials of a search")
    seeds: int = Field(default=1, ge=1, le=1000, strict=True, description="runs of a trial")
    rounds: int | None = Field(
        default=None, ge=1, strict=True, description="rounds of a trial; default: of the runs"
    )
    holdout: float = Field(
        default=0.1, gt=0, lt=1, description="fraction of each client's samples that judges"
    )
    each: Literal["row", "cell"] = Field(default="row", description="what is searched")
    column: str = Field(default="", description="column of a row's search; default: the first")
    objective: Literal["accuracy", "loss"] | None = Field(
        default=None, description="on held-out samples; default: accuracy where there is one"
    )
    sampler: str | dict[str, Any] = Field(default="qmc", description="as in [study]")
    pruner: str | dict[str, Any] = Field(default="none", description="as in [study]")


def read_tune(values: Mapping[str, Any]) -> TuneTable:
    """Validate a table `[tune]`.

    Raises:
        SettingsError: a key is unknown or missing, or has a value of another type.
    """
    try:
        return TuneTable.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error, TuneTable, "tune.")) from error


@dataclass(frozen=True)
class Searched:
    """A row or a cell with settings to search.

    Attributes:
        title: Its name.
        cells: Its cells, which take the best settings.
        study: The search; None if no range belongs to its settings.
        options: Its options.
    """

    title: str
    cells: tuple[PaperCell, ...]
    study: ResolvedStudy | None
    options: SearchOptions

    @property
    def is_chosen(self) -> bool:
        """True if one of its cells will be run; if not, only earlier searches are read."""
        return any(cell.chosen and not cell.missing for cell in self.cells)


def to_search(plan: PaperTable, tune: TuneTable) -> list[Searched]:
    """Return the searches of a plan's cells.

    Raises:
        SettingsError: a range is wrong, belongs to no row's settings, to a setting of rows or
            columns, or to a setting that decides budget or judge; or the rows' grids have different
            sizes.
    """
    with _named():
        entries = read_entries(tune.space)
    known = {key: 0 for cell in plan.cells for key in dotted(cell.run.settings.to_dict())}
    for key in entries:
        if key not in known:
            raise SettingsError(f"tune.space.{key}: no row has it; {suggest(key, [*known])}")
        if key in FIXED or key.startswith(FIXED_GROUPS) or not differs_by_cell(key):
            raise SettingsError(
                f"tune.space.{key}: cannot be searched; all trials have one budget and one judge"
            )
        if len({repr(cell.settings.get(key)) for cell in plan.cells}) > 1:
            raise SettingsError(f"tune.space.{key}: is set by rows or columns; leave it out there")
    _check_rows(plan, tune)
    units = [*(_by_row(plan, tune) if tune.each == "row" else _by_cell(plan))]
    searched = list[Searched]()
    # Ranges have the same order for all rows; ranges of methods are last.
    keys = sorted(entries, key=lambda key: (key.startswith("method."), key))
    ordered = {key: entries[key] for key in keys}
    for title, cells, settings in units:
        with _named(title):
            ranges = dict([*by_key(tune.space), *by_key(tune.rows.get(cells[0].row, {}))])
            study, options = _study(_searchable(settings, tune), tune, ordered, ranges)
        known_titles = {search.title for search in searched}
        unique_title = title if title not in known_titles else f"{title} ({cells[0].label})"
        searched.append(Searched(unique_title, cells, study, options))
    _check_grids(tune, searched)
    return searched


def _check_rows(plan: PaperTable, tune: TuneTable) -> None:
    """Check that ranges of single rows are in place of others.

    Raises:
        SettingsError: there is no such row, or no such range for all rows.
    """
    known = dict(by_key(tune.space))
    for row, ranges in tune.rows.items():
        if row not in plan.rows:
            raise SettingsError(f"tune.rows.{row}: is no row; {suggest(row, [*plan.rows])}")
        for key, _ in by_key(ranges):
            if key not in known:
                raise SettingsError(
                    f"tune.rows.{row}.{key}: must be in tune.space, too: all rows search the same"
                    f" settings; {suggest(key, [*known])}"
                )


def _coordinates(ordered: Sequence[str], common: Sequence[str], whole: bool) -> tuple[str, ...]:
    """Return the ranges in the order of drawing a row's points; ranges that it lacks are skipped.

    So all rows have the same points in the ranges that they share.

    Args:
        ordered: All ranges.
        common: The row's ranges, in the same order.
        whole: Whether a coordinate depends on later coordinates, too.
    """
    ends = len(ordered) if whole else max(map(ordered.index, common), default=-1) + 1
    drawn = tuple(ordered[:ends])
    return () if drawn == tuple(common) else drawn  # a study records no order of its own ranges


def _is_searched(
    key: str, entry: Entry, settings: Mapping[str, Any], entries: Mapping[str, Entry]
) -> bool:
    """Return whether a range is of settings, given by dotted key, and its conditions may hold."""
    conditions = entry.conditions.items()
    return key in settings and all(p in entries or settings.get(p) in v for p, v in conditions)


def _check_grids(tune: TuneTable, searched: Sequence[Searched]) -> None:
    """Check that grids have as many points as there are trials, so that budgets are equal."""
    for search in searched:
        if search.options.sampler != "grid":
            continue
        points = len(search.study.space.points()) if search.study else tune.trials
        if points < tune.trials:
            raise SettingsError(
                f"tune.trials={tune.trials}: the grid of {search.title} has {points} points; must"
                " be at most that, so that all rows have the same budget"
            )


@contextmanager
def _named(title: str = "") -> Iterator[None]:
    """Name errors of a study by the table `[tune]`, and a row.

    Raises:
        SettingsError: the body raised one.
    """
    try:
        yield
    except SettingsError as error:
        text = str(error)
        problem = text.replace("study.space", "tune.space")
        problem = (
            f"tune.{problem.removeprefix('study.')}" if problem.startswith("study.") else problem
        )
        raise SettingsError(f"{title}: {problem}" if title else problem) from error


def _by_row(
    plan: PaperTable, tune: TuneTable
) -> Iterator[tuple[str, tuple[PaperCell, ...], Settings]]:
    columns = plan.columns
    if tune.column and tune.column not in columns:
        raise SettingsError(f"tune.column={tune.column}: must be one of {'; '.join(columns)}")
    for row in dict.fromkeys(cell.row for cell in plan.cells):
        cells = tuple(cell for cell in plan.cells if cell.row == row)
        with_data = [cell for cell in cells if not cell.run.missing]
        asked = [cell for cell in cells if cell.column == tune.column]
        on = [*asked, *with_data, *cells][0]
        if on.run.missing and any(cell.chosen for cell in with_data):
            raise SettingsError(
                f"{row}: tune.column={tune.column}: {on.run.missing}; choose a column with data"
            )
        title = row if len({cell.run for cell in cells}) == 1 else f"{row} (on {on.column})"
        yield title, cells, on.run.settings


def _by_cell(plan: PaperTable) -> Iterator[tuple[str, tuple[PaperCell, ...], Settings]]:
    for run in dict.fromkeys(cell.run for cell in plan.cells):
        cells = tuple(cell for cell in plan.cells if cell.run == run)
        yield run.label, cells, run.settings


def _searchable(settings: Settings, tune: TuneTable) -> Settings:
    """Return the settings of trials, which judge by held-out samples alone."""
    rounds = min(tune.rounds or settings.rounds, settings.rounds)
    quiet = {"analysis": (), "trace": False, "tracker": None, "keep_clients": False}
    quiet |= {"target_accuracy": None, "patience": None, "patience_metric": None}
    names = ("test", "train_set", "clients", "trained")
    unseen = dict.fromkeys((f"evaluation.{name}" for name in names), False)
    judged = {"rounds": rounds, "evaluation.holdout": tune.holdout}
    return settings.override({**quiet, **unseen, **judged})


def _study(
    settings: Settings, tune: TuneTable, entries: Mapping[str, Entry], ranges: Mapping[str, Any]
) -> tuple[ResolvedStudy | None, SearchOptions]:
    """Return the search of settings, by the ranges of these settings, and its options."""
    values = dotted(settings.to_dict())
    space = {
        key: ranges[key]
        for key, entry in entries.items()
        if _is_searched(key, entry, values, entries)
    }
    metrics = settings.dataset.scoring.metrics
    table = StudyTable(
        objectives=[tune.objective or ("accuracy" if "accuracy" in metrics else "loss")],
        sampler=tune.sampler,
        pruner=tune.pruner,
        seeds=tune.seeds,
        trials=tune.trials,
        space=space,
    )
    study = Study(table, settings, values)
    options = study.options()
    if not space:
        return None, options
    resolved = study.resolve({})
    if options.sampler == "qmc":
        whole = bool(options.sampler_options.get("scramble"))
        drawn = _coordinates([*entries], [*resolved.space.common], whole)
        options = replace(options, coordinates=drawn)
    common = resolved.space.common
    inside = [key for key in common if contains(common[key], values[key])]
    first = {key: typed(common[key], values[key]) for key in inside}
    return replace(resolved, first=(first,) if first else ()), options


def budget(tune: TuneTable, searched: Sequence[Searched]) -> str:
    """Return the budget of the searches in words; it is the same for all."""
    chosen = [search for search in searched if search.is_chosen]
    rounds = sorted({search.study.settings.rounds for search in chosen if search.study})
    words = f"{tune.trials} trials of {' or '.join(map(str, rounds))} rounds"
    words += f" and {tune.seeds} seeds" if tune.seeds > 1 else ""
    if (options := searched[0].options).pruner != "none":
        pruner_words = ", ".join(f"{key}={value}" for key, value in options.pruner_options.items())
        words += f", pruned by {options.pruner}" + (f" ({pruner_words})" if pruner_words else "")
    kept = {cell.run.settings.evaluation.holdout for search in chosen for cell in search.cells}
    on = "all" if not any(kept) else "what evaluation.holdout leaves"
    return (
        f"Tuned by {words} for each {tune.each}, judged by {tune.holdout:.0%} of each client's"
        f" training samples without the test set, then trained on {on}"
    )
