"""Columns of the models that clients deploy, of runs under which these are the global one."""

from __future__ import annotations

import pyarrow as pa

from raysim.api.columns import by_scored
from raysim.api.scoring import (
    GAIN,
    HOLDOUT,
    JAIN,
    LOCAL_TEST,
    PERSONAL,
    TRAIN_SET,
    spread_column,
)
from raysim.storage.rows.metrics import declared_field, declared_in

OF_CLIENTS = {of.samples for of in (LOCAL_TEST, HOLDOUT, TRAIN_SET)}
"""Sets of the clients' samples."""


def with_deployed(metrics: pa.Table) -> pa.Table:
    """Add columns of the models that clients deploy to a run that has none: the global one's.

    So rows of a table have one metric: `final(personal_local_test_accuracy)`. Gains are 0.
    """
    known = by_scored(declared_in(metrics.schema).values())
    if any(of.model == PERSONAL for of in known):
        return metrics
    for of, column in known.items():
        if of.model or of.samples not in OF_CLIENTS:
            continue
        own, values = column.of(of._replace(model=PERSONAL)), metrics[column.name]
        metrics = metrics.append_column(declared_field(own, values.type), values)
        if of.spread == JAIN:
            zeros = [None if value is None else 0.0 for value in values.to_pylist()]
            score = known[of._replace(spread="")].of(of._replace(model=PERSONAL, spread=""))
            field = declared_field(spread_column(score, GAIN), pa.float64())
            metrics = metrics.append_column(field, pa.array(zeros, pa.float64()))
    return metrics
