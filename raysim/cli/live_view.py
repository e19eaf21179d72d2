"""Output of a run: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raysim.driver.listener import Listener, Started
from raysim.storage.summary import LOST, VIRTUAL_JOULES, VIRTUAL_SECONDS

PLAIN_PROGRESS_SECONDS = 5.0
LOWEST_WIDTH = 6
"""Characters of the narrowest column of a terminal's table of rounds."""
SPLITS = {
    "test": "",
    "holdout": "held-out ",
    "local_test": "local test ",
    "train_set": "training ",
}
"""Splits whose figures are shown, the first that is evaluated, and their names."""


class PlainOutput(Listener):
    """Plain output of a run, one line per round, for logs and pipes."""

    def __init__(self, console: Console, published: Mapping[str, float]) -> None:
        self._console = console
        self._published = published
        self._run: Started | None = None
        self._begun = perf_counter()
        self._last_progress = 0.0

    def print_line(self, text: str) -> None:
        """Print one line without markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Print the progress of data preparation every PLAIN_PROGRESS_SECONDS."""
        if perf_counter() - self._last_progress > PLAIN_PROGRESS_SECONDS or done == total:
            self._last_progress = perf_counter()
            self.print_line(f"{what}: {done / max(total, 1):.0%}")

    def started(self, run: Started) -> None:
        """Print method, clients, rounds and run directory."""
        self._run, self._begun = run, perf_counter()
        goal = f", until {run.target:.1%}" if run.target else ""
        again = f", from round {run.round_number + 1}" if run.round_number > 0 else ""
        self.print_line(
            f"{run.method}: {run.clients} clients, {run.cohort} a round, {run.rounds}"
            f" rounds{goal}{again}; {run.path}"
        )

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Print the values of a round."""
        self.print_line("  ".join(f"{name} {value}" for name, value in self.values(row).items()))

    def note(self, text: str) -> None:
        """Print a note."""
        self.print_line(f"note: {text}")

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Print the final values."""
        for line in closing_lines(summary, self._run, self._published):
            self.print_line(line)

    def values(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the values of a round as text, by column."""
        return {
            "round": str(row["round"]),
            **_scores(row),
            "train loss": _loss(row["train_loss"]),
            **_virtual(row),
            "sent": with_prefix(row["bytes_up"] + row["bytes_down"], "B"),
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


class LiveView(PlainOutput):
    """Lines of finished rounds, which scroll, above a progress bar of the current round."""

    def __init__(self, console: Console, published: Mapping[str, float]) -> None:
        super().__init__(console, published)
        self._widths: dict[str, int] = {}
        self._lines = 0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bars.add_task("starting", total=None)
        self.live = Live(self._bars, console=console, refresh_per_second=8, transient=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of data preparation."""
        self._bars.update(self._task, description=what, completed=done, total=total)

    def started(self, run: Started) -> None:
        """Show the first round."""
        super().started(run)
        self._next_round(run.round_number + 1)

    def progress(self, done: int, total: int) -> None:
        """Show the number of clients done in the round."""
        self._bars.update(self._task, completed=done, total=total)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Print the values of a round, below the names of the columns once in a window."""
        values = self.values(row)
        if [*values] != [*self._widths] or self._lines >= self._console.height - 2:
            self._widths = {
                name: max(len(name), len(value), LOWEST_WIDTH) for name, value in values.items()
            }
            self._print_values({name: name for name in values}, style="bold")
            self._lines = 0
        self._print_values(values)
        self._lines += 1
        self._next_round(row["round"] + 1)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Take the progress bar away, and print the final values."""
        self.live.stop()
        super().finished(summary)

    def _print_values(self, values: Mapping[str, str], style: str = "") -> None:
        """Print a line of values in columns; columns beyond the window are left out."""
        line = ""
        for name, value in values.items():
            longer = f"{line}  {value:>{self._widths[name]}}"
            if len(longer) - 2 > self._console.width:
                break
            line = longer
        self._console.print(line[2:], style=style, markup=False, highlight=False)

    def _next_round(self, number: int) -> None:
        rounds = self._run.rounds if self._run else number
        if number <= rounds:
            self._bars.reset(self._task, description=f"round {number}/{rounds}", total=None)


def with_prefix(value: float, unit: str) -> str:
    """Return a quantity in three digits, as "21.4 kB"; below 1000, in whole units."""
    for prefix in ("", "k", "M", "G", "T"):
        shown = f"{value:.0f}" if not prefix else f"{value:.3g}"
        if value < 999.5 or prefix == "T":
            break
        value /= 1000
    return f"{shown} {prefix}{unit}"


def clock_time(seconds: float) -> str:
    """Return seconds as minutes and seconds, as "2:03", or with hours, as "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _virtual(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a round's virtual time, energy, and clients without a result that counts."""
    if VIRTUAL_SECONDS not in row:
        return {}
    seconds = row[VIRTUAL_SECONDS]
    return {
        "virtual": f"{seconds:.1f} s" if seconds < 60 else clock_time(seconds),
        "energy": with_prefix(row[VIRTUAL_JOULES], "J"),
        "lost": str(row[LOST]),
    }


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _scores(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a round's accuracy, if the task has one, and its loss, on the first of SPLITS."""
    for split, words in SPLITS.items():
        if f"{split}_loss" in row:
            found = {f"{words}loss": _loss(row[f"{split}_loss"])}
            if f"{split}_accuracy" in row:
                accuracy = row[f"{split}_accuracy"]
                shown = "-" if accuracy is None else f"{accuracy:.2%}"
                found = {f"{words}accuracy": shown, **found}
            return found
    return {}


def _final(summary: Mapping[str, Any]) -> str:
    """Return the final accuracy, or else the loss, on the first of SPLITS; empty without any."""
    if summary["final_accuracy"] is not None:
        return f"accuracy {summary['final_accuracy']:.2%} (best {summary['best_accuracy']:.2%})"
    for split, words in SPLITS.items():
        key = "final_" if split == "test" else f"final_{split}_"
        if (accuracy := summary.get(f"{key}accuracy")) is not None:
            return f"{words}accuracy {accuracy:.2%}"
        if (loss := summary.get(f"{key}loss")) is not None:
            return f"{words}loss {loss:.4f}"
    return ""


def closing_lines(
    summary: Mapping[str, Any], run: Started | None, published: Mapping[str, float]
) -> list[str]:
    """Return the final lines of a run: its values beside the published values."""
    lines = []
    if text := _final(summary):
        lines.append(
            f"{text} after {summary['rounds']} rounds, {summary['seconds']:.1f} s,"
            f" median {summary['seconds_per_round']:.3f} s a round"
        )
    if summary.get("stopped_by") == "patience":
        lines.append(f"stopped by patience: the best round is {summary['best_round'] or 'none'}")
    if run and run.target:
        reached = summary["rounds_to_target"]
        measured = "not reached" if reached is None else f"{reached:.1f}"
        paper = published.get("rounds_to_target")
        beside = f" (published {paper:g})" if paper else ""
        lines.append(f"rounds to {run.target:.1%}: {measured}{beside}")
    up, down = (with_prefix(summary[f"bytes_{way}"], "B") for way in ("up", "down"))
    lines.append(f"sent up {up}, down {down}")
    if VIRTUAL_SECONDS in summary:
        virtual = _virtual(summary)
        lines.append(
            f"virtual time {virtual['virtual']}, {virtual['energy']} of all clients,"
            f" {virtual['lost']} clients without a result that counts"
        )
    if run:
        lines.append(f"everything is in {run.path}")
    return lines


@contextmanager
def make_listener(console: Console, published: Mapping[str, float]) -> Iterator[PlainOutput]:
    """Return the live view in a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield PlainOutput(console, published)
        return
    view = LiveView(console, published)
    with view.live:
        yield view
