"""Plots of a study by Optuna; they need matplotlib and scikit-learn."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState

from raysim.display.canvas import INK, SIZE, set_whole, style
from raysim.tuning.studies.samplers import OBJECTIVES, SearchOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MIN_TRIALS = 2
"""Least number of completed trials for a plot of importances."""
MOST_AXES = 3
"""Most objectives of a Pareto front drawn by Optuna."""
MOST_PAIRED = 3
"""Most settings to draw against each other: the most important ones."""
MOST_NAMED = 15
"""Most trials of a legend: more have no room."""
LINE = 12
"""Most characters of a setting in one line below a small panel."""
PANELS = 2
"""Most panels in a row."""
STYLE: Any = {"figure.constrained_layout.use": True, "figure.figsize": SIZE}
"""Style of figures: a colour bar has its own place."""
LABELS = {
    "Trial": "trial",
    "Hyperparameter": "setting",
    "Hyperparameter Importance": "importance",
    "Cumulative Probability": "share of trials",
}
"""Labels of axes by Optuna's labels."""
NUMBERED = re.compile(r"^Trial(\d+)$")
POWERS = ((1,), (1, 3), (1, 2, 5))
"""Multiples of powers of ten at the ticks of log axes: the first that give two ticks."""


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
    with warnings.catch_warnings(), style(**STYLE):
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
    titles = [OBJECTIVES[name].name for name in options.objectives]
    first: dict[str, Any] = {"target_name": titles[0]}
    if len(options.objectives) > 1:
        first["target"] = lambda trial: trial.values[0]
    else:
        axes["history"] = visual.plot_optimization_history(study, **first)
        if any(trial.intermediate_values for trial in study.get_trials(deepcopy=False)):
            axes["curves"] = visual.plot_intermediate_values(study)
            axes["curves"].set(xlabel="round", ylabel=OBJECTIVES["accuracy"].name)
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
            axes["parallel"].set_ylabel(titles[0])
            named = ["", *map(_in_lines, sorted(paired))]  # Optuna draws them in this order
            axes["parallel"].set_xticks(range(len(named)), named)
            axes["parallel"].tick_params(axis="x", labelrotation=0)
    return axes


def _figure(axes: Any) -> Figure:
    """Return the figure of axes, or of an array of them, as the other charts of a page are."""
    from matplotlib.text import Text

    panels = [*getattr(axes, "flat", [axes])]
    figure: Figure = panels[0].figure
    figure.set_layout_engine("constrained")
    few = 3
    if getattr(axes, "ndim", 0) == 1:
        _place_in_rows(figure, panels)
    elif len(panels) > 1:
        few = 2
        _label_outer(figure, panels)
    for panel in figure.axes:
        panel.tick_params(colors=INK)
        for axis in (panel.xaxis, panel.yaxis):
            _set_ticks(axis, few)
        set_whole(panel)
        for line in (*panel.get_xgridlines(), *panel.get_ygridlines()):
            line.set(color="0.5", alpha=0.3)
        if legend := panel.get_legend():
            legend.set_frame_on(False)
            if len(legend.get_texts()) > MOST_NAMED:
                legend.remove()
            for entry in legend.get_texts():
                entry.set_text(NUMBERED.sub(r"trial \1", entry.get_text()))
    for text in figure.findobj(Text):
        text.set(color=INK)
    return figure


def _place_in_rows(figure: Figure, panels: Sequence[Axes]) -> None:
    """Place panels with a common vertical axis in rows of PANELS."""
    rows, label = -(-len(panels) // PANELS), panels[0].get_ylabel()
    grid = figure.add_gridspec(rows, PANELS)
    figure.set_size_inches(SIZE[0], SIZE[1] * (1 + rows) / 2)
    for number, panel in enumerate(panels):
        row, column = divmod(number, PANELS)
        panel.set_subplotspec(grid[row, column])
        panel.set_ylabel("" if column else label)
        panel.tick_params(labelleft=not column)


def _label_outer(figure: Figure, panels: Sequence[Axes]) -> None:
    """Label the panels of a square at its left and its lower edge alone."""
    figure.set_size_inches(SIZE[0], SIZE[0])
    for panel in panels:
        panel.set(xlabel=_in_lines(panel.get_xlabel()), ylabel=_in_lines(panel.get_ylabel()))
        panel.label_outer()
        panel.tick_params(axis="x", labelrotation=90)


def _in_lines(key: str) -> str:
    """Return the key of a setting, a long one with a line for each part."""
    return key.replace(".", ".\n") if len(key) > LINE else key


def _set_ticks(axis: Axis, few: int) -> None:
    """Set the label of an axis in words, and its ticks: whole numbers, percents, a few powers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter

    label = LABELS.get(axis.get_label_text(), axis.get_label_text())
    axis.set_label_text(label)
    if label == OBJECTIVES["accuracy"].name:
        axis.set_major_formatter(PercentFormatter(1))
    if axis.get_scale() == "log":
        parts = parts_of_powers(*sorted(axis.get_view_interval()))
        axis.set_major_locator(LogLocator(subs=parts, numticks=few) if parts else MaxNLocator(few))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def parts_of_powers(low: float, high: float) -> tuple[int, ...]:
    """Return which multiples of powers of ten are ticks of a log axis, at least two; () if none."""
    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    for parts in POWERS:
        if sum(low <= part * power <= high for part in parts for power in powers) > 1:
            return parts
    return ()
