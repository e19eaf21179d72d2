"""Results of a table's runs: measured values next to published ones, in four formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysim.api.columns import Column
from raysim.api.components import called
from raysim.config import Settings
from raysim.display.units import with_unit
from raysim.errors import RunError
from raysim.federation.prepared import known_digests
from raysim.results.column_metrics import OVER_LOCAL
from raysim.results.failures import is_divergence
from raysim.results.metrics import parse_metric
from raysim.results.origins import Origin, origin_notes, origins_of
from raysim.results.own_tests import local_rows, over_local
from raysim.results.references import reference_notes
from raysim.results.render import differences_of, grid_of, to_arrow, to_html, to_latex, to_markdown
from raysim.results.render.grid import shown
from raysim.results.runs import RunRecord, read_run, result_settings
from raysim.results.tables import differing_settings
from raysim.storage.atomic import replace_file
from raysim.storage.checkpoints import SAMPLES
from raysim.tuning.changes import changed_settings
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.studies.entries import by_key
from raysim.user_input import canonical
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.papers.run import Run
from raysim.workloads.sweeps import STOPS
from raysim.workloads.tables import PaperCell, PaperTable

FILES = ("table.md", "table.tex", "table.html", "table.parquet")
WEIGHTS = {"examples": "by their samples", "uniform": "all alike"}
"""Words for the weights of a mean over clients."""
Place = tuple[str, str]
"""Row and column of a cell."""


@dataclass(frozen=True)
class _Ended:
    """Ended run.

    Attributes:
        values: Values of a finished run, by metric.
        nearest: By metric, the best value of the column of a finished run below the target.
        columns: By metric, its column as the run declares it.
        error: Why it has none, if it or its reference failed or diverged.
        diverged: Whether it diverged itself.
        notes: Lines for the reader.
        origins: Versions of the origins of a finished run.
        stopped: The setting that stopped a finished run before its last round, and its value.
        other_data: Whether the data has changed since a finished run.
    """

    values: Mapping[str, float | None] = field(default_factory=dict)
    nearest: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    error: str = ""
    diverged: bool = False
    notes: tuple[str, ...] = ()
    origins: Mapping[Origin, str] = field(default_factory=dict)
    stopped: str = ""
    other_data: bool = False


class TableResults:
    """Values of the runs in a table's folder, which reads a finished run once.

    Attributes:
        plan: The plan of the table.
        folder: Folder of its runs.
    """

    def __init__(self, plan: PaperTable, folder: RunsFolder) -> None:
        self.plan, self.folder = plan, folder
        self._finished: dict[Run, _Ended] = {}
        self._data: dict[str, Mapping[str, str]] = {}

    def write(self) -> PaperTable:
        """Write table.md, table.tex, table.html and table.parquet; return the table."""
        table = self.table()
        grids = [grid for grid in (grid_of(table), differences_of(table)) if grid]
        texts = (to_markdown(*grids), to_latex(*grids), to_html(*grids))
        *paths, parquet = (self.folder.path / name for name in FILES)
        for path, text in zip(paths, texts, strict=True):
            _write_text(path, text)
        replace_file(parquet, lambda aside: pq.write_table(to_arrow(table), aside))
        return table

    def text_of(self, run: Run) -> str:
        """Return the values of a finished run as text."""
        if not (cells := self._cells_of(run)):
            return "the reference of others"
        finished, plan = self._finished[run], self.plan
        units = {plan.metric_of(cell): plan.unit_of(cell) for cell in cells}
        texts = []
        for metric, value in finished.values.items():
            absent = "has no value" if parse_metric(metric).target is None else "not reached"
            unit = units[metric]
            text = absent if value is None else with_unit(shown(value, unit), unit)
            texts.append(f"{metric} {text}")
        return "; ".join(texts)

    def table(self) -> PaperTable:
        """Return the plan's shown cells, with the values of the ended runs of its seeds."""
        plan = self.plan
        ended = {cell: self._runs_of(cell) for cell in self.cells}
        places = {cell.place for cell in ended}
        # Ratios need the published values of the baseline even if its row is not shown.
        baseline = [cell for cell in plan.cells if cell.row == plan.baseline]
        known = dict.fromkeys([*ended, *baseline])
        cells = _with_differences(
            self._measured_cells({cell: ended.get(cell, {}) for cell in known}),
            {c.place: _settings_of(c, self.searched) for c, runs in ended.items() if runs},
            frozenset.intersection(*plan.row_keys.values()),
        )
        return replace(
            plan,
            title=f"{plan.title} ({plan.source})" if plan.source else plan.title,
            rows=tuple(row for row in plan.rows if row in {row for row, _ in places}),
            columns=tuple(name for name in plan.columns if name in {name for _, name in places}),
            cells=tuple(cells.values()),
            notes=(*self._notes(ended), *plan.notes),
        )

    @cached_property
    def _known(self) -> list[PaperCell]:
        """Cells with runs in the folder's index, and chosen cells that can have no runs."""
        entered = self.folder.index.items()
        return [
            cell
            for cell in self.plan.cells
            if (cell.label, cell.run.digest) in entered or (cell.chosen and cell.missing)
        ]

    @property
    def searched(self) -> list[str]:
        """Settings that are searched; each row has its own value."""
        return [*dict(by_key(self.plan.tune.get("space", {})))]

    @property
    def cells(self) -> list[PaperCell]:
        """The shown cells; one that `--only` leaves out is shown if a run of it has begun."""
        return [cell for cell in self._known if cell.chosen or self._asked(cell)]

    @property
    def runs(self) -> list[Run]:
        """The runs of the shown cells, each after the reference of its analyses."""
        asked = [run for cell in self.cells for run in self._asked(cell)]
        return [
            *dict.fromkeys(
                needed_run for run in asked for needed_run in (run.reference, run) if needed_run
            )
        ]

    def records(self) -> dict[Run, RunRecord]:
        """Return the records of the runs that have begun."""
        by_run = dict[Run, RunRecord]()
        for run in self.runs:
            with suppress(RunError):
                by_run[run] = read_run(self.folder.path_of(run))
        return by_run

    def _asked(self, cell: PaperCell) -> list[Run]:
        """Return a cell's runs with the plan's seeds, by seed; of an unchosen cell, begun runs.

        Runs of other seeds stay in the folder; commands that ask for these seeds show them.
        """
        if cell.missing:
            return []
        asked = sorted(cell.run.seeds(self.plan.seeds), key=lambda run: run.seed)
        return asked if cell.chosen else [run for run in asked if self.folder.has_begun(run)]

    def _runs_of(self, cell: PaperCell) -> dict[Run, _Ended]:
        """Return the ended runs of a cell."""
        ended_runs = {}
        for run in self._asked(cell):
            if ended := self._finished.get(run) or self._read(run):
                ended_runs[run] = ended
                if not ended.error:
                    self._finished[run] = ended
        return ended_runs

    def _cells_of(self, run: Run) -> list[PaperCell]:
        """Return the cells of a run."""
        digest = run.digest
        return [c for c in self._known if c.run.digest == digest and not c.lacking]

    def _read(self, run: Run) -> _Ended | None:
        if (error := self.folder.failure(run)) is not None:
            own_error = self.folder.own_failure(run)
            return _Ended(error=error, diverged=is_divergence(own_error or ""))
        if not self.folder.is_finished(run):
            return None
        record = read_run(self.folder.path_of(run))
        metrics = {m: parse_metric(m) for m in map(self.plan.metric_of, self._cells_of(run))}
        values = {name: metric.of(record) for name, metric in metrics.items()}
        nearest = {name: metric.nearest(record) for name, metric in metrics.items()}
        columns = {name: metric.column_in(record) for name, metric in metrics.items()}
        notes = (
            *record.notes,
            *reference_notes(record, self.folder.settings(run).reference),
        )
        by = str((record.summary or {}).get("stopped_by"))
        return _Ended(
            values,
            {name: value for name, value in nearest.items() if value is not None},
            columns=columns,
            notes=notes,
            origins=origins_of(record),
            stopped=f"{by}={record.settings[by]}" if by in STOPS else "",
            other_data=self._has_other_data(record, run.settings),
        )

    def _has_other_data(self, record: RunRecord, settings: Settings) -> bool:
        """Return whether a dataset has other samples now than a run has sealed."""
        if (key := repr((settings.data, settings.evaluation.test))) not in self._data:
            self._data[key] = known_digests(settings, data_root())
        digests = self._data[key].items()
        return any(record.sealed(SAMPLES[split]) not in (None, now) for split, now in digests)

    def _measured_cells(
        self, known: Mapping[PaperCell, Mapping[Run, _Ended]]
    ) -> dict[Place, PaperCell]:
        """Return cells by place; gains over local training are over their column's row of it."""
        metrics = {cell.place: self.plan.parsed_metric(cell) for cell in known}
        cells = {cell.place: self._measured(cell, runs) for cell, runs in known.items()}
        gains = {place for place, metric in metrics.items() if metric.name == OVER_LOCAL}
        settings = {cell.place: _settings_of(cell, self.searched) for cell in known}
        return over_local(cells, metrics, local_rows({p: settings[p] for p in gains}))

    def _measured(self, cell: PaperCell, runs: Mapping[Run, _Ended]) -> PaperCell:
        metric = self.plan.metric_of(cell)
        return replace(
            cell,
            values={
                run.seed: ended.values[metric] for run, ended in runs.items() if not ended.error
            },
            diverged=sum(ended.diverged for ended in runs.values()),
            failed=sum(ended.error != "" and not ended.diverged for ended in runs.values()),
            own_round=cell.run.settings.method.own_round,
            nearest=tuple(
                ended.nearest[metric] for ended in runs.values() if metric in ended.nearest
            ),
            declared=next((e.columns[metric] for e in runs.values() if metric in e.columns), None),
        )

    def _notes(self, ended: Mapping[PaperCell, Mapping[Run, _Ended]]) -> Iterator[str]:
        """Yield the notes on the values for the reader."""
        plan = self.plan
        shown = [cell for cell in ended if not cell.missing]
        if any(cell.run.settings.rounds < cell.full_rounds for cell in shown):
            yield f"Shortened to {_by_level(shown, _rounds)}."
            if longer := [cell.label for cell in shown if _exceeds_share(cell, plan.cells)]:
                yield f"More than in proportion, as one round is the least: {'; '.join(longer)}."
        counts = {len(self._asked(cell)) for cell in shown}
        if any(count < plan.full_seeds for count in counts):
            yield f"Shortened to {_span(counts)} of {plan.full_seeds} seeds."
        yield from changed_settings(plan.overrides)
        if len({_weights(cell) for cell in shown}) > 1:
            yield f"Clients weigh {_by_level(shown, _weights)}."
        asked = {run for cell in shown for run in self._asked(cell)}
        known = {run: end for runs in ended.values() for run, end in runs.items()}
        if waiting := len(asked - known.keys()):
            yield f"Unfinished: {waiting} of {len(asked)} runs."
        for cell in ended:
            if cell.text:
                yield f"{cell.label}: the paper prints {cell.text!r}."
        yield from (f"{run.title}: {end.error}" for run, end in known.items() if end.error)
        yield from (note for end in known.values() for note in end.notes)
        if plan.paper is None:
            stops = Counter(end.stopped for end in known.values() if end.stopped)
            yield from (
                f"Stopped by {by}: {stopped} of {len(known)} runs." for by, stopped in stops.items()
            )
        if changed := [run for run, end in known.items() if end.other_data]:
            first, *_ = changed
            yield (
                f"The data has changed since {len(changed)} of {len(known)} runs, the first"
                f" {first.title}; to run it again, delete {self.folder.path}/runs/{first.name}."
            )
        yield from origin_notes({run.title: end.origins for run, end in known.items()})


