"""Declarations of a run's columns, collected from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysim.api.class_metrics import COLUMNS as METRICS
from raysim.api.columns import OF_ENGINE, Column, by_name
from raysim.api.components import called
from raysim.api.scoring import (
    HOLDOUT,
    LOCAL_TEST,
    LOSSES,
    TEST,
    TRAIN_SET,
    evaluated_columns,
)
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.storage.column_names import OF_ROUNDS, check_names
from raysim.storage.summary import FIGURES, final_name, main_score


def of_components(settings: Settings) -> dict[str, Column]:
    """Return the columns that the components of a run declare, by name.

    Raises:
        SettingsError: a declaration is none, or has the name of a column of the engine.
    """
    stages = (*settings.stages.values(), *settings.down_stages.values())
    writers = (settings.method, settings.selection, settings.aggregation, *stages)
    return by_name(column for part in writers for column in _declared_by(part))


def _declared_by(part: Any) -> list[Column]:
    columns = part.columns
    whole = isinstance(columns, list | tuple)
    if not whole or any(not isinstance(column, Column) for column in columns):
        raise SettingsError(f"{called(part)}: columns={columns!r:.80}: must be raysim.Column's")
    check_names([c.name for c in columns], OF_ROUNDS, (), f"{called(part)}: the declared column")
    for column in columns:
        figure = final_name(column) if column.fold == "last" else column.name
        if column.fold and figure in FIGURES:
            raise SettingsError(
                f"{called(part)}: the declared column {column.name!r}: its fold={column.fold!r} has"
                " the name of another figure in summary.json; choose another name"
            )
    return [*columns]


def main_score_of(settings: Settings, *, own_models: bool) -> Column | None:
    """Return the main score of a run on a dataset, from its settings.

    Clients' own tests count where they are cut (`evaluation.local_test`); whether a dataset has
    some is known once it is read.

    Args:
        settings: The settings.
        own_models: Whether the run is compared with runs in which clients deploy their own models.
    """
    evaluation = settings.evaluation
    sets = {
        LOCAL_TEST.samples: evaluation.test and evaluation.local_test > 0,
        HOLDOUT.samples: evaluation.holdout > 0,
        TEST.samples: evaluation.test,
        TRAIN_SET.samples: evaluation.train_set,
    }
    columns = columns_of(settings).items()
    return main_score(
        {
            name: column
            for name, column in columns
            if (scored := column.scored)
            and sets.get(scored.samples)
            and (own_models or not scored.model)
        }
    )


def is_main_score(settings: Settings, column: str) -> bool:
    """Return whether a column is a run's main score, also under the name for deployed models."""
    ways = (deploys_own_models(settings), True)
    scores = [main_score_of(settings, own_models=own_models) for own_models in ways]
    return column in {score.name for score in scores if score}


def deploys_own_models(settings: Settings) -> bool:
    """Return whether clients deploy their own models, not the global one."""
    return settings.method.deploys_client_models or settings.evaluation.when == "after"


def columns_of(settings: Settings) -> dict[str, Column]:
    """Return the columns by name that a run on a dataset may have, from its settings.

    Of a numbered one, the first.
    """
    declared, scoring = dict[str, Column](), settings.dataset.scoring
    for column in of_components(settings).values():
        whole = replace(column, name=f"{column.name}_1") if column.numbered else column
        declared |= by_name([whole, *([whole.total] if whole.fold == "sum" else [])])
    metrics = [column for column in METRICS if column.name in settings.evaluation.metrics]
    scores = [*scoring.scores.values(), *metrics]
    scores += LOSSES.values() if scoring.classifies else []
    evaluated = evaluated_columns((*scores,))
    return {**declared, **OF_ENGINE, **evaluated}


def column_in(columns: Mapping[str, Column], name: str) -> Column | None:
    """Return a column that a run may have by its name; a numbered one has any number."""
    first = columns.get(f"{name.rstrip('0123456789')}1")
    return first.named(name) if first and first.numbered else columns.get(name)
