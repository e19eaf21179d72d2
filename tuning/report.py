"""Results of a study: tables of its trials, plots, and a page with both."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from raysim.core.user_input import canonical, dotted
from raysim.results import report
from raysim.results.render import Entry, Grid
from raysim.results.render.formats import html_table
from raysim.results.report.drawing import Chart, style_of, to_svg
from raysim.storage.atomic import replace_file
from raysim.tuning.plots import plots
from raysim.tuning.search.record import record_of
from raysim.tuning.search.results import exceeded, quantity
from raysim.tuning.search.search import Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = Path(__file__).parent
DPI = 150


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
            charts = [_chart(name, figure) for name, figure in figures.items()]
            paths.append(out / "report.html")
            text = _page(search, trials, charts)
            replace_file(paths[-1], lambda path: path.write_text(text, encoding="utf-8"))
    return paths


def _chart(name: str, figure: Figure) -> Chart:
    with style_of(name):
        return Chart(name, to_svg(figure, name))


def _write_plot(figure: Figure, path: Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    replace_file(path, lambda aside: aside.write_bytes(buffer.getvalue()))
    return path


def _page(search: Search, best: Sequence[FrozenTrial], charts: Sequence[Chart]) -> str:
    trials = search.study.get_trials(deepcopy=False)
    record = record_of(search.resolved, search.options)
    settings = canonical(record.pop("settings"))
    return report.render(
        "study_page.html",
        FILES,
        title=f"raysim: study {search.study.study_name}",
        best=html_table(best_trials(search, best)),
        plots=charts,
        trials=html_table(_table(search, trials, "trials")),
        search=[(key, report.text_of(value)) for key, value in dotted(record).items()],
        settings=[(key, report.text_of(value)) for key, value in settings.items()],
    )


def _table(search: Search, trials: Sequence[FrozenTrial], title: str) -> Grid:
    """Return a table of trials."""
    space = search.resolved.space
    judge = "loss" if "loss" in search.options.objectives else "accuracy"
    outcomes = (f"held-out {judge}", "test accuracy", "MB", "seconds", "state")
    rows = tuple(
        (
            _number(trial.number, "d"),
            *(_entry(trial.params.get(key, "")) for key in space),
            *_outcome(trial, judge),
        )
        for trial in trials
    )
    return Grid(title, ("trial", *space, *outcomes), rows)


def _outcome(trial: FrozenTrial, judge: str) -> tuple[Entry, ...]:
    summary = trial.user_attrs.get("summary") if trial.state is TrialState.COMPLETE else None
    state = ", ".join([trial.state.name.lower(), *(f"too many {name}" for name in exceeded(trial))])
    if error := trial.user_attrs.get("failed"):
        state += f": {error}"
    if summary is None:
        return (*[Entry("")] * 4, Entry(state))
    return (
        _number(quantity(summary, judge), ".2%" if judge == "accuracy" else ".4g"),
        _number(summary["final_accuracy"], ".2%"),
        _number(quantity(summary, "bytes") / 1e6, ".1f"),
        _number(summary["seconds"], ".1f") if "seconds" in summary else Entry(""),
        Entry(state),
    )


def _number(value: float | None, form: str) -> Entry:
    return Entry("") if value is None else Entry(format(value, form), value=value)


def _entry(value: Any) -> Entry:
    return _number(value, ".6g") if isinstance(value, float) else Entry(str(value))
