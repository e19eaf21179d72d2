"""Output of a run: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raysim.display.terminal import print_line
from raysim.driver.listeners.listener import Started, listening
from raysim.driver.listeners.progress import RunProgress, closing_lines, opening_line
from raysim.process.exits import exit_code, interruptible

PLAIN_PROGRESS_SECONDS = 5.0
STARTING = "starting"
LOWEST_WIDTH = 6
"""Characters of the narrowest column of a terminal's table of rounds."""


class PlainOutput(RunProgress):
    """Plain output of a run, one line per round, for logs and pipes."""

    def __init__(self, console: Console, published: Mapping[str, float]) -> None:
        super().__init__()
        self._console = console
        self._published = published
        self._last_progress = 0.0

    def print_line(self, text: str) -> None:
        """Print one line without markup."""
        print_line(self._console, text)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Print the progress of data preparation every PLAIN_PROGRESS_SECONDS."""
        if perf_counter() - self._last_progress > PLAIN_PROGRESS_SECONDS or done == total:
            self._last_progress = perf_counter()
            self.print_line(f"{what}: {done / max(total, 1):.0%}")

    def started(self, run: Started) -> None:
        """Print method, clients, rounds and run directory."""
        super().started(run)
        self.print_line(f"{opening_line(run)}; {run.path}")

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
        self._task = self._bars.add_task(STARTING, total=None)
        self.live = Live(self._bars, console=console, refresh_per_second=8, transient=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of data preparation; after it, that the run is starting."""
        if done < total:
            self._bars.update(self._task, description=what, completed=done, total=total)
        else:
            self._bars.reset(self._task, description=STARTING, total=None)

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


@contextmanager
def make_listener(console: Console, published: Mapping[str, float]) -> Iterator[PlainOutput]:
    """Return the live view in a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield PlainOutput(console, published)
        return
    view = LiveView(console, published)
    with view.live:
        yield view


@contextmanager
def loading(console: Console) -> Iterator[PlainOutput]:
    """Show how data is prepared in the body; an interruption of it ends the command.

    Raises:
        typer.Exit: it was interrupted.
    """
    try:
        with interruptible(), make_listener(console, {}) as listener, listening(listener):
            yield listener
    except KeyboardInterrupt as stop:
        raise typer.Exit(exit_code(stop)) from None
