"""Citation of runs: data, version of raysim, settings and figures in words, and BibTeX."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any

from raysim.errors import visible
from raysim.results.compare import RunGroup, comparison, judged_columns
from raysim.results.metrics import Metric
from raysim.results.references import SHOWN_DIGITS
from raysim.results.render.grid import FEW_NOTE
from raysim.results.runs import RunRecord, result_settings
from raysim.storage.checkpoints import SAMPLES
from raysim.user_input import key_text

UNKNOWN = "unknown"
WIDTH = 10
"""Characters of a part's name."""
TITLE = "raysim: a Ray-scaled simulation engine for federated learning"


def citation(groups: Sequence[RunGroup], columns: Sequence[tuple[str, Metric, str]]) -> str:
    """Return the citation of groups of runs, as a text that BibTeX reads.

    BibTeX takes the entries and skips the words before them.

    Args:
        groups: The runs.
        columns: The columns of their comparison, as `compared_metrics` returns them.
    """
    records = [record for group in groups for record in group.records]
    words = [*_words(groups, records, columns)]
    versions = dict.fromkeys(map(software_of, records))
    software = "; ".join(_version(*version) for version in versions)
    notes = "; ".join(" ".join(line.split()) for line in words)
    started = max(filter(None, map(started_in, records)), default=None)
    entries = [
        _entry(
            "software",
            "raysim",
            {
                "author": "{The raysim authors}",
                "title": TITLE,
                "version": software,
                "note": "Apache-2.0",
            },
        ),
        _entry(
            "misc",
            f"raysim-{_digest(groups[0])}",
            {
                "title": "Results of simulated federated learning: "
                + ", ".join(group.label for group in groups),
                **({"year": started[:4]} if started else {}),
                "howpublished": "runs of raysim",
                "note": notes,
            },
        ),
    ]
    return "\n".join([*words, "", *entries])


def software_of(record: RunRecord) -> tuple[str, str | None]:
    """Return the version of raysim that ran, and the commit of its sources, if that is known."""
    packages, source = (record.environment.get(name) for name in ("packages", "source"))
    version = packages.get("raysim-fl") if isinstance(packages, dict) else None
    told = source if isinstance(source, dict) else {}
    commit = told.get("commit")
    if commit and told.get("changed"):
        commit = f"{commit} with changes"
    return str(version or UNKNOWN), str(commit) if commit else None


def data_of(record: RunRecord) -> tuple[str, dict[str, str]]:
    """Return the name of a run's data, and the sha256 of its splits where a checkpoint has it."""
    path = record.settings.get("dataset.path")
    name = "its own task" if record.own_task else str(record.settings.get("dataset.name"))
    if path and not record.own_task:
        name = f"{name} {PurePath(str(path)).name}"
    digests = {part: record.sealed(part) for part in SAMPLES.values()}
    return name, {part: digest for part, digest in digests.items() if digest}


def started_in(record: RunRecord) -> str | None:
    """Return the moment at which a run started, in ISO 8601; None if it records none."""
    try:
        return datetime.fromisoformat(str(record.environment.get("started"))).isoformat()
    except ValueError:
        return None


def _words(
    groups: Sequence[RunGroup],
    records: Sequence[RunRecord],
    columns: Sequence[tuple[str, Metric, str]],
) -> Iterator[str]:
    """Yield the lines in words."""
    for name, digests in {repr(data_of(record)): data_of(record) for record in records}.values():
        digits = (f"sha256 of {part} {digest[:SHOWN_DIGITS]}" for part, digest in digests.items())
        yield _line("data", ", ".join([name, *digits, "licence: that of its source"]))
    for version in dict.fromkeys(map(software_of, records)):
        yield _line("raysim", _version(*version))
    grid = comparison(groups, judged_columns(columns))
    for group, row in zip(groups, grid.rows, strict=True):
        seeds = ", ".join(str(record.seed) for record in group.records)
        yield _line("settings", f"{group.label}: sha256 {_digest(group)}, seed {seeds}")
        figures = (
            f"{column} {entry.text}" for column, entry in zip(grid.header[2:], row[2:], strict=True)
        )
        yield _line("figures", f"{group.label}: {', '.join([f'{row[1].text} rounds', *figures])}")
    if FEW_NOTE in grid.notes:
        yield _line("note", FEW_NOTE)


def _line(name: str, text: str) -> str:
    # An at sign begins an entry of BibTeX.
    return f"{name:{WIDTH}}{visible(text, 2_000).replace('@', '(at)')}"


def _version(version: str, commit: str | None) -> str:
    return f"{version}, commit {commit}" if commit else f"{version}, commit {UNKNOWN}"


def _digest(group: RunGroup) -> str:
    """Return the digest of the settings that decide the results of a group, without the seed."""
    text = key_text(result_settings(group.records[0].settings))
    return hashlib.sha256(text.encode()).hexdigest()[:SHOWN_DIGITS]


def _entry(kind: str, key: str, fields: dict[str, Any]) -> str:
    """Return an entry of BibTeX; characters that end or begin one are left out of its values."""
    plain = {name: _plain(str(value)) for name, value in fields.items()}
    lines = (f"  {name} = {{{value}}}," for name, value in plain.items())
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


def _plain(text: str) -> str:
    kept = "".join(mark for mark in text if mark not in '{}\\"@')
    return "".join(f"\\{mark}" if mark in "%&#$_" else mark for mark in kept).replace("±", "+/-")
