"""Plots of a study; they need matplotlib."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

MIN_TRIALS = 2
"""Completed trials that a plot of importances needs."""


def draw(study: optuna.Study, objectives: tuple[str, ...], out: Path) -> list[Path]:
    """Draw history or Pareto front, and importances; return the files, none without matplotlib."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not find_spec("matplotlib") or not done:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's experimental features, and matplotlib's own
        plots = _plots(study, objectives, len(done))
        paths = []
        for name, axes in plots.items():
            paths.append(out / f"{name}.png")
            axes.figure.set_layout_engine("tight")
            axes.figure.savefig(paths[-1], dpi=150)
    return paths


def _plots(study: optuna.Study, objectives: tuple[str, ...], done: int) -> dict[str, Any]:
    import matplotlib as mpl

    mpl.use("agg")
    from optuna.visualization import matplotlib as visual

    plots: dict[str, Any] = {}
    if len(objectives) > 1:
        plots["pareto"] = visual.plot_pareto_front(study, target_names=list(objectives))
    else:
        plots["history"] = visual.plot_optimization_history(study)
    if done >= MIN_TRIALS:
        plots["importance"] = visual.plot_param_importances(
            study, target=lambda trial: trial.values[0], target_name=objectives[0]
        )
    return plots
