"""Page of a report: the template filled with tables, charts and facts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.errors import SettingsError, visible
from raysim.results.compare import RunGroup, further_scores
from raysim.results.render import Entry, Grid
from raysim.results.render.formats import html_table
from raysim.results.report import charts, clients
from raysim.results.report.answers import answer_tables
from raysim.results.report.drawing import Chart, Legend, colour_style, keys
from raysim.results.report.partitions import ReadLabels, class_counts, class_names, client_names
from raysim.results.report.unlike import unlike_tables
from raysim.results.report.virtual import gantt_charts, staleness_charts
from raysim.results.runs import RunRecord
from raysim.results.tables import ResultTable, differing_keys
from raysim.results.verdict import verdicts
from raysim.storage.summary import EPSILON, HYPOTHETICAL
from raysim.user_input import key_text

FILES = Path(__file__).parent
EXTRAS = ("jinja2", "matplotlib")
FACTS = (
    *("source", "python", "platform", "cpus", "gpus", "packages", "backend", "stack_size"),
    "driver",
)
"""Keys of `environment.json` to show on the page."""
COLUMNS = ("test_accuracy", "test_loss")
"""Columns with curves, in addition to the columns that judge runs and a task's metrics."""
EPSILONS = (EPSILON, HYPOTHETICAL)
"""Columns that curves are drawn against; their own curves are drawn by round."""
MANY = ("round", "total_virtual_seconds")
"""Columns against which curves of several panels are drawn."""
PARTITION = ("dataset.", "partition.", "clients", "seed")
"""Prefixes of the settings that decide a partition."""


def check_extras() -> None:
    """Check that the packages of a report are installed.

    Raises:
        SettingsError: a package is missing; the message says how to install it.
    """
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"report: needs {' and '.join(missing)}; pip install 'raysim-fl[report]'"
        )


@dataclass(frozen=True)
class Panel:
    """Groups of runs that are drawn in one chart, such as the runs of a table's column.

    Attributes:
        title: Its title; "" for the only panel of a page.
        groups: The groups by their names in charts, as the rows of the table.
    """

    title: str
    groups: Mapping[str, RunGroup]

    def numbered(self, legend: Legend) -> dict[int, RunGroup]:
        """Return the groups by their number in a legend."""
        return {legend.labels.index(row): group for row, group in self.groups.items()}


def panel_of(groups: Sequence[RunGroup]) -> Panel:
    """Return the only panel of a page."""
    return Panel("", {group.label: group for group in groups})


def report(
    panels: Sequence[Panel],
    table: Grid,
    judged: Sequence[ResultTable],
    labels: ReadLabels,
    *,
    differences: Grid | None = None,
    tuning: Grid | None = None,
    searches: Sequence[Chart] = (),
    cite: str = "",
) -> str:
    """Return the page of groups of runs.

    Args:
        panels: The runs.
        table: Their comparison.
        judged: Values of the columns that judge runs.
        labels: Labels of a run's training samples, for the heat maps.
        differences: Differences from the best rows, if rows are compared.
        tuning: Values that searches before the runs have chosen, if there were any.
        searches: Their charts.
        cite: How to cite the runs.
    """
    groups = [group for panel in panels for group in panel.groups.values()]
    records = [record for group in groups for record in group.records]
    rows = dict.fromkeys(row for panel in panels for row in panel.groups)
    legend = Legend(
        (*dict.fromkeys([*rows, *(row for judged_table in judged for row in judged_table.rows)]),)
    )
    return render(
        "page.html",
        title=f"raysim: {table.title}",
        verdicts=[
            (verdict, charts.seeds(legend, verdict.table, verdict.column, f"seeds{number}"))
            for number, verdict in enumerate(verdicts(judged))
        ],
        table=html_table(table),
        differences=differences and html_table(differences),
        tuning=tuning and html_table(tuning),
        searches=searches,
        legend=keys(legend, len(rows)),
        curves=_curves(legend, panels, judged),
        clients=_clients(legend, panels),
        answers=[html_table(grid) for grid in answer_tables(groups)],
        unlike=[html_table(grid) for grid in unlike_tables(groups, labels)],
        partitions=_partitions(groups, labels),
        has_classes=_has_classes(groups, labels),
        virtual=[*gantt_charts(groups), *staleness_charts(groups)],
        time=_present([charts.times(groups, "times"), charts.phases(groups, "phases")]),
        settings=(grid := settings_table(groups)) and html_table(grid),
        common=_common(groups),
        environments=_environments(records),
        runs=html_table(_runs(records)),
        cite=cite,
    )


