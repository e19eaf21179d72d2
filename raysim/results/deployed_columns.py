"""Columns of the models that clients deploy, of runs under which these are the global one."""

from __future__ import annotations

import pyarrow as pa

from raysim.core.scoring import GAIN, UNEQUAL, spread_column
from raysim.storage.rows.metrics import declared_field, declared_in
from raysim.storage.summary import MODELS


def with_deployed(metrics: pa.Table) -> pa.Table:
    """Add columns of the models that clients deploy to a run that has none: the global one's.

    So rows of a table have one metric: `final(personal_local_test_accuracy)`. Gains are 0.
    """
    columns = metrics.column_names
    of_sets = [n for n in columns if "local_test_" in n or n.startswith(("holdout_", "train_set_"))]
    shared = [n for n in of_sets if not n.startswith(MODELS)]
    declared = declared_in(metrics.schema)
    if any(n.startswith(MODELS[0]) for n in columns):
        return metrics
    for name in shared:
        field = metrics.field(name)
        metrics = metrics.append_column(field.with_name(f"personal_{name}"), metrics[name])
        score = name.removesuffix(f"_{UNEQUAL[-1]}")
        if score != name:
            zeros = [None if value is None else 0.0 for value in metrics[name].to_pylist()]
            added = pa.array(zeros, pa.float64())
            gain = spread_column(declared[score].named(f"personal_{score}"), GAIN)
            metrics = metrics.append_column(declared_field(gain, pa.float64()), added)
    return metrics
