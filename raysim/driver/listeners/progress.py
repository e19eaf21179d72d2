"""Values of rounds and of finished runs as text, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from raysim.api.columns import OF_ENGINE, Column, Scored
from raysim.api.scoring import HOLDOUT, LOCAL_TEST, LOSS, PERSONAL, TEST, TRAIN_SET
from raysim.display.units import in_fitting_unit
from raysim.driver.listeners.listener import Listener, Started
from raysim.storage.column_names import OF_SCORES
from raysim.storage.summary import (
    EPSILON,
    HYPOTHETICAL,
    LOST,
    ROUNDS_BEYOND,
    VIRTUAL_JOULES,
    VIRTUAL_SECONDS,
    final_name,
    is_accuracy,
)

SETS = {
    TEST.samples: "",
    HOLDOUT.samples: "held-out ",
    LOCAL_TEST.samples: "local test ",
    TRAIN_SET.samples: "training ",
}
"""Sets of samples of main scores, in words."""


def words_of(column: Column) -> str:
    """Return a column's name in words; a main score is, say, "own held-out accuracy"."""
    scored = column.scored
    return f"{_set_of(scored)}{scored.score}" if scored else column.name.replace("_", " ")


def _set_of(scored: Scored) -> str:
    """Return samples and model of a main score in words, with a trailing space."""
    model = "own " if scored.model == PERSONAL else ""
    return f"{model}{SETS[scored.samples]}"


