"""Comparison of runs: groups of equal settings over seeds, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from raysim.api.columns import OF_ENGINE, Column, by_name, by_scored
from raysim.api.scoring import HOLDOUT, LOCAL_TEST, PERSONAL, TEST, TRAIN_SET
from raysim.display.units import UNITS, fitting_unit
from raysim.errors import SettingsError
from raysim.results.metrics import Metric
from raysim.results.origins import origin_notes, origins_of, revisions_of
from raysim.results.own_tests import FURTHER, GLOBAL, local_rows, over_local, own_test_columns
from raysim.results.references import UNREAD, reference_settings
from raysim.results.render import Entry, Footnotes, Grid, grid_of
from raysim.results.runs import RunRecord, State, result_settings
from raysim.results.tables import ResultCell, ResultTable, differing_keys
from raysim.storage.checkpoints import LOCAL_TEST_SAMPLES, SAMPLES, TEST_SAMPLES
from raysim.storage.schema import table_of
from raysim.storage.summary import (
    is_accuracy,
    main_score,
)
from raysim.user_input import key_text, label_text

IN_PROGRESS: tuple[State, ...] = ("running", "interrupted")
SO_FAR = "such runs have separate rows, with the values of the rounds so far, and are not compared"
STATES: Mapping[State, str] = {
    "running": f"running: a process writes to it; {SO_FAR}.",
    "interrupted": "interrupted: its process is gone (raysim resume goes on with its run directory,"
    f" not with an archive); {SO_FAR}.",
    "diverged": "diverged: an update or a loss is not finite; the run has no values.",
    "failed": "failed: an error ended the run; it has no values.",
}
"""Note of each state that needs one."""
ENDED = ("diverged", "failed")
COSTS: Mapping[str, Metric] = {
    "sent": Metric("final", "bytes"),
    "time": Metric("final", "total_seconds"),
}
"""What runs have cost in the end, by the names of columns."""
SETS = {
    TEST.samples: "",
    LOCAL_TEST.samples: "own test ",
    HOLDOUT.samples: "held-out ",
    TRAIN_SET.samples: "train set ",
}
"""Sets of samples of the main score in words."""
PATH = "dataset.path"
COMPONENTS = ("dataset.name", "partition.name", "model.name", "method.name")


@dataclass(frozen=True)
class RunGroup:
    """Runs of equal settings and different seeds; all have ended, or none has.

    Attributes:
        label: Settings that differ from other groups' settings.
        settings: Settings that decide the results, by dotted key.
        records: The runs, by seed.
        revision: Revision of their method's formula, and later ones of other components; None if
            unknown.
    """

    label: str
    settings: dict[str, Any]
    records: tuple[RunRecord, ...]
    revision: str | None

    @property
    def in_progress(self) -> bool:
        """True where no end of its runs is recorded."""
        return self.records[0].state in IN_PROGRESS

    def cell(self, metric: Metric, column: str = "") -> ResultCell:
        """Return the values of a metric over seeds; a run without its column has no value.

        Args:
            metric: The metric.
            column: The column of the cell in a table.
        """
        values, nearest, lost = {}, [], Counter[State]()
        columns = [metric.column_in(record) for record in self.records if metric.is_in(record)]
        for record in self.records:
            if record.state in ENDED:
                lost[record.state] += 1
            elif metric.is_in(record):
                values[record.seed] = metric.of(record)
                nearest.append(metric.nearest(record))
            else:
                values[record.seed] = None
        return ResultCell(
            values,
            self.label,
            column,
            diverged=lost["diverged"],
            failed=lost["failed"],
            own_round=self.records[0].own_round,
            in_progress=self.in_progress,
            nearest=tuple(value for value in nearest if value is not None),
            declared=columns[0] if columns else None,
        )


def check_comparable(records: Sequence[RunRecord]) -> None:
    """Check that runs have the same table (or none), test samples and metric.

    Raises:
        SettingsError: two runs differ; the message names both.
    """
    checks = (
        ("table", _table),
        ("dataset", _dataset),
        ("dataset", _own_test),
        ("dataset", _client_tests),
        ("metric", _measured),
    )
    for kind, about_run in checks:
        known = [(record.path, about) for record in records if (about := about_run(record))]
        for path, about in known[1:]:
            first, expected = known[0]
            if about != expected:
                raise SettingsError(
                    f"{path}: has {about}, and {first} has {expected}: runs of another {kind}"
                    " cannot be compared"
                )


def _table(record: RunRecord) -> str:
    table = table_of(record.path)
    return table and f"table {table}"


def _dataset(record: RunRecord) -> str:
    name = f"dataset.name={record.settings.get('dataset.name')}"
    return "its own task" if record.own_task else name


def _own_test(record: RunRecord) -> str:
    """Return the test samples of a run's own task; prepared files may differ by machine."""
    digest = record.sealed(TEST_SAMPLES) if record.own_task else None
    return f"its own test samples {digest[:12]}" if digest else ""


