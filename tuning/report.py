"""Results of a study: tables of its trials, plots, and a page with both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from raysim.display.canvas import to_svg, written
from raysim.display.units import in_fitting_unit
from raysim.results import report
from raysim.results.render import Entry, Grid
from raysim.results.render.formats import html_table
from raysim.results.report.charts import searches
from raysim.results.report.drawing import Chart
from raysim.results.runs import PAGE
from raysim.storage.atomic import replace_file
from raysim.storage.summary import is_accuracy
from raysim.tuning.plots import plots
from raysim.tuning.search.record import record_of
from raysim.tuning.search.results import exceeded, quantity, reported
from raysim.tuning.search.search import Search
from raysim.tuning.studies.ranges import alternatives, format_range, short_override
from raysim.tuning.studies.samplers import OBJECTIVES
from raysim.user_input import canonical, override_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = Path(__file__).parent
PLOTS = {
    "history": "best value so far by trial",
    "curves": "held-out accuracy of each trial by round",
    "pareto": "Pareto front",
    "slice": "value by setting",
    "edf": "share of trials up to a value",
    "importance": "importance of each setting",
    "contour": "value over pairs of settings",
    "parallel": "settings of all trials",
}
"""Headings of plots on the page."""
FIRST = ("history", "pareto")
"""Plots of the first screen; a study has one of them."""


def best_trials(search: Search, trials: Sequence[FrozenTrial]) -> Grid:
    """Return the table of the best trials, selected without test accuracies."""
    options = search.options
    title = "best trial" if len(options.objectives) == 1 else "Pareto front"
    if options.seeds > 1:
        title += f", mean of {options.seeds} seeds"
    if options.over_seeds == "lower":
        title += ", held-out accuracy one standard error below it"
    return _table(search, trials, title)


def write_report(search: Search, trials: Sequence[FrozenTrial], out: Path) -> list[Path]:
    """Write plots and page of a study; return the files, empty without the needed packages.

    Args:
        search: The search.
        trials: The best trials.
        out: Folder of the study.
    """
    with plots(search.study, search.options) as figures:
        paths = [_write_plot(figure, out / f"{name}.png") for name, figure in figures.items()]
        if find_spec("jinja2") and find_spec("matplotlib"):
            charts = {name: _chart(name, figure) for name, figure in figures.items()}
            paths.append(out / PAGE)
            text = _page(search, trials, charts)
            replace_file(paths[-1], lambda path: path.write_text(text, encoding="utf-8"))
    return paths


def _chart(name: str, figure: Figure) -> Chart:
    """Return a plot for the page; the page's heading replaces the plot's title."""
    for axes in figure.axes:
        for place in ("left", "center"):
            axes.set_title("", loc=place)
    figure.suptitle("")
    return Chart(PLOTS[name], to_svg(figure, name))


def _write_plot(figure: Figure, path: Path) -> Path:
    content = written(figure, "png")
    replace_file(path, lambda aside: aside.write_bytes(content))
    return path


def _page(search: Search, best: Sequence[FrozenTrial], charts: Mapping[str, Chart]) -> str:
    trials = search.study.get_trials(deepcopy=False)
    settings = canonical(record_of(search.resolved, search.options)["settings"])
    drawn = {**charts, **_history(search, trials)}
    first = next((drawn[name] for name in FIRST if name in drawn), None)
    return report.render(
        "study_page.html",
        FILES,
        title=f"raysim: study {search.study.study_name}",
        objectives=", ".join(OBJECTIVES[name].name for name in search.options.objectives),
        heading=_heading(search, best, trials),
        text=_outcome_in_words(search, best, trials),
        first=first,
        best=html_table(best_trials(search, best)),
        plots=[chart for chart in drawn.values() if chart is not first],
        trials=html_table(_table(search, trials, "All trials")),
        space=html_table(_space(search)),
        search=_search_in_words(search, trials),
        settings=[(key, report.text_of(value)) for key, value in settings.items()],
    )


def _history(search: Search, trials: Sequence[FrozenTrial]) -> dict[str, Chart]:
    """Return the chart of the values by trial, in the units of the tables, of one objective."""
    done = {t.number: t.values[0] for t in trials if t.state is TrialState.COMPLETE}
    if len(search.options.objectives) > 1 or not done:
        return {}
    (name,) = search.options.objectives
    return {"history": searches({"best so far": done}, OBJECTIVES[name])}


def _heading(search: Search, best: Sequence[FrozenTrial], trials: Sequence[FrozenTrial]) -> str:
    """Return the best trial, or the number of trials on the Pareto front, in a few words."""
    if not best:
        done = any(trial.state is TrialState.COMPLETE for trial in trials)
        return "No trial keeps the constraints" if done else "No trial is complete"
    if len(search.options.objectives) > 1:
        return f"{len(best)} trial{'s are' if len(best) > 1 else ' is'} on the Pareto front"
    values = " ".join(short_override(key, v) for key, v in best[0].params.items())
    return f"Trial {best[0].number} is best: {values}"


def _outcome_in_words(
    search: Search, best: Sequence[FrozenTrial], trials: Sequence[FrozenTrial]
) -> str:
    """Return the lead of the best trial, and the limits of that."""
    counted = sum(trial.state is TrialState.COMPLETE for trial in trials)
    text = f"It was chosen among {counted} complete trials, by held-out samples. "
    seeds = search.options.seeds
    runs = "one run" if seeds == 1 else f"{seeds} runs"
    if len(search.options.objectives) > 1:
        return f"{counted} trials are complete; a trial is {runs}."
    if not best:
        return f"{counted} trials are complete."
    (name,) = search.options.objectives
    value = f"Its {OBJECTIVES[name].name} is {_value(name, best[0].values[0])}"
    others = [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE and trial not in best and not exceeded(trial)
    ]
    nearest = min(others, key=lambda t: abs(t.values[0] - best[0].values[0]), default=None)
    if nearest is not None:
        value += f"; trial {nearest.number}, the next one, has {_value(name, nearest.values[0])}"
    return (
        f"{value}. {text}A trial is {runs}, and no test compares trials: raysim sweep over five"
        " seeds or more says whether the settings are better than others."
    )


def _search_in_words(search: Search, trials: Sequence[FrozenTrial]) -> list[tuple[str, str]]:
    """Return the options of a search by name, in words."""
    options, states = search.options, Counter(trial.state.name.lower() for trial in trials)
    by = {"mean": "their mean", "lower": "their mean less its standard error"}[options.over_seeds]
    aims = [
        f"{OBJECTIVES[name].name}, the {'largest' if OBJECTIVES[name].larger else 'smallest'}"
        for name in options.objectives
    ]
    facts = {
        "objective" if len(aims) == 1 else "objectives": "; ".join(aims),
        "trials": ", ".join(f"{count} {state}" for state, count in states.items()),
        "sampler": _named(options.sampler, options.sampler_options),
        "pruner": _named(options.pruner, options.pruner_options),
        "runs of a trial": f"{options.seeds} seeds, judged by {by}" if options.seeds > 1 else "1",
        "constraints": ", ".join(f"{k} at most {v:g}" for k, v in options.constraints.items()),
        "first trials": "; ".join(
            " ".join(override_text(*setting) for setting in first.items())
            for first in search.resolved.first
        ),
    }
    return [(name, text) for name, text in facts.items() if text]


def _named(name: str, options: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key} {report.text_of(value)}" for key, value in options.items())
    return f"{name} ({values})" if values else name


def _space(search: Search) -> Grid:
    """Return the table of the searched settings and their ranges."""
    space = search.resolved.space
    rows = tuple(
        (
            Entry(key),
            Entry(format_range(values)),
            Entry(
                ", ".join(
                    f"{parent}={alternatives(parent_values)}"
                    for parent, parent_values in space.conditions.get(key, {}).items()
                )
                or "always"
            ),
        )
        for key, values in space.items()
    )
    return Grid("Searched settings", ("setting", "range", "searched with"), rows)


def _value(objective: str, value: float) -> str:
    return f"{value:.2%}" if objective == "accuracy" else f"{value:.6g}"


def _table(search: Search, trials: Sequence[FrozenTrial], title: str) -> Grid:
    """Return a table of trials."""
    space = search.resolved.space
    judge = "loss" if "loss" in search.options.objectives else "accuracy"
    summaries = [_summary(trial) or {} for trial in trials]
    score, scores = reported(summaries, search.resolved.settings)
    outcomes = (f"held-out {judge}", score.name.replace("_", " "), "sent", "seconds", "state")
    form = ".2%" if is_accuracy(score) else ".4g"
    rows = tuple(
        (
            _number(trial.number, "d"),
            *(_entry(trial.params.get(key, "")) for key in space),
            *_outcome(trial, judge, _number(figure, form)),
        )
        for trial, figure in zip(trials, scores, strict=True)
    )
    return Grid(title, ("trial", *space, *outcomes), rows)


def _summary(trial: FrozenTrial) -> Mapping[str, Any] | None:
    return trial.user_attrs.get("summary") if trial.state is TrialState.COMPLETE else None


def _outcome(trial: FrozenTrial, judge: str, score: Entry) -> tuple[Entry, ...]:
    summary = _summary(trial)
    state = ", ".join([trial.state.name.lower(), *(f"too many {name}" for name in exceeded(trial))])
    if error := trial.user_attrs.get("failed"):
        state += f": {error}"
    if summary is None:
        return (*[Entry("")] * 4, Entry(state))
    sent = quantity(summary, "bytes")
    return (
        _number(quantity(summary, judge), ".2%" if judge == "accuracy" else ".4g"),
        score,
        Entry(in_fitting_unit(sent, "B"), value=sent),
        _number(summary["seconds"], ".1f") if "seconds" in summary else Entry(""),
        Entry(state),
    )


def _number(value: float | None, form: str) -> Entry:
    return Entry("") if value is None else Entry(format(value, form), value=value)


def _entry(value: Any) -> Entry:
    return _number(value, ".6g") if isinstance(value, float) else Entry(str(value))
