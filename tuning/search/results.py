"""Results of trials: quantities of objectives and constraints, and the best trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from raysim.api.columns import Column
from raysim.api.scoring import ACCURACY, HOLDOUT, PERSONAL, TEST
from raysim.config import Settings
from raysim.storage.declared import columns_of
from raysim.storage.summary import final_name, main_score

AVERAGED = (
    *("held_out_samples", "bytes_up", "bytes_down"),
    *("seconds", "virtual_seconds", "virtual_joules"),
)
"""Values in the summary of a trial of several runs, besides last scores, if its runs have them."""
NO_SCORE = ACCURACY.of(TEST._replace(score=ACCURACY.name))
"""Column of the main score while no trial has one."""
HELD_OUT = {"accuracy": "final_holdout_accuracy", "loss": "final_holdout_loss"}
"""Values in a summary of the objectives on held-out samples."""
OF_DEPLOYED = {
    f"final_{score.name}": f"final_{score._replace(model=PERSONAL).name}"
    for score in (HOLDOUT._replace(score=name) for name in HELD_OUT)
}
"""By these, the values of the models that clients deploy."""


def combined(summaries: Sequence[Mapping[str, Any]], over_seeds: str) -> dict[str, Any]:
    """Return the summary of a trial from the summaries of its runs.

    For several runs it has means over the seeds, and as `final_holdout_accuracy` the accuracy that
    judges the trial: their mean, or with "lower" the mean less its standard error. If clients
    deploy their own models, it is the accuracy of these, as is `final_holdout_loss` their loss.
    """
    # with the held-out scores of the deployed models
    summaries = [
        {
            **summary,
            **{
                name: summary[deployed]
                for name, deployed in OF_DEPLOYED.items()
                if deployed in summary
            },
        }
        for summary in summaries
    ]
    if len(summaries) == 1:
        return dict(summaries[0])
    averaged = (*(key for key in summaries[0] if key.startswith("final_")), *AVERAGED)
    known = [key for key in averaged if all(_is_number(summary.get(key)) for summary in summaries)]
    means = {key: mean(summary[key] for summary in summaries) for key in known}
    if over_seeds == "lower":
        spread = stdev(summary["final_holdout_accuracy"] for summary in summaries)
        means["final_holdout_accuracy"] -= spread / math.sqrt(len(summaries))
    return means


def reported(
    summaries: Iterable[Mapping[str, Any]], settings: Settings
) -> tuple[Column, list[Any]]:
    """Return the main score that did not choose between trials: its column, and a value per trial.

    If the clients of some trials deploy their own models, the column is the score of these models.

    Args:
        summaries: The summary of each trial; empty if the trial has none.
        settings: Settings of a trial.
    """
    columns, scores = columns_of(settings), list[Column | None]()
    columns = {n: c for n, c in columns.items() if c.scored and c.scored.samples != HOLDOUT.samples}
    values = list[Any]()
    for summary in summaries:
        known = {n: c for n, c in columns.items() if summary.get(final_name(c)) is not None}
        scores.append(score := main_score(known))
        values.append(score and summary[final_name(score)])
    main_scores = sorted(filter(None, scores), key=lambda c: not (c.scored and c.scored.model))
    return main_scores[0] if main_scores else NO_SCORE, values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exceeded(trial: FrozenTrial) -> list[str]:
    """Return the constraints that a completed trial violates."""
    return [name for name, excess in trial.constraints.items() if excess > 0]


def trial_line(trial: FrozenTrial, seconds: float) -> str:
    """Return a trial's state, values, parameters and duration in a line."""
    error = trial.user_attrs.get("failed")
    values = ", ".join(f"{value:.6g}" for value in trial.values or ())
    outcome = error or values or f"after round {trial.last_step}"
    outcome += "".join(f", too many {name}" for name in exceeded(trial))
    parameters = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in trial.params.items()
    )
    state = trial.state.name.lower()
    return f"trial {trial.number} {state}: {outcome}  {parameters}  {seconds:.1f} s"


def quantity(summary: Mapping[str, Any], name: str) -> float:
    """Return the quantity of an objective or a constraint in the summary of a run."""
    if name == "bytes":
        value: float = summary["bytes_up"] + summary["bytes_down"]
    else:
        value = summary[HELD_OUT.get(name, name)]
    return value


def best(study: optuna.Study) -> list[FrozenTrial]:
    """Return the best trial within the constraints, or the Pareto front sorted by number.

    Of equal trials, the first is the best.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    front = study.best_trials if done else []
    trials = sorted(front, key=lambda trial: trial.number)
    return trials[:1] if len(study.directions) == 1 else trials
