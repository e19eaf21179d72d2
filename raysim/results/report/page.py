"""Page of a report: the template filled with tables, charts and facts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.core.errors import SettingsError, visible
from raysim.core.user_input import key_text
from raysim.results.compare import RunGroup
from raysim.results.render import Entry, Grid
from raysim.results.render.formats import html_table
from raysim.results.report import charts
from raysim.results.report.charts import Chart
from raysim.results.report.partitions import Labels, class_counts
from raysim.results.report.virtual import gantt_charts, staleness_charts
from raysim.results.runs import RunRecord
from raysim.results.tables import differing_keys

FILES = Path(__file__).parent
EXTRAS = ("jinja2", "matplotlib")
FACTS = ("python", "platform", "cpus", "gpus", "packages", "backend", "stack_size", "driver")
"""Keys of `environment.json` to show on the page."""
COLUMNS = ("test_accuracy", "test_loss")
PARTITION = ("dataset.", "partition.", "clients", "seed")
"""Prefixes of the settings that decide a partition."""


def check_extras() -> None:
    """Check that the packages of a report are installed.

    Raises:
        SettingsError: a package is missing; the message says how to install it.
    """
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        raise SettingsError(f"report: needs {' and '.join(missing)}; pip install 'raysim[report]'")


def report(
    groups: Sequence[RunGroup],
    table: Grid,
    labels: Labels,
    *,
    differences: Grid | None = None,
    tuning: Grid | None = None,
    searches: Sequence[Chart] = (),
) -> str:
    """Return the page of groups of runs.

    Args:
        groups: The runs.
        table: Their comparison.
        labels: Labels of a run's training samples, for the heat maps.
        differences: Differences from the best rows, if rows are compared.
        tuning: What searches before the runs have chosen, if there were any.
        searches: Their charts.
    """
    records = [record for group in groups for record in group.records]
    return render(
        "page.html",
        title=f"raysim: {table.title}",
        table=html_table(table),
        differences=differences and html_table(differences),
        tuning=tuning and html_table(tuning),
        searches=searches,
        curves=_curves(groups),
        legend=charts.legend(groups),
        clients=_present([charts.deciles(groups, "deciles")]),
        partitions=_partitions(groups, labels),
        virtual=[*gantt_charts(groups), *staleness_charts(groups)],
        time=_present([charts.times(groups, "times"), charts.phases(groups, "phases")]),
        settings=html_table(settings_table(groups)),
        common=_common(groups),
        environments=_environments(records),
        runs=html_table(_runs(records)),
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
    return environment.get_template(template).render(style=style, script=script, **values)


def settings_table(groups: Sequence[RunGroup]) -> Grid:
    """Return the settings that differ: a row per group, a column per setting."""
    keys = differing_keys([group.settings for group in groups])
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


def _curves(groups: Sequence[RunGroup]) -> list[Chart]:
    return _present(
        [
            charts.curves(groups, column, against, f"{column}-{against}".replace("_", "-"))
            for column in COLUMNS
            for against in charts.AGAINST
        ]
    )


def _present(drawn: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in drawn if chart is not None]


def _partitions(groups: Sequence[RunGroup], labels: Labels) -> list[Chart]:
    """Draw one heat map for each partition, of the first seed of its first group."""
    heat_maps: dict[str, Chart] = {}
    for group in groups:
        record = group.records[0]
        decisive = {k: v for k, v in record.settings.items() if k.startswith(PARTITION)}
        key = key_text(decisive, str(record.path) if record.own_task else "")
        if key in heat_maps or (counts := class_counts(record, labels)) is None:
            continue
        named = "own task" if record.own_task else _partition_title(record.settings)
        title = f"{named}, seed {record.seed} ({record.path})"
        heat_maps[key] = charts.heat_map(title, counts, f"partition{len(heat_maps)}")
    return [*heat_maps.values()]


def _partition_title(settings: Mapping[str, Any]) -> str:
    return f"{settings.get('dataset.name')}, {settings.get('partition.name')}"


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
        each = environments.setdefault(json.dumps(facts), {"facts": facts, "runs": []})
        each["runs"].append(visible(str(record.path)))
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
    """Return a setting or a fact in one line."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return visible(text, 2_000)
