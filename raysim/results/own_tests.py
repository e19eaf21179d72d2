"""Clients' own tests in tables: their columns of a comparison, and gains over local training."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from raysim.core.scoring import GAIN, UNEQUAL
from raysim.results.column_metrics import OVER_LOCAL, Metric
from raysim.results.tables import ResultCell
from raysim.storage.summary import headlines

PERSONAL, FINETUNED = "personal_", "finetuned_"
LOCAL = "local"
"""Name of the method whose clients never communicate."""
GLOBAL = "test set, global model"
FURTHER = (
    GLOBAL,
    *("own test, by client", "deviation", "worst tenth", "gain over global", "fine-tuned"),
    *("new clients", "gain over local", "best on test", "mean of clients", "worst decile"),
)
"""Columns of a comparison by which runs are not judged."""
OF_CLIENTS = (("mean of clients", "client_accuracy_mean"), ("worst decile", "client_accuracy_d1"))
"""Columns of a comparison of runs with `evaluation.clients`."""
OF_METHODS = ("method.", "channel", "downlink", "aggregation.", "weighting", "engine.")
"""Begins of the settings that say what is made of clients' training, nothing under `local`, or that
change it by rounding alone."""
OWN_VALUES = (
    *("local.lr", "evaluation.finetune_epochs", "evaluation.finetune_steps"),
    *("evaluation.when", "evaluation.every"),
    *("evaluation.clients", "evaluation.trained", "evaluation.train_set", "patience_metric"),
)
"""Settings of which a method may have another value than the local training that it is compared
with: its learning rate, and which of its models are evaluated, and when."""
Key = TypeVar("Key", bound=Hashable)


def own_test_columns(
    measured: Collection[str], *, has_local: bool
) -> list[tuple[str, Metric, str]]:
    """Return the columns of a comparison on clients' own tests: name, metric and unit.

    Without these, of `evaluation.clients`: mean and lowest decile of the clients' accuracies.

    Args:
        measured: The columns of the runs.
        has_local: Whether there is a row of local training.
    """
    scores = [name for name in headlines(measured) if name.startswith(f"{PERSONAL}local_test_")]
    if not scores:
        return [(n, Metric("final", c), "%") for n, c in OF_CLIENTS if c in measured]
    score, by_client = scores[:2]
    by = f"{PERSONAL}holdout_{'accuracy' if 'accuracy' in score else 'loss'}"
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
    """Return, per row, the only row of local training that differs in the method alone.

    Rows without one are missing.

    Args:
        rows: Settings by dotted key that decide the results, by row.
    """
    local: dict[str, list[Key]] = {}
    for row, settings in rows.items():
        if settings.get("method.name") == LOCAL:
            local.setdefault(_common(settings), []).append(row)
    found = {row: local.get(_common(settings), []) for row, settings in rows.items()}
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


def _common(settings: Mapping[str, Any]) -> str:
    """Return the settings that a run shares with the local training that it is compared with."""
    common = {k: v for k, v in settings.items() if not k.startswith(OF_METHODS)}
    return repr(sorted((k, v) for k, v in common.items() if k not in OWN_VALUES))