def _shown(score: Column, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the main score and titled scores on the same samples, except the loss, by title."""
    same = [(column, column.scored) for column in columns.values() if column.scored]
    return {
        column.title or scored.score: column
        for column, scored in same
        if scored.score != LOSS.name and scored == _beside(score, scored.score)
        if column.title or column == score
    }


def _beside(score: Column, name: str) -> Scored:
    """Return a score by name, on the samples of the main score."""
    return (score.scored or TEST)._replace(score=name)


def _text(column: Column, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if column.unit == "%" else f"{value:.4g}"


class RunProgress(Listener):
    """Listener with the progress of a run and the values of its rounds as text."""

    def __init__(self) -> None:
        self._run: Started | None = None
        self._begun = perf_counter()

    def started(self, run: Started) -> None:
        """Record the run and the time."""
        self._run, self._begun = run, perf_counter()

    def values(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the values of a round as text, by title."""
        return {
            "round": str(row["round"]),
            **self._scores(row),
            "train loss": _loss(row["train_loss"]),
            **_virtual(row),
            "sent": in_fitting_unit(row["bytes_up"] + row["bytes_down"], "B"),
            "left": self._time_left(row["round"]),
            "clients/s": f"{row['clients'] / row['seconds']:.1f}",
        }

    def _scores(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return a round's titled scores and its loss, on the samples of the main score."""
        run = self._run
        if run is None or run.score is None:
            return {}
        score = run.columns[run.score]
        words, shown = _set_of(_beside(score, "")), _shown(score, run.columns)
        scores = {
            f"{words}{title}": _text(column, row[column.name])
            for title, column in shown.items()
            if column.name in row
        }
        return {**scores, f"{words}loss": _loss(row.get(_beside(score, LOSS.name).name))}

    def _time_left(self, number: int) -> str:
        if self._run is None:
            return "-"
        done = number - self._run.round_number
        return clock_time(
            (perf_counter() - self._begun) / max(done, 1) * (self._run.rounds - number)
        )


def opening_line(run: Started) -> str:
    """Return the line for the start of a run: method, clients and rounds."""
    goal = f", until {run.target:.1%}" if run.target else ""
    again = f", from round {run.round_number + 1}" if run.round_number > 0 else ""
    clients = f"{run.clients} clients, {run.cohort} a round"
    return f"{run.method}: {clients}, {run.rounds} rounds{goal}{again}"


def clock_time(seconds: float) -> str:
    """Return remaining seconds as "2:03", or "1:02:03" with hours."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _virtual(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a round's virtual time, energy and lost clients."""
    if VIRTUAL_SECONDS not in row:
        return {}
    return {
        "virtual": in_fitting_unit(row[VIRTUAL_SECONDS], "s"),
        "energy": in_fitting_unit(row[VIRTUAL_JOULES], "J"),
        "lost": str(row[LOST]),
    }


def _loss(value: float | None) -> str:
    """Return a loss in a fixed width: five digits, or two if it is very large."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 10 else f"{value:.5g}" if value < 99_999.5 else f"{value:.1e}"


def final_score(
    summary: Mapping[str, Any], columns: Mapping[str, Column]
) -> tuple[str, str] | None:
    """Return the main score in words, and its last value; titled scores if it is no accuracy.

    Args:
        summary: Figures of the run.
        columns: Declared columns of the run's rounds, by name.
    """
    value, score = summary["final_score"], columns.get(summary["score"] or "")
    if score is None or value is None:
        return None
    if is_accuracy(score):
        return words_of(score), f"{value:.2%} (best {summary['best_score']:.2%})"
    shown = {
        title: (column, final_name(column)) for title, column in _shown(score, columns).items()
    }
    last = {
        t: _text(column, summary[n])
        for t, (column, n) in shown.items()
        if summary.get(n) is not None
    }
    if not last:
        return words_of(score), f"{value:.4f}"
    first, *others = last
    texts = [last[first], *(f"{title} {last[title]}" for title in others)]
    return f"{_set_of(_beside(score, ''))}{first}", ", ".join(texts)


def _took(summary: Mapping[str, Any]) -> str:
    """Return the time of a run and of its rounds."""
    a_round = f"median {summary['seconds_per_round']:.3f} s a round"
    return f"{in_fitting_unit(summary['seconds'], 's')}, {a_round}"


def closing_lines(
    summary: Mapping[str, Any], run: Started | None, published: Mapping[str, float]
) -> list[str]:
    """Return the last lines of a run: its values, next to published ones."""
    lines, rounds = [], summary["rounds"]
    if score := final_score(summary, run.columns if run else OF_SCORES):
        lines.append(
            f"{' '.join(score)} after {rounds} round{'s' * (rounds != 1)}, {_took(summary)}"
        )
    if summary.get("stopped_by") == "patience":
        lines.append(f"stopped by patience: the best round is {summary['best_round'] or 'none'}")
    if "privacy" in summary:
        lines.append(privacy_line(summary))
    if run and run.target:
        reached = summary["rounds_to_target"]
        measured = "not reached" if reached is None else f"{reached:.1f}"
        paper = published.get("rounds_to_target")
        beside = f" (published {paper:g})" if paper else ""
        lines.append(f"rounds to {run.target:.1%}: {measured}{beside}")
    up, down = (in_fitting_unit(summary[f"bytes_{way}"], "B") for way in ("up", "down"))
    lines.append(f"sent up {up}, down {down}")
    if VIRTUAL_SECONDS in summary:
        virtual = _virtual(summary)
        lines.append(
            f"virtual time {virtual['virtual']}, {virtual['energy']} of all clients,"
            f" {virtual['lost']} clients lost"
        )
    lines += [
        " ".join(figure)
        for figure in _titled(summary, {**OF_ENGINE, **(run.columns if run else {})}).items()
    ]
    if summary.get(ROUNDS_BEYOND):
        lines.append(f"more bad clients than the aggregation tolerates: {_beyond(summary)}")
    if run:
        lines.append(f"everything is in {run.path}")
    return lines


def privacy_line(summary: Mapping[str, Any]) -> str:
    """Return a run's epsilon with its conditions; says if its limit ended the run."""
    column = EPSILON if EPSILON in summary else HYPOTHETICAL
    line = f"{column.replace('_', ' ')} {summary[column]:.4g} ({summary['privacy']})"
    if summary.get("stopped_by") == EPSILON:
        return f"{line}; stopped before a round that would exceed the limit"
    return line


def _titled(summary: Mapping[str, Any], columns: Mapping[str, Column]) -> dict[str, str]:
    """Return the last values of compared columns, by title."""
    last = {c.title: (c, summary.get(final_name(c))) for c in columns.values() if c.compared is c}
    return {
        title: _text(column, value) for title, (column, value) in last.items() if value is not None
    }


def _beyond(summary: Mapping[str, Any]) -> str:
    """Return the number of rounds with more bad clients than the aggregation tolerates."""
    return f"in {summary[ROUNDS_BEYOND]} of {summary['rounds']} rounds"


def result_values(summary: Mapping[str, Any], columns: Mapping[str, Column]) -> dict[str, str]:
    """Return the figures of a finished run as text, by name.

    `columns` are the declared columns of its rounds.
    """
    reason = summary.get("stopped_by", "rounds")
    up, down = (in_fitting_unit(summary[f"bytes_{way}"], "B") for way in ("up", "down"))
    values = dict(filter(None, [final_score(summary, columns)]))
    values["rounds"] = f"{summary['rounds']}{'' if reason == 'rounds' else f', ended by {reason}'}"
    if (reached := summary["rounds_to_target"]) is not None:
        values["rounds to target_accuracy"] = f"{reached:.1f}"
    values["time"] = _took(summary)
    values["sent"] = f"up {up}, down {down}"
    if "privacy" in summary:
        values["privacy"] = privacy_line(summary)
    if VIRTUAL_SECONDS in summary:
        virtual = _virtual(summary)
        values["virtual time"] = f"{virtual['virtual']}, {virtual['energy']} of all clients"
        values["lost"] = f"{virtual['lost']} clients lost"
    values |= _titled(summary, columns)
    if ROUNDS_BEYOND in summary:
        values["beyond bound"] = f"{_beyond(summary)}, more bad clients than tolerated"
    return values
