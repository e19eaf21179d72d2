"""Results of trials: quantities of objectives and constraints, and the best trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from raysim.config import Settings
from raysim.storage.declared import column_of
from raysim.storage.summary import MODELS, final_figures, main_score, of_deployed

AVERAGED = (
    *("held_out_samples", "bytes_up", "bytes_down"),
    *("seconds", "virtual_seconds", "virtual_joules"),
)
"""Values in the summary of a trial of several runs, beside last scores, if its runs have them."""
OF_CHOICE = "holdout_"
"""Part of the columns of samples that choose settings, whose scores are too good for the chosen."""
NO_SCORE = "test_accuracy"
"""Column of the main score while no trial has one."""
HELD_OUT = {"accuracy": "final_holdout_accuracy", "loss": "final_holdout_loss"}
"""Values in a summary of the objectives on held-out samples."""
JUDGING = tuple(HELD_OUT.values())


def combined(summaries: Sequence[Mapping[str, Any]], over_seeds: str) -> dict[str, Any]:
    """Return the summary of a trial from the summaries of its runs.

    For several runs it has means over the seeds, and as `final_holdout_accuracy` the accuracy that
    judges the trial: their mean, or with "lower" the mean less its standard error. If clients
    deploy their own models, it is the accuracy of these, as is `final_holdout_loss` their loss.
    """
    summaries = [_judged(summary) for summary in summaries]
    if len(summaries) == 1:
        return dict(summaries[0])
    averaged = (*(key for key in summaries[0] if key.startswith("final_")), *AVERAGED)
    known = [key for key in averaged if all(_is_number(each.get(key)) for each in summaries)]
    means = {key: mean(each[key] for each in summaries) for key in known}
    if over_seeds == "lower":
        spread = stdev(each["final_holdout_accuracy"] for each in summaries)
        means["final_holdout_accuracy"] -= spread / math.sqrt(len(summaries))
    return means


def _judged(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run, with the held-out scores of the deployed models."""
    figures = final_figures(summary)
    columns = {name: of_deployed(figures, name.removeprefix("final_")) for name in JUDGING}
    return {**summary, **{name: figures[of] for name, of in columns.items() if of}}


def reported(summaries: Iterable[Mapping[str, Any]], settings: Settings) -> tuple[str, list[Any]]:
    """Return the main score that did not choose between trials: its column, and each one's value.

    Where the clients of some trials deploy models of their own, it has the name of these.

    Args:
        summaries: The summary of each trial; empty where it has none.
        settings: Settings of a trial.
    """
    names, values = set[str](), list[Any]()
    for figures in map(final_figures, summaries):
        known = (n for n, value in figures.items() if value is not None and OF_CHOICE not in n)
        score = main_score({name: column_of(settings, name) for name in known})
        names |= {score.name} if score else set()
        values.append(score and figures[score.name])
    return next(iter(sorted(names, key=lambda name: MODELS[0] not in name)), NO_SCORE), values


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
        return bytes_sent(summary)
    value: float = summary[HELD_OUT.get(name, name)]
    return value


def bytes_sent(summary: Mapping[str, Any]) -> float:
    """Return the bytes that a run sent both ways."""
    sent: float = summary["bytes_up"] + summary["bytes_down"]
    return sent


def best(study: optuna.Study) -> list[FrozenTrial]:
    """Return the best trial within the constraints, or the Pareto front sorted by number.

    Of equal trials, the first is the best.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    front = study.best_trials if done else []
    trials = sorted(front, key=lambda trial: trial.number)
    return trials[:1] if len(study.directions) == 1 else trials