def _settings_of(cell: PaperCell, searched: Collection[str]) -> dict[str, Any]:
    """Return the settings of a cell's runs that decide their models.

    The seed is left out, and so are searched settings, which the notes name.
    """
    settings = result_settings(canonical(cell.run.settings.to_dict()))
    return {key: value for key, value in settings.items() if key not in searched}


def _with_differences(
    cells: Mapping[Place, PaperCell],
    settings: Mapping[Place, Mapping[str, Any]],
    of_every_row: Collection[str],
) -> dict[Place, PaperCell]:
    """Return cells with the settings that differ from the other rows of their column.

    Settings of the method define a row and are left out. If rows share a method, so are settings
    that differ in every row of the paper's table, as the rows' names tell them.
    """
    marked = dict(cells)
    for column in dict.fromkeys(column for _, column in cells):
        rows = {
            row: row_settings for (row, name), row_settings in settings.items() if name == column
        }
        differing = differing_settings(rows, dict.fromkeys(rows, _of_rows(rows, of_every_row)))
        for row, values in differing.items():
            marked[row, column] = replace(marked[row, column], differing=values)
    return marked


def _of_rows(
    rows: Mapping[str, Mapping[str, Any]], of_every_row: Collection[str]
) -> Collection[str]:
    """Return the keys that define the rows of a table."""
    keys = dict.fromkeys(key for values in rows.values() for key in values)
    of_method = {key for key in keys if key.startswith("method.")}
    methods = {repr([values.get(key) for key in of_method]) for values in rows.values()}
    return of_method if len(methods) == len(rows) else of_method.union(of_every_row)


