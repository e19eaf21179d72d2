"""Summary of a run: the figures of `summary.json`, from the rows of its rounds."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.api.columns import BEYOND, Column, Scored, by_scored
from raysim.api.scoring import (
    ACCURACY,
    HOLDOUT,
    JAIN,
    LOCAL_TEST,
    LOSS,
    PERSONAL,
    SPREAD,
    TEST,
    TRAIN_SET,
)
from raysim.storage.recorder import Row

DROPPED = "clients_dropped"
"""Column of the number of clients dropped after errors, in runs with any."""
EPSILON, HYPOTHETICAL = "epsilon", "hypothetical_epsilon"
"""Columns of a run's epsilon, and of the epsilon of a hypothetical population. The first is also
the `stopped_by` of a run that ended at its limit."""
ROUNDS_BEYOND = "rounds_beyond_bound"
"""Figure of a run: rounds in which more bad clients arrived than the aggregation tolerates."""
FIGURES = (
    *("final_accuracy", "best_accuracy", "score", "final_score", "best_score", "rounds_to_target"),
    *("rounds", "seconds", "seconds_per_round", ROUNDS_BEYOND, "held_out_samples", "best_round"),
    *("stopped_by", EPSILON, HYPOTHETICAL, "privacy", "forced"),
)
"""Names in `summary.json` of figures that are no column's."""
VIRTUAL_SECONDS = "virtual_seconds"
VIRTUAL_JOULES = "virtual_joules"
LOST = "lost_clients"
VIRTUAL = (VIRTUAL_SECONDS, VIRTUAL_JOULES, LOST)
"""Columns of a virtual clock."""


def reached_at(points: Iterable[tuple[float, float]], target: float) -> float | None:
    """Return the place where the running maximum of a curve reaches a target, or None.

    The curve is interpolated between the point that reaches the target and the previous one, as in
    McMahan et al., section 3.

    Args:
        points: Place and value of each point, by place; NaN values are left out.
        target: The value to be reached.
    """
    before: tuple[float, float] | None = None
    for place, value in points:
        if not math.isfinite(value):
            continue
        if value >= target:
            if before is None:
                return float(place)
            start, best = before
            return start + (target - best) / (value - best) * (place - start)
        before = (place, max(value, before[1] if before else value))
    return None


REPORTED = (LOCAL_TEST, HOLDOUT, TEST, TRAIN_SET)
TO_CHOOSE = (HOLDOUT, LOCAL_TEST, TEST, TRAIN_SET)
"""Sets of samples of the main score, the first that is evaluated: the clients' own tests, held-out
samples, the test set, the clients' training samples. Choices by it, which would make a score on
test samples too good, are by held-out samples first."""


def main_score(columns: Mapping[str, Column], *, to_choose: bool = False) -> Column | None:
    """Return the column of the main score of runs, for the model that clients deploy.

    It is the accuracy, or else the loss, on the first evaluated set of REPORTED, or of TO_CHOOSE.
    None if nothing is evaluated.

    Args:
        columns: Declared columns of the runs, by name.
        to_choose: Whether a round, a model or settings are chosen by it.
    """
    scored = by_scored(columns.values())
    for samples in TO_CHOOSE if to_choose else REPORTED:
        if loss := of_deployed(scored, samples._replace(score=LOSS.name)):
            accuracy = scored.get(loss._replace(score=ACCURACY.name))
            return accuracy if accuracy and accuracy.larger else scored[loss]
    return None


def of_deployed(known: Container[Scored], score: Scored) -> Scored | None:
    """Return a score of the model which clients deploy; None where it is not known.

    Args:
        known: The known scores.
        score: A score of the global model.
    """
    named = (score._replace(model=PERSONAL), score)  # clients' own models, or the global one
    return next((candidate for candidate in named if candidate in known), None)


def final_name(column: Column) -> str:
    """Return the name of a column's last value in a summary."""
    scored = column.scored
    on_test = scored is not None and scored.set == TEST.set
    return f"final_{scored._replace(samples='').name if scored and on_test else column.name}"


def is_accuracy(column: Column | None) -> bool:
    """Return whether a column has the accuracy of a set, which a target is of."""
    scored = column.scored if column else None
    return scored is not None and scored.score == ACCURACY.name and not scored.spread


def rounds_to_target(
    rows: Sequence[Row], score: Column | None, target: float | None
) -> float | None:
    """Return the rounds to an accuracy; None without a target, or if it was not reached."""
    if target is None or score is None or not is_accuracy(score):
        return None
    accuracies = ((row["round"], row.get(score.name)) for row in rows)
    return reached_at(((n, a) for n, a in accuracies if a is not None), target)


def is_counted(number: int, every: int, rounds: int) -> bool:
    """Return whether the evaluation of a round, counted from 1, is one of the run.

    The end of a run is always evaluated. Where the run has gone on since, the evaluation at its
    former end stays in its rows, and nothing counts it.
    """
    return number % every == 0 or number == rounds


