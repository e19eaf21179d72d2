"""Clients' own tests in tables: their columns of a comparison, and gains over local training."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from raysim.results.column_metrics import OVER_LOCAL, Metric
from raysim.results.tables import ResultCell
from raysim.storage.summary import GAIN, UNEQUAL, headlines

PERSONAL, FINETUNED = "personal_", "finetuned_"
LOCAL = "local"
"""Name of the method whose clients never communicate."""
FURTHER = (
    *("own test, by client", "deviation", "worst tenth", "gain over global", "fine-tuned"),
    *("new clients", "gain over local", "best on test"),
)
"""Columns of a comparison by which runs are not judged."""
OF_DATA = (
    *("dataset.", "partition.", "clients", "evaluation.local_test", "evaluation.holdout"),
    *("evaluation.new_clients", "evaluation.test_samples"),
)
"""Prefixes of the settings of which runs on the same data have the same values."""
Key = TypeVar("Key", bound=Hashable)


def own_test_columns(
    measured: Collection[str], *, has_local: bool
) -> list[tuple[str, Metric, str]]:
    """Return the columns of a comparison on clients' own tests: name, metric and unit.

    Args:
        measured: The columns of the runs.
        has_local: Whether there is a row of local training.
    """
    scores = [name for name in headlines(measured) if name.startswith(f"{PERSONAL}local_test_")]
    if not scores:
        return []
    score, by_client = scores[:2]
    by = score.replace("local_test", "holdout", 1)
    unit = "%" if "accuracy" in score else ""
    tuned, new = (score.replace(PERSONAL, p) for p in (FINETUNED, f"{PERSONAL}new_"))
    final = [
        ("own test, by sample", score),
        ("own test, by client", by_client),
        ("deviation", f"{score}_{UNEQUAL[0]}"),
        ("worst tenth", f"{score}_{UNEQUAL[1]}"),
        ("gain over global", f"{score}_{GAIN}"),
        ("fine-tuned", tuned),
        ("new clients", new),
    ]
    columns = [(n, Metric("final", column), unit) for n, column in final if column in measured]
    if has_local:
        columns.append(("gain over local", Metric(OVER_LOCAL, score), unit))
    if by in measured:
        columns.append(("at best holdout", Metric("at_best", score, by=by), unit))
    columns.append(("best on test", Metric("best", score), unit))
    return columns


def local_rows(rows: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Key]:
    """Return, per row, the only row of local training on the same data; rows without are missing.

    Args:
        rows: Settings by dotted key, by row.
    """
    local: dict[str, list[Key]] = {}
    for row, settings in rows.items():
        if settings.get("method.name") == LOCAL:
            local.setdefault(_data_of(settings), []).append(row)
    found = {row: local.get(_data_of(settings), []) for row, settings in rows.items()}
    return {row: each[0] for row, each in found.items() if len(each) == 1}


def over_local(
    cells: Mapping[Key, ResultCell], metrics: Mapping[Key, Metric], local: Mapping[Key, Key]
) -> dict[Key, ResultCell]:
    """Return cells with gains over local training in place of the values that they are of.

    A seed that one of both lacks has no value.

    Args:
        cells: The cells.
        metrics: Their metrics.
        local: Per cell, that of local training, by the same metric.
    """
    changed = dict(cells)
    for place, cell in cells.items():
        if metrics[place].name != OVER_LOCAL:
            continue
        base = cells[local[place]].measured if place in local else {}
        values = {
            seed: None if value is None or seed not in base else value - base[seed]
            for seed, value in cell.values.items()
        }
        changed[place] = replace(cell, values=values)
    return changed


def _data_of(settings: Mapping[str, Any]) -> str:
    return repr(sorted((k, v) for k, v in settings.items() if k.startswith(OF_DATA)))