def _client_tests(record: RunRecord) -> str:
    """Return the clients' test samples of a run's own task; "" without any."""
    digest = record.sealed(LOCAL_TEST_SAMPLES) if record.own_task else None
    return f"its own client_tests {digest[:12]}" if digest not in (None, "none") else ""


def _measured(record: RunRecord) -> str:
    """Return the metrics of the test set, only accuracy if it is one; "" before the first round."""
    scored = by_scored(map(record.column, record.metrics.column_names))
    names = [column.name for score, column in scored.items() if score.set == TEST.set]
    return "test_accuracy" if "test_accuracy" in names else ", ".join(sorted(names))


def group_runs(records: Sequence[RunRecord], metrics: Sequence[Metric] = ()) -> list[RunGroup]:
    """Group runs by their settings; a second run of one seed is in another group.

    Runs in progress are in separate groups, because their values and final ones have no common
    mean; so are runs with other revisions of their components. A path of equal samples decides
    nothing: an archive has its last part alone.

    Args:
        records: The runs.
        metrics: Metrics of the comparison; if one takes a reference, runs that have references with
            other settings are in other groups.

    Raises:
        SettingsError: the runs cannot be compared.
    """
    check_comparable(records)
    by_reference = any(metric.takes_reference for metric in metrics)
    revisions = revisions_of(records)
    runs: dict[str, list[RunRecord]] = {}
    settings: list[dict[str, Any]] = []
    paths: dict[tuple[str | None, ...], Any] = {}
    for record in records:
        shown_settings = result_settings(record.settings) | (
            reference_settings(record) if by_reference else {}
        )
        samples = tuple(map(record.sealed, SAMPLES.values()))
        if PATH in shown_settings and None not in samples:
            shown_settings[PATH] = paths.setdefault(samples, shown_settings[PATH])
        in_progress = record.state in IN_PROGRESS
        text = key_text(shown_settings, record.own_task, in_progress, revisions[record.path])
        key, again = text, 1
        while any(other.seed == record.seed for other in runs.get(key, ())):
            again += 1
            key = f"{text} {again}"
        if key not in runs:
            settings.append(shown_settings)
        runs.setdefault(key, []).append(record)
    telling = _telling_keys(settings)
    groups = [
        RunGroup(
            _label(values, telling),
            values,
            tuple(sorted(seeds, key=lambda run: run.seed)),
            revisions[seeds[0].path],
        )
        for values, seeds in zip(settings, runs.values(), strict=True)
    ]
    return _with_unique_labels(groups)


def compared_metrics(
    groups: Sequence[RunGroup], target: float | None, further: Sequence[Metric] = ()
) -> list[tuple[str, Metric, str]]:
    """Return the columns of the table: name, metric and unit.

    Args:
        groups: The groups.
        target: The accuracy to be reached; None takes the targets of the settings.
        further: Additional metrics.

    Raises:
        SettingsError: a run lacks the column of an additional metric.
    """
    records = [record for group in groups for record in group.records]
    measured = {n: record.column(n) for record in records for n in record.metrics.column_names}
    score = common_score(records) or OF_ENGINE["train_loss"]
    column = score.name
    name, unit = in_words(score), unit_of(Metric("final", column), records)
    set_targets = {group.settings.get("target_accuracy") for group in groups}
    targets = (
        {goal for goal in set_targets if isinstance(goal, float)} if target is None else {target}
    )
    for metric in further:
        for record in records:
            metric.of(record)
    compared = {c.title: c.compared for c in measured.values()}
    costs = {
        **COSTS,
        **{f"final {c.title}": Metric("final", c.name) for c in further_scores(records)},
        **{t: Metric("final", column.name) for t, column in compared.items() if column},
    }
    return [
        (f"last ten {name}", Metric("last_ten", column), unit),
        (f"final {name}", Metric("final", column), unit),
        (f"best {name}", Metric("best", column), unit),
        *(
            (f"rounds to {accuracy:g}", Metric("rounds_to", column, accuracy), "rounds")
            for accuracy in sorted(targets)
            if is_accuracy(score)
        ),
        *((str(metric), metric, unit_of(metric, records)) for metric in further),
        *(
            [(GLOBAL, Metric("final", "test_accuracy"), unit)]
            if is_accuracy(score) and "test_accuracy" in measured.keys() - {column}
            else []
        ),
        *(
            column
            for column in own_test_columns(measured, has_local=_has_local(groups))
            if all(column[1].is_declared(record) for record in records)
        ),
        *((name, cost, unit_of(cost, records)) for name, cost in costs.items()),
    ]


