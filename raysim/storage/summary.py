"""Summary of a run: the figures of `summary.json`, from the rows of its rounds."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.core.columns import Column
from raysim.core.scoring import GAIN, SPREAD, UNEQUAL
from raysim.storage.recorder import Row

DROPPED = "clients_dropped"
"""Column of the number of clients dropped after errors, in runs with any."""
MODELS, PARTS = ("personal_", "finetuned_"), ("seen_", "unseen_", "new_")
"""Begins of the columns of sets that are scored by other models than the global one; after them,
those of a part of the clients."""
SUCCESS = "attack_success_rate"
"""Column of the success rate of an attack's trigger."""
EVALUATED = (
    *("holdout_", "client_accuracy_", "trained_accuracy_", "train_set_"),
    *("personal_holdout_", "personal_train_set_", "finetuned_holdout_"),
    SUCCESS,
    *(f"{model}{part}local_test_" for model in ("", *MODELS) for part in ("", *PARTS)),
)
"""Prefixes of the columns of evaluations, besides the test set's."""
EPSILON, HYPOTHETICAL = "epsilon", "hypothetical_epsilon"
"""Columns of the epsilon of a run, and of that of a population that is not there; the first is
`stopped_by` of a run that its limit has ended, too."""
BAD, BEYOND = "bad_clients", "bad_clients_beyond_bound"
"""Columns of rounds under attack: bad clients that arrived, and those of them beyond the number
that the aggregation bears with."""
TOTAL_BEYOND = f"total_{BEYOND}"
"""Column of a run's metrics: the second of these, added up over its rounds."""
BAD_CUT = "bad_clients_cut"
"""Column of rounds under attack: bad clients whose updates have weight 0 in the aggregate."""
ROUNDS_BEYOND = "rounds_beyond_bound"
"""Figure of a run under attack: rounds in which more bad clients arrived than that number."""
VIRTUAL_SECONDS = "virtual_seconds"
VIRTUAL_JOULES = "virtual_joules"
LOST = "lost_clients"
VIRTUAL = (VIRTUAL_SECONDS, VIRTUAL_JOULES, LOST)
"""Columns of a virtual clock, whose sums are in the summary."""


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


REPORTED = ("local_test", "holdout", "test", "train_set")
TO_CHOOSE = ("holdout", "local_test", "test", "train_set")
"""Sets of samples of the main score, the first that is evaluated: the clients' own tests, held-out
samples, the test set, the clients' training samples. Choices by it, which would make a score on
test samples too good, are by held-out samples first."""


def main_score(columns: Mapping[str, Column], *, to_choose: bool = False) -> Column | None:
    """Return the column of the main score of runs: that of the model which clients deploy.

    It is the accuracy, or else the loss, on the first of REPORTED, or of TO_CHOOSE, that is
    evaluated. None where nothing is.

    Args:
        columns: Columns of the runs by name, as they are declared.
        to_choose: Whether a round, a model or settings are chosen by it.
    """
    for name in TO_CHOOSE if to_choose else REPORTED:
        if loss := of_deployed(columns, f"{name}_loss"):
            accuracy = columns.get(loss.removesuffix("loss") + "accuracy")
            return accuracy if accuracy and accuracy.larger else columns[loss]
    return None


def of_deployed(columns: Container[str], score: str) -> str | None:
    """Return the column with a score of the model which clients deploy; None where it is not known.

    Args:
        columns: The columns of a run.
        score: A score of the global model, such as `holdout_accuracy`.
    """
    named = (f"{MODELS[0]}{score}", score)  # of their own models, or else of the global one
    return next((name for name in named if name in columns), None)


def final_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last value of each evaluated column, from a run's summary."""
    names = [key.removeprefix("final_") for key in summary if key.startswith("final_")]
    return {
        name if name.startswith(EVALUATED) else f"test_{name}": summary[f"final_{name}"]
        for name in names
        if name != "score"
    }


def is_accuracy(column: str) -> bool:
    """Return whether a column has the accuracy of a set, which a target is of."""
    return column.endswith("_accuracy")


def rounds_to_target(
    rows: Sequence[Row], score: Column | None, target: float | None
) -> float | None:
    """Return the rounds to an accuracy; None without a target, or if it was not reached."""
    if target is None or score is None or not is_accuracy(score.name):
        return None
    accuracies = ((row["round"], row.get(score.name)) for row in rows)
    return reached_at(((n, a) for n, a in accuracies if a is not None), target)