def render(template: str, folder: Path = FILES, **values: Any) -> str:
    """Return a page that loads nothing.

    Args:
        template: Name of the template, which extends `base.html`.
        folder: Folder of the template.
        values: `title` and the template's other variables; text is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader([folder, FILES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((FILES / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    style = colour_style() + style
    return environment.get_template(template).render(style=style, script=script, **values)


def settings_table(groups: Sequence[RunGroup]) -> Grid | None:
    """Return the settings that differ: a row per group, a column per setting; None if all agree."""
    keys = differing_keys([group.settings for group in groups])
    if not keys:
        return None
    rows = tuple(
        (Entry(group.label), *(Entry(text_of(group.settings.get(key, "-"))) for key in keys))
        for group in groups
    )
    return Grid("Settings that differ, apart from the seed", ("run", *keys), rows)


def rerun_command(record: RunRecord) -> str:
    """Return the command that starts a run with the same settings and seed in a new folder."""
    if record.own_task:
        return "raysim.run(settings, task=task), with the task of this run"
    return shlex.join(["raysim", "run", str(record.path / "config.json"), "out=none"])


def _curves(
    legend: Legend, panels: Sequence[Panel], judged: Sequence[ResultTable]
) -> list[tuple[str, list[Chart]]]:
    """Return the curves of each panel by its title; of several panels by round and virtual time."""
    metrics = [table.parsed_metric(cell) for table in judged for cell in table.cells]
    groups = [group for panel in panels for group in panel.groups.values()]
    further = further_scores([record for group in groups for record in group.records])
    columns = dict.fromkeys(
        [*(metric.column for metric in metrics), *COLUMNS, *(column.name for column in further)]
    )
    drawn = [column for column in columns if column not in charts.AGAINST]
    against = charts.AGAINST if len(panels) == 1 else MANY
    return [
        (
            panel.title,
            _panel_curves(legend, panel, drawn, against, f"-{number}" if number else ""),
        )
        for number, panel in enumerate(panels)
    ]


def _panel_curves(
    legend: Legend, panel: Panel, columns: Sequence[str], against: Iterable[str], end: str
) -> list[Chart]:
    """Return the curves of a panel; of its training loss if it has none of the columns."""
    groups = panel.numbered(legend)

    def drawn(names: Sequence[str], axes: Iterable[str]) -> list[Chart]:
        return _present(
            [
                charts.curves(legend, groups, name, axis, f"{name}-{axis}{end}")
                for name in names
                for axis in axes
            ]
        )

    charts_drawn = drawn(columns, against) or drawn(("train_loss",), against)
    return charts_drawn + drawn(EPSILONS, ("round",))


def _clients(legend: Legend, panels: Sequence[Panel]) -> list[tuple[str, list[Chart]]]:
    """Return the charts of single clients of each panel, by its title."""
    drawn = []
    for number, panel in enumerate(panels):
        groups = panel.numbered(legend)
        charts_of_clients = _present(
            [
                clients.histogram(legend, groups, f"histogram{number}"),
                clients.deciles(legend, groups, f"deciles{number}"),
            ]
        )
        charts_of_clients += clients.own_beside_global(legend, groups, f"own{number}")
        charts_of_clients += clients.scatters(legend, groups, f"scatter{number}")
        if charts_of_clients:
            drawn.append((panel.title, charts_of_clients))
    return drawn


def _present(drawn: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in drawn if chart is not None]


def _partitions(groups: Sequence[RunGroup], labels: ReadLabels) -> list[Chart]:
    """Draw one heat map for each partition, of the first seed of its first group."""
    heat_maps: dict[str, Chart] = {}
    for group in groups:
        record = group.records[0]
        decisive = {k: v for k, v in record.settings.items() if k.startswith(PARTITION)}
        key = key_text(decisive, str(record.path) if record.own_task else "")
        if key in heat_maps or (counts := class_counts(record, labels(record))) is None:
            continue
        named = (
            "own task"
            if record.own_task
            else f"{record.settings.get('dataset.name')}, {record.settings.get('partition.name')}"
        )
        title = f"{named}, seed {record.seed} ({record.path})"
        words = client_names(record), class_names(record)
        heat_maps[key] = charts.partition(title, counts, f"partition{len(heat_maps)}", *words)
    return [*heat_maps.values()]


def _has_classes(groups: Sequence[RunGroup], labels: ReadLabels) -> bool:
    """Return whether targets of a run may be classes, as far as is known."""
    found = (labels(group.records[0]) for group in groups)
    return any(targets is None or len(targets) for targets in found)


def _common(groups: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """Return the settings that all groups share."""
    differing = differing_keys([group.settings for group in groups])
    first = groups[0].settings
    return [(key, text_of(value)) for key, value in first.items() if key not in differing]


def _environments(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the distinct environments, each with the directories of its runs."""
    environments: dict[str, dict[str, Any]] = {}
    for record in records:
        recorded = record.environment
        facts = [(name, text_of(recorded[name])) for name in FACTS if name in recorded]
        if isinstance(actors := recorded.get("actors"), list):
            facts.append(("actors", str(len(actors))))
        environment = environments.setdefault(json.dumps(facts), {"facts": facts, "runs": []})
        environment["runs"].append(visible(str(record.path)))
    return [*environments.values()]


def _runs(records: Sequence[RunRecord]) -> Grid:
    """Return the table of single runs, with digests and commands."""
    rows = tuple(
        (
            Entry(str(record.path)),
            Entry(str(record.seed), value=record.seed),
            Entry(record.state),
            Entry(str(record.rounds), value=record.rounds),
            Entry(str(record.environment.get("started", "-"))),
            Entry(record.digest or "-"),
            Entry(rerun_command(record)),
        )
        for record in records
    )
    header = ("run", "seed", "state", "rounds", "started", "sha256 of the model", "to run it again")
    return Grid("Runs", header, rows)


def text_of(value: Any) -> str:
    """Return a setting or a fact in one line, in words: none for null, and lists without braces."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{name} {text_of(part)}" for name, part in value.items()) or "none"
    elif isinstance(value, list | tuple):
        text = ", ".join(map(text_of, value)) or "none"
    elif isinstance(value, str):
        text = value
    else:
        text = "none" if value is None else json.dumps(value, default=str)
    return visible(text, 2_000)