def _rounds(cell: PaperCell) -> str:
    return f"{cell.run.settings.rounds} of {cell.full_rounds} rounds"


def _weights(cell: PaperCell) -> str:
    """Return how clients weigh in the aggregate of their models."""
    settings = cell.run.settings
    if settings.aggregation.sees_updates:
        return f"as in {called(settings.aggregation)}"
    weights = settings.aggregation.weights or getattr(settings.method, "weighting", None)
    return WEIGHTS.get(weights or "", WEIGHTS[settings.weighting])


def _by_level(cells: Sequence[PaperCell], text_of: Callable[[PaperCell], str]) -> str:
    """Return a text about cells; if it differs, by column, row or cell."""
    levels: tuple[Callable[[PaperCell], str], ...] = (
        lambda cell: "",
        lambda cell: cell.column,
        lambda cell: cell.row,
        lambda cell: cell.label,
    )
    for name_of in levels:
        texts_by_name: dict[str, set[str]] = {}
        for cell in cells:
            texts_by_name.setdefault(name_of(cell), set()).add(text_of(cell))
        if all(len(texts) == 1 for texts in texts_by_name.values()):
            break
    names: dict[str, list[str]] = {}
    for name, (text,) in texts_by_name.items():
        names.setdefault(text, []).append(name)
    return ", ".join(
        f"{text} ({'; '.join(held)})" if any(held) else text for text, held in names.items()
    )


def _exceeds_share(cell: PaperCell, cells: Sequence[PaperCell]) -> bool:
    """Return whether a cell is shortened less than the longest cell of its column."""
    column = [neighbour for neighbour in cells if neighbour.column == cell.column]
    longest = max(column, key=lambda neighbour: neighbour.full_rounds)
    done = cell.run.settings.rounds * longest.full_rounds
    return done > longest.run.settings.rounds * cell.full_rounds


def _span(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _write_text(path: Path, text: str) -> None:
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))
