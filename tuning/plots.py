"""Plots of a study by Optuna; they need matplotlib and scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState

from raysim.results.report.drawing import INK
from raysim.tuning.studies.samplers import TITLES, SearchOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_TRIALS = 2
"""Least number of completed trials for a plot of importances."""
MOST_AXES = 3
"""Most objectives of a Pareto front drawn by Optuna."""
MOST_PAIRED = 4
"""Most settings to draw against each other: the most important ones."""


@contextmanager
def plots(study: optuna.Study, options: SearchOptions) -> Iterator[dict[str, Figure]]:
    """Draw a study; yield its figures by name, empty without completed trials or matplotlib."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not (find_spec("matplotlib") and find_spec("sklearn")) or not done:
        yield {}
        return
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    verbosity = optuna.logging.get_verbosity()
    with warnings.catch_warnings(), plt.style.context("default"):
        warnings.simplefilter("ignore")  # Optuna's experimental features, and matplotlib's own
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # no line where no trial is feasible
        try:
            yield {name: _figure(axes) for name, axes in _draw(study, options, len(done)).items()}
        finally:
            plt.close("all")
            optuna.logging.set_verbosity(verbosity)


def _draw(study: optuna.Study, options: SearchOptions, done: int) -> dict[str, Any]:
    """Draw each plot, for the first of several objectives, and return the axes."""
    from optuna.visualization import matplotlib as visual

    axes: dict[str, Any] = {}
    titles = [TITLES[name] for name in options.objectives]
    first: dict[str, Any] = {"target_name": titles[0]}
    if len(options.objectives) > 1:
        first["target"] = lambda trial: trial.values[0]
    else:
        axes["history"] = visual.plot_optimization_history(study, **first)
        if any(trial.intermediate_values for trial in study.get_trials(deepcopy=False)):
            axes["curves"] = visual.plot_intermediate_values(study)
            axes["curves"].set(xlabel="round", ylabel=TITLES["accuracy"])
    if 1 < len(options.objectives) <= MOST_AXES:
        axes["pareto"] = visual.plot_pareto_front(study, target_names=titles)
    axes["slice"] = visual.plot_slice(study, **first)
    axes["edf"] = visual.plot_edf(study, **first)
    if done >= MIN_TRIALS:
        axes["importance"] = visual.plot_param_importances(study, **first)
        importances = optuna.importance.get_param_importances(study, target=first.get("target"))
        paired = [*importances][:MOST_PAIRED]
        if len(paired) > 1:
            axes["contour"] = visual.plot_contour(study, paired, **first)
            axes["parallel"] = visual.plot_parallel_coordinate(study, paired, **first)
    return axes


def _figure(axes: Any) -> Figure:
    """Return the figure of axes, or of an array of them: text in ink, accuracies in percent."""
    from matplotlib.text import Text
    from matplotlib.ticker import PercentFormatter

    figure: Figure = getattr(axes, "flat", [axes])[0].figure
    figure.set_layout_engine("tight")
    for each in figure.axes:
        each.tick_params(colors=INK)
        for axis in (each.xaxis, each.yaxis):
            if axis.get_label_text() == TITLES["accuracy"]:
                axis.set_major_formatter(PercentFormatter(1))
        for line in (*each.get_xgridlines(), *each.get_ygridlines()):
            line.set(color="0.5", alpha=0.3)
        if legend := each.get_legend():
            legend.set_frame_on(False)
    for text in figure.findobj(Text):
        text.set(color=INK)
    return figure
