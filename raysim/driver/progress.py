"""Values of rounds and of a finished run as text, for a terminal and a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from raysim.core.units import in_fitting_unit
from raysim.driver.listener import Listener, Started
from raysim.storage.summary import (
    EPSILON,
    HYPOTHETICAL,
    LOST,
    ROUNDS_BEYOND,
    SUCCESS,
    VIRTUAL_JOULES,
    VIRTUAL_SECONDS,
)

SPLITS = {
    "test": "",
    "holdout": "held-out ",
    "personal_local_test": "own local test ",
    "local_test": "local test ",
    "train_set": "training ",
}
"""Splits whose figures are shown, the first that is evaluated, and their names."""


SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", "{:.2%}".format),
    "mae": ("MAE", "{:.4g}".format),
    "r2": ("R2", "{:.4f}".format),
}
"""Scores that are shown next to the loss, by the end of their column: name, and value as text."""


class RunProgress(Listener):
    """Listener that knows the progress of a run, with the values of its rounds as text."""

    def __init__(self) -> None:
        self._run: Started | None = None
        self._begun = perf_counter()

    def started(self, run: Started) -> None:
        """Note the run, and when it begins."""
        self._run, self._begun = run, perf_counter()

    def values(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the values of a round as text, by column."""
        return {
            "round": str(row["round"]),
            **_scores(row),
            "train loss": _loss(row["train_loss"]),
            **_virtual(row),
            "sent": in_fitting_unit(row["bytes_up"] + row["bytes_down"], "B"),
            "left": self._time_left(row["round"]),
            "clients/s": f"{row['clients'] / row['seconds']:.1f}",
        }

    def _time_left(self, number: int) -> str:
        if self._run is None:
            return "-"
        done = number - self._run.round_number
        return clock_time(
            (perf_counter() - self._begun) / max(done, 1) * (self._run.rounds - number)
        )


def opening_line(run: Started) -> str:
    """Return method, clients and rounds of a run that starts."""
    goal = f", until {run.target:.1%}" if run.target else ""
    again = f", from round {run.round_number + 1}" if run.round_number > 0 else ""
    clients = f"{run.clients} clients, {run.cohort} a round"
    return f"{run.method}: {clients}, {run.rounds} rounds{goal}{again}"


def clock_time(seconds: float) -> str:
    """Return remaining seconds, which count down, as "2:03", or with hours, as "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _virtual(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a round's virtual time, energy, and clients without a result that counts."""
    if VIRTUAL_SECONDS not in row:
        return {}
    return {
        "virtual": in_fitting_unit(row[VIRTUAL_SECONDS], "s"),
        "energy": in_fitting_unit(row[VIRTUAL_JOULES], "J"),
        "lost": str(row[LOST]),
    }


def _loss(value: float | None) -> str:
    """Return a loss in five digits, or two where it has exploded, so that columns stay in line."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 10 else f"{value:.5g}" if value < 99_999.5 else f"{value:.1e}"


def _scores(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a round's scores of SHOWN that the task has, and its loss, on the first of SPLITS."""
    for split, words in SPLITS.items():
        if f"{split}_loss" in row:
            found = {
                f"{words}{shown}": "-" if (value := row[f"{split}_{name}"]) is None else text(value)
                for name, (shown, text) in SHOWN.items()
                if f"{split}_{name}" in row
            }
            return {**found, f"{words}loss": _loss(row[f"{split}_loss"])}
    return {}


def final_score(summary: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return name and value of the final accuracy, error or loss, on the first of SPLITS."""
    if summary["final_accuracy"] is not None:
        best = f"(best {summary['best_accuracy']:.2%})"
        return "accuracy", f"{summary['final_accuracy']:.2%} {best}"
    for split, words in SPLITS.items():
        key = "final_" if split == "test" else f"final_{split}_"
        if (accuracy := summary.get(f"{key}accuracy")) is not None:
            return f"{words}accuracy", f"{accuracy:.2%}"
        if (mae := summary.get(f"{key}mae")) is not None and f"{key}r2" in summary:
            return f"{words}MAE", f"{mae:.4g}, R2 {summary[f'{key}r2']:.4f}"
        if (loss := summary.get(f"{key}loss")) is not None:
            return f"{words}loss", f"{loss:.4f}"
    return None


def _took(summary: Mapping[str, Any]) -> str:
    """Return the time of a run, and of its rounds."""
    a_round = f"median {summary['seconds_per_round']:.3f} s a round"
    return f"{in_fitting_unit(summary['seconds'], 's')}, {a_round}"


def closing_lines(
    summary: Mapping[str, Any], run: Started | None, published: Mapping[str, float]
) -> list[str]:
    """Return the final lines of a run: its values beside the published values."""
    lines, rounds = [], summary["rounds"]
    if score := final_score(summary):
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
    if (success := summary.get(f"final_{SUCCESS}")) is not None:
        lines.append(f"attack success {success:.2%}")
    if summary.get(ROUNDS_BEYOND):
        lines.append(f"more bad clients than the aggregation bears with: {_beyond(summary)}")
    if run:
        lines.append(f"everything is in {run.path}")
    return lines


def privacy_line(summary: Mapping[str, Any]) -> str:
    """Return a run's epsilon with what it depends on, and whether its limit has ended the run."""
    column = EPSILON if EPSILON in summary else HYPOTHETICAL
    line = f"{column.replace('_', ' ')} {summary[column]:.4g} ({summary['privacy']})"
    if summary.get("stopped_by") == EPSILON:
        return f"{line}; stopped before a round that would exceed the limit"
    return line


def _beyond(summary: Mapping[str, Any]) -> str:
    """Return in how many rounds more bad clients arrived than the aggregation bears with."""
    return f"in {summary[ROUNDS_BEYOND]} of {summary['rounds']} rounds"


def result_values(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of a finished run as text, by name."""
    reason = summary.get("stopped_by", "rounds")
    up, down = (in_fitting_unit(summary[f"bytes_{way}"], "B") for way in ("up", "down"))
    values = dict(filter(None, [final_score(summary)]))
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
    if (success := summary.get(f"final_{SUCCESS}")) is not None:
        values["attack success"] = f"{success:.2%}"
    if ROUNDS_BEYOND in summary:
        values["beyond bound"] = f"{_beyond(summary)}, more bad clients than the aggregation bears"
    return values
