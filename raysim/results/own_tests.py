"""Clients' own tests in tables: their columns of a comparison, and gains over local training."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from raysim.api.columns import Column, by_scored
from raysim.api.scoring import (
    ACCURACY,
    FINETUNED,
    GAIN,
    HOLDOUT,
    LOSS,
    NEW,
    PERSONAL,
    SPREAD,
    UNEQUAL,
)
from raysim.results.column_metrics import OVER_LOCAL, Metric
from raysim.results.tables import ResultCell
from raysim.storage.summary import headlines

LOCAL = "local"
"""Name of the method in which clients never communicate."""
GLOBAL = "test set, global model"
FURTHER = (
    GLOBAL,
    *("own test, by client", "deviation", "worst tenth", "gain over global", "fine-tuned"),
    *("new clients", "gain over local", "best on test", "mean of clients", "worst decile"),
)
"""Columns of a comparison that do not judge runs."""
OF_CLIENTS = (("mean of clients", "client_accuracy_mean"), ("worst decile", "client_accuracy_d1"))
"""Columns of a comparison of runs with `evaluation.clients`."""
OF_METHODS = ("method.", "channel", "downlink", "aggregation.", "weighting", "engine.")
"""Prefixes of settings for steps after clients' training, which `local` does not have, or for steps
that change it by rounding alone."""
OWN_VALUES = (
    *("local.lr", "evaluation.finetune_epochs", "evaluation.finetune_steps"),
    *("evaluation.when", "evaluation.every"),
    *("evaluation.clients", "evaluation.trained", "evaluation.train_set", "patience_metric"),
)
"""Settings that a method may have at another value than the local training that it is compared
with: its learning rate, and which of its models are evaluated, and when."""
Key = TypeVar("Key", bound=Hashable)
Cell = TypeVar("Cell", bound=ResultCell)


def own_test_columns(
    measured: Mapping[str, Column], *, has_local: bool
) -> list[tuple[str, Metric, str]]:
    """Return the columns of a comparison on clients' own tests: name, metric and unit.

    Without these, of `evaluation.clients`: mean and lowest decile of the clients' accuracies.

    Args:
        measured: The columns of the runs by name, as they are declared.
        has_local: Whether there is a row of local training.
    """
    scored = [(column, column.scored) for column in headlines(measured) if column.scored]
    column, score = next((pair for pair in scored if pair[1].model == PERSONAL), (None, None))
    if column is None or score is None:
        return [(n, Metric("final", c), "%") for n, c in OF_CLIENTS if c in measured]
    by_score = ACCURACY if score.score == ACCURACY.name else LOSS
    by = HOLDOUT._replace(score=by_score.name, model=PERSONAL)
    final = {
        "own test, by sample": score,
        "own test, by client": score._replace(spread=SPREAD[0]),
        "deviation": score._replace(spread=UNEQUAL[0]),
        "worst tenth": score._replace(spread=UNEQUAL[1]),
        "gain over global": score._replace(spread=GAIN),
        "fine-tuned": score._replace(model=FINETUNED),
        "new clients": score._replace(clients=NEW),
    }
    known, unit = by_scored(measured.values()), column.unit
    columns = [
        (name, Metric("final", known[name_of_column].name), unit)
        for name, name_of_column in final.items()
        if name_of_column in known
    ]
    if has_local:
        columns.append(("gain over local", Metric(OVER_LOCAL, column.name), unit))
    if by in known:
        columns.append(("at best holdout", Metric("at_best", column.name, by=known[by].name), unit))
    columns.append(("best on test", Metric("best", column.name), unit))
    return columns


def local_rows(rows: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Key]:
    """Return, per row, the only row of local training that differs in the method alone.

    Rows without one are missing.

    Args:
        rows: Settings by dotted key that decide the results, by row.
    """
    local: dict[str, list[Key]] = {}
    for row, settings in rows.items():
        if settings.get("method.name") == LOCAL:
            local.setdefault(_common(settings), []).append(row)
    matching = {row: local.get(_common(settings), []) for row, settings in rows.items()}
    return {row: matches[0] for row, matches in matching.items() if len(matches) == 1}


def over_local(
    cells: Mapping[Key, Cell], metrics: Mapping[Key, Metric], local: Mapping[Key, Key]
) -> dict[Key, Cell]:
    """Return cells with gains over local training in place of their values.

    A seed without a value in either of them has no value.

    Args:
        cells: The cells.
        metrics: Their metrics.
        local: For each cell, the cell of local training, by the same metric.
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


def _common(settings: Mapping[str, Any]) -> str:
    """Return the settings that a run shares with the local training that it is compared with."""
    common = {k: v for k, v in settings.items() if not k.startswith(OF_METHODS)}
    return repr(sorted((k, v) for k, v in common.items() if k not in OWN_VALUES))