def end_of(recorded: Mapping[str, Any], rounds: int) -> int:
    """Return the last round of a run: `rounds`, or the round at which epsilon ended it.

    Args:
        recorded: Its summary, as written.
        rounds: Its maximum number of rounds.
    """
    ended = recorded.get("stopped_by") == EPSILON and isinstance(recorded.get("rounds"), int)
    return recorded["rounds"] if ended else rounds


def of_local_tests(
    rows: Sequence[Row],
    columns: Mapping[str, Column],
    every: int,
    rounds: int,
    best_round: int | None,
) -> Row:
    """Return figures of clients' own tests: in the best round by the holdout, and of any round.

    They are the scores by sample and by client, of each model, of runs with
    `evaluation.local_test`. A score without declared better values has no best one.

    Args:
        rows: A row per round.
        columns: Their columns by name, as they are declared.
        every: Rounds between its evaluations.
        rounds: The run's maximum number of rounds.
        best_round: The best round by the holdout; None without one.
    """
    counted = [row for row in rows if is_counted(row["round"], every, rounds)]
    figures: Row = {}
    for column in headlines({name: columns[name] for name in rows[-1] if name in columns}):
        if best_round:
            chosen = next(row for row in counted if row["round"] == best_round)
            figures[f"at_best_holdout_{column.name}"] = chosen.get(column.name)
        values = [value for row in counted if (value := row.get(column.name)) is not None]
        if column.better:
            figures[f"best_on_test_{column.name}"] = column.best(values)
    return figures


def headlines(columns: Mapping[str, Column]) -> list[Column]:
    """Return the columns of clients' own tests, by sample and by client, of each model."""
    scored = by_scored(columns.values())
    wide = [score for score in scored if score.samples == LOCAL_TEST.samples and not score.clients]
    wide = [score for score in wide if not score.spread and score._replace(spread=JAIN) in scored]
    return [
        scored[headline] for score in wide for headline in (score, score._replace(spread=SPREAD[0]))
    ]


def summarise(
    rows: Sequence[Row],
    columns: Mapping[str, Column],
    target: float | None,
    *,
    every: int = 1,
    rounds: int = 0,
) -> Row:
    """Return the figures of a run, as in `summary.json`.

    Args:
        rows: A row per round.
        columns: Their columns by name, as they are declared.
        target: The accuracy to be reached.
        every: Rounds between its evaluations.
        rounds: The run's maximum number of rounds.
    """
    scored = by_scored(columns.values())
    names = {column.name for column in scored.values()}
    counted: list[Row] = [
        row
        if is_counted(row["round"], every, rounds)
        else {name: None if name in names else value for name, value in row.items()}
        for row in rows
    ]
    evaluated = [row for row in counted if _is_evaluated(row, scored)]
    accuracy = scored.get(TEST._replace(score=ACCURACY.name), ACCURACY).name
    accuracies = [row[accuracy] for row in evaluated if accuracy in row]
    last = (evaluated or counted)[-1]
    score = main_score({name: columns[name] for name in last if name in columns})
    scores = [value for row in evaluated if score and (value := row.get(score.name)) is not None]
    seconds = sum(
        row["seconds"] + (row["evaluation_seconds"] or 0) + row["checkpoint_seconds"]
        for row in counted
    )
    beyond = [row[BEYOND] or 0 for row in counted if BEYOND in row]
    figures = {
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "score": score and score.name,
        "final_score": scores[-1] if scores else None,
        "best_score": score.best(filter(math.isfinite, scores)) if score else None,
        "rounds_to_target": rounds_to_target(counted, score, target),
        "rounds": len(counted),
        "seconds": seconds,
        "seconds_per_round": float(np.median([row["seconds"] for row in counted])),
        **({ROUNDS_BEYOND: sum(count > 0 for count in beyond)} if beyond else {}),
    }
    return {**_folded(counted, last, columns), **figures}


def _folded(rows: Sequence[Row], last: Row, columns: Mapping[str, Column]) -> Row:
    """Return the figures of columns that declare one; `last` is the last evaluated row."""
    names = dict.fromkeys(name for row in rows for name in row if name in columns)
    sums = [name for name in names if columns[name].fold == "sum"]
    ends = [columns[name] for name in last if name in names and columns[name].fold == "last"]
    return {
        **{final_name(column): last[column.name] for column in ends},
        **{name: sum(row.get(name) or 0 for row in rows) for name in sums},
    }


def _is_evaluated(row: Row, scored: Mapping[Scored, Column]) -> bool:
    """Return whether a round was evaluated, which the first of its losses tells."""
    losses = (
        evaluated._replace(score=LOSS.name) for evaluated in (TEST, HOLDOUT, LOCAL_TEST, TRAIN_SET)
    )
    known = [scored[loss].name for loss in losses if loss in scored and scored[loss].name in row]
    return bool(known) and row[known[0]] is not None