def common_score(records: Sequence[RunRecord]) -> Column | None:
    """Return the main score that all runs have; None if nothing is evaluated.

    If clients of a run deploy their own models, it is the score of these.
    """
    begun = [record for record in records if record.rounds]
    columns = [{*record.metrics.column_names} for record in begun]
    shared = set.intersection(*columns) if columns else set()
    scores = [begun[0].column(name) for name in shared]
    if not any(record.own_models for record in begun):
        scores = [column for column in scores if column.scored and column.scored.model != PERSONAL]
    return main_score(by_name(scores))


def further_scores(records: Sequence[RunRecord]) -> list[Column]:
    """Return the other metrics with a title beside the main score, of its set and model."""
    score = common_score(records)
    if score is None or score.scored is None:
        return []
    columns = {n: record.column(n) for record in records for n in record.metrics.column_names}
    return [
        column
        for column in columns.values()
        if column.title and column.scored and column.name != score.name
        if column.scored == score.scored._replace(score=column.scored.score)
    ]


def in_words(column: Column) -> str:
    """Return a main score in the words of a table's head."""
    if (scored := column.scored) is None:
        return column.name.replace("_", " ")
    return f"{SETS[scored.samples]}{scored.score}"


def unit_of(metric: Metric, records: Sequence[RunRecord]) -> str:
    """Return the unit of a metric's values in some runs."""
    having = [record for record in records if metric.is_in(record)]
    units = {metric.values_in(metric.column_in(record)).unit for record in having or records}
    unit = units.pop() if len(units) == 1 else ""
    return fitting_unit(map(metric.of, having), unit) if unit in UNITS else unit


def judged_columns(
    columns: Sequence[tuple[str, Metric, str]],
) -> Sequence[tuple[str, Metric, str]]:
    """Return the columns of `compared_metrics` that judge runs.

    They are the first one, the columns that the user asks for (targets and further metrics), and
    for clients' own tests the last score and the score of the best round by the holdout.
    """
    costs = [name for name, *_ in columns].index(next(iter(COSTS)))  # they stand at the end
    return [*columns[:1], *(column for column in columns[3:costs] if column[0] not in FURTHER)]


def _has_local(groups: Sequence[RunGroup]) -> bool:
    return bool(local_rows({group.label: group.settings for group in groups}))


def comparison_document(
    groups: Sequence[RunGroup], columns: Sequence[tuple[str, Metric, str]]
) -> dict[str, Any]:
    """Return the comparison as plain values: per group its runs, and its metrics as measured."""
    tables = {
        name: table
        for (name, *_), table in zip(columns, comparison_tables(groups, columns), strict=True)
    }
    documents = [
        {
            "label": group.label,
            "settings": group.settings,
            "runs": [_run_document(record) for record in group.records],
            "metrics": {name: _cell_document(cells, group.label) for name, cells in tables.items()},
        }
        for group in groups
    ]
    return {"groups": documents, "notes": _notes([r for g in groups for r in g.records])}


def _run_document(record: RunRecord) -> dict[str, Any]:
    return {
        "run": str(record.path),
        "seed": record.seed,
        "state": record.state,
        "rounds": record.rounds,
        "of": record.settings["rounds"],
    }


def _cell_document(table: ResultTable, row: str) -> dict[str, Any]:
    """Return the only cell of a row, with its difference from the best row."""
    (column,) = table.columns
    cell, apart = table.cell(row, column), table.differences(column).get(row)
    return {
        "metric": str(table.metric),
        "mean": cell.mean,
        "deviation": cell.deviation,
        "n": len(cell.measured),
        "seeds": cell.seeds,
        "difference": apart and asdict(apart),
        "values": [{"seed": seed, "value": value} for seed, value in sorted(cell.values.items())],
    }


def _notes(records: Sequence[RunRecord]) -> list[str]:
    """Return lines about unfinished and damaged runs, and about runs of other origin."""
    states = {record.state for record in records}
    said = [note for state, note in STATES.items() if state in states]
    damaged = [line for record in records for line in record.notes]
    damaged += [note for record in records if (note := record.model_problem)]
    said += privacy_notes(records)
    damaged += origin_notes({str(record.path): origins_of(record) for record in records})
    return [*said, *damaged]