SHOWN = ("test_loss", "holdout_loss", "local_test_loss", "train_set_loss")
"""Columns of evaluated rounds: the first present one tells whether a round was evaluated."""


def is_evaluated(column: str) -> bool:
    """Return whether a column of `metrics.parquet` has values of evaluated rounds alone."""
    return column.startswith(("test_", *EVALUATED))


def score_of(column: str) -> str:
    """Return the score of an evaluated column: `mape` of `local_test_mape_d1`."""
    prefixes = [each for each in ("test_", *EVALUATED) if column.startswith(each)]
    score = column.removeprefix(max(prefixes, key=len, default=""))
    if "local_test_" not in column:  # whose scores have no spread over clients
        return score
    ends = (f"_{end}" for end in (*SPREAD, *UNEQUAL, GAIN) if score.endswith(f"_{end}"))
    return score.removesuffix(next(ends, ""))


def is_counted(number: int, every: int, rounds: int) -> bool:
    """Return whether the evaluation of a round, counted from 1, is one of the run.

    The end of a run is always evaluated. Where the run has gone on since, the evaluation at its
    former end stays in its rows, and nothing counts it.
    """
    return number % every == 0 or number == rounds


def end_of(recorded: Mapping[str, Any], rounds: int) -> int:
    """Return the last round of a run: `rounds`, or that by which an epsilon has ended it.

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

    They are those of scores by sample and by client, of each model, of runs with
    `evaluation.local_test`. A score whose better values are not declared has no best one.

    Args:
        rows: A row per round.
        columns: Their columns by name, as they are declared.
        every: Rounds between its evaluations.
        rounds: The run's maximum number of rounds.
        best_round: The best round by the holdout; None without one.
    """
    counted = [row for row in rows if is_counted(row["round"], every, rounds)]
    figures: Row = {}
    for name in headlines(rows[-1]):
        if best_round:
            chosen = next(row for row in counted if row["round"] == best_round)
            figures[f"at_best_holdout_{name}"] = chosen.get(name)
        values = [value for row in counted if (value := row.get(name)) is not None]
        if columns[name].better:
            figures[f"best_on_test_{name}"] = columns[name].best(values)
    return figures


def headlines(columns: Iterable[str]) -> list[str]:
    """Return the columns of clients' own tests, by sample and by client, of each model."""
    sets = [f"{model}local_test_" for model in ("", *MODELS)]
    names = [name for name in columns if name.startswith((*sets,))]
    scores = [name for name in names if f"{name}_{UNEQUAL[-1]}" in names]
    return [each for name in scores for each in (name, f"{name}_mean")]


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
    counted: list[Row] = [
        row
        if is_counted(row["round"], every, rounds)
        else {name: None if is_evaluated(name) else value for name, value in row.items()}
        for row in rows
    ]
    shown = next((n for n in SHOWN if n in counted[-1]), "test_loss")
    evaluated = [row for row in counted if row.get(shown) is not None]
    accuracies = [row["test_accuracy"] for row in evaluated if "test_accuracy" in row]
    last = (evaluated or counted)[-1]
    score = main_score({name: columns[name] for name in last if name in columns})
    scores = [value for row in evaluated if score and (value := row.get(score.name)) is not None]
    seconds = sum(
        row["seconds"] + (row["evaluation_seconds"] or 0) + row["checkpoint_seconds"]
        for row in counted
    )
    return {
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        **{
            f"final_{name.removeprefix('test_')}": value
            for name, value in last.items()
            if name.startswith(EVALUATED) or (name.startswith("test_") and name != "test_accuracy")
        },
        "score": score and score.name,
        "final_score": scores[-1] if scores else None,
        "best_score": score.best(filter(math.isfinite, scores)) if score else None,
        "rounds_to_target": rounds_to_target(counted, score, target),
        "rounds": len(counted),
        "seconds": seconds,
        "seconds_per_round": float(np.median([row["seconds"] for row in counted])),
        "bytes_up": sum(row["bytes_up"] for row in counted),
        "bytes_down": sum(row["bytes_down"] for row in counted),
        **{name: sum(row[name] for row in counted) for name in VIRTUAL if name in counted[-1]},
        **_beyond_bound(counted),
    }


def _beyond_bound(rows: Sequence[Row]) -> Row:
    """Return the rounds with more bad clients than the aggregation bears with; empty without."""
    found = [row[BEYOND] or 0 for row in rows if BEYOND in row]
    return {ROUNDS_BEYOND: sum(each > 0 for each in found)} if found else {}