def privacy_notes(records: Sequence[RunRecord]) -> list[str]:
    """Return a line on the meaning of the epsilons of some runs: accountant, relation and delta."""
    kinds: dict[str, list[str]] = {}
    for record in records:
        words = record.privacy
        if words:
            kinds.setdefault(words, []).append(str(record.path))
    if len(kinds) == 1:
        return [f"epsilon: {words}." for words in kinds]
    return [f"epsilon of {', '.join(paths)}: {words}." for words, paths in kinds.items()]


def comparison(groups: Sequence[RunGroup], columns: Iterable[tuple[str, Metric, str]]) -> Grid:
    """Return the comparison as a grid: a row per group, a column per metric."""
    header, definitions, notes = ["run", "rounds"], list[str](), list[str]()
    rows = [[Entry(group.label), _progress(group)] for group in groups]
    footnotes = Footnotes()
    for table in comparison_tables(groups, columns):
        grid = grid_of(table, footnotes)
        header += table.columns
        definitions.append(grid.notes[0])
        notes += grid.notes[1:]
        for row, entries in zip(rows, grid.rows, strict=True):
            row.append(entries[1])
    records = [record for group in groups for record in group.records]
    runs = len(records)
    return Grid(
        f"{runs} run{'s' if runs > 1 else ''}, grouped by settings apart from the seed",
        tuple(header),
        tuple(map(tuple, rows)),
        tuple(dict.fromkeys([*_notes(records), *definitions, *notes])),
    )


def comparison_tables(
    groups: Sequence[RunGroup], columns: Iterable[tuple[str, Metric, str]]
) -> list[ResultTable]:
    """Return a table of one column per metric, with its unit in the column's name."""
    labels = tuple(group.label for group in groups)
    tables = []
    for name, metric, unit in columns:
        title = f"{name} [{unit}]" if unit not in ("", "rounds") else name
        cells = {(group.label, title): group.cell(metric, title) for group in groups}
        local = local_rows({(group.label, title): group.settings for group in groups})
        cells = over_local(cells, dict.fromkeys(cells, metric), local)
        tables.append(ResultTable("", str(metric), unit, labels, (title,), (*cells.values(),)))
    return tables


def _progress(group: RunGroup) -> Entry:
    """Return the rounds of a group's runs, and the states of unfinished runs."""
    rounds = [record.rounds for record in group.records]
    counts = Counter(record.state for record in group.records)
    text = "-".join(map(str, sorted({min(rounds), max(rounds)})))
    words = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    if words:
        text += f" of {group.settings.get('rounds')}, {', '.join(words)}"
    return Entry(text, value=max(rounds))


def _telling_keys(settings: Sequence[dict[str, Any]]) -> dict[str, set[Any]]:
    """Return the keys that differ between groups with the same component, with these components.

    The name of another component tells its values, including its defaults.
    """
    telling: dict[str, set[Any]] = {}
    for key in differing_keys(settings):
        values: dict[Any, set[str]] = {}
        for of_run in settings:
            if key in of_run:
                values.setdefault(_component_of(key, of_run), set()).add(repr(of_run[key]))
        components = {
            component
            for component, different in values.items()
            if key == UNREAD or len(different) > 1
        }
        telling |= {key: components} if components else {}
    return telling


def _component_of(key: str, settings: Mapping[str, Any]) -> Any:
    """Return the name of the component that a setting is a field of; None of other settings."""
    component = f"{key.rpartition('.')[0]}.name"
    return None if key == component else settings.get(component)


def _label(settings: dict[str, Any], telling: Mapping[str, Collection[Any]]) -> str:
    """Return the settings that tell a group from others; components by their names alone."""
    words = [
        str(settings[key]) if key in COMPONENTS else label_text(key, settings[key])
        for key, components in telling.items()
        if key in settings and _component_of(key, settings) in components
    ]
    return ", ".join(words) or str(settings.get("method.name"))


def _with_unique_labels(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return groups with distinct labels.

    Equal labels get the formula's revision, "in progress", or else a number.
    """
    ended = {group.label for group in groups if not group.in_progress}
    revisions: dict[str, set[str | None]] = {}
    for group in groups:
        revisions.setdefault(group.label, set()).add(group.revision)
    seen: Counter[str] = Counter()
    labelled = []
    for group in groups:
        label = group.label
        if len(revisions[label]) > 1:
            label += f", formula of revision {group.revision or 'unknown'}"
        label += ", in progress" if group.in_progress and group.label in ended else ""
        seen[label] += 1
        labelled.append(
            replace(group, label=label if seen[label] == 1 else f"{label} ({seen[label]})")
        )
    return labelled
