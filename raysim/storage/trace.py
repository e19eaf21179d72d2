"""Traces: spans of a round's phases by worker, for Perfetto and as columns of `metrics.parquet`.

Workers and driver record spans of their phases. A worker waits outside of its spans: for its start,
for a chunk, for other workers at the end, for the server. Evaluation follows the round: its spans
are in the trace, and only in the column `evaluation_seconds`. Clients of asynchronous rounds also
train during evaluations: their spans are in the columns of the round that aggregates their results,
and may be longer than that round. They add up over the run, not over each round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import perf_counter, time
from typing import Literal

from raysim.api.columns import Column, by_name
from raysim.numbers.arrays import Array
from raysim.storage.atomic import writing

Phase = Literal["broadcast", "data", "training", "reduction", "placement", "evaluation"]
Span = tuple[Phase, float, float]
"""Phase, its start in seconds since the epoch, and its duration in seconds."""
NamedSpan = tuple[str, float, float]
Columns = Mapping[str, Array]
Spans = Mapping[str, Sequence[Span]]
"""Spans by worker, the driver's under DRIVER."""

WORKER_PHASES: tuple[Phase, ...] = ("broadcast", "data", "training", "reduction")
DRIVER_PHASES: tuple[Phase, ...] = ("broadcast", "placement", "reduction")
DRIVER = "driver"
OF_WORKERS = {f"worker_{phase}_seconds": phase for phase in (*WORKER_PHASES, "waiting")}
OF_DRIVER = {f"driver_{phase}_seconds": phase for phase in DRIVER_PHASES}
"""Phases of workers and of the driver, by their columns."""
COLUMNS = by_name(
    Column(name, "smaller", "s", tag=f"seconds/{whose}_{phase}")
    for whose, columns in (("worker", OF_WORKERS), (DRIVER, OF_DRIVER))
    for name, phase in columns.items()
)
"""Columns of `metrics.parquet` of traced runs."""


class Stopwatch:
    """Recorder of the spans of one process; records nothing without `trace`."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._spans: list[Span] = []

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Record the body as a span of a phase."""
        if not self._on:
            yield
            return
        started, begun = time(), perf_counter()
        try:
            yield
        finally:
            self._spans.append((phase, started, perf_counter() - begun))

    def take(self) -> list[Span]:
        """Return the spans recorded since the last call."""
        spans, self._spans = self._spans, []
        return spans


class TraceWriter:
    """Writer of a run's trace and of its columns per round.

    The trace is in Chrome's JSON array format. Perfetto (https://ui.perfetto.dev) also opens it
    without the closing bracket, so the file is readable after every round. A resumed run starts
    another file.
    """

    def __init__(self, folder: Path, first_round: int, name: str = "trace") -> None:
        self._folder, self._first_round = folder, first_round
        self._path = folder / f"{name}_{first_round:06d}.json"
        self._lines: dict[str, int] = {}

    @cached_property
    def _virtual(self) -> TraceWriter:
        """Writer of the clients' passes in virtual time, a line per client."""
        return TraceWriter(self._folder, self._first_round, "virtual_trace")

    def virtual(self, number: int, passes: Sequence[Columns]) -> None:
        """Write the clients' passes of a round to a trace of virtual time, if the run has one.

        Args:
            number: The round.
            passes: Columns of the round's clients, by pass.
        """
        if works := _virtual_spans(passes):
            self._virtual._write(number, works)

    def round(
        self, number: int, seconds: float, workers: int, spans: Spans, evaluation: Spans
    ) -> dict[str, float]:
        """Write a round's spans and return its columns.

        Args:
            number: The round.
            seconds: Duration of the round without evaluation.
            workers: Number of workers, including idle ones. If a worker is lost after it returned
                results, it counts in addition to its successor.
            spans: Spans of the round.
            evaluation: Spans of the evaluation after the round.

        Returns:
            Seconds of each phase summed over the workers, including waiting (at least 0), and the
            driver's seconds of broadcast, placement and reduction.
        """
        self._write(number, [*spans.items(), *evaluation.items()])
        busy = [recorded for worker, recorded in spans.items() if worker != DRIVER]
        totals: dict[str, float] = {
            phase: sum(_total(recorded, phase) for recorded in busy) for phase in WORKER_PHASES
        }
        waiting = max(workers, len(busy)) * seconds - sum(totals.values())
        totals["waiting"] = max(waiting, 0.0)
        of_driver = spans.get(DRIVER, ())
        return {name: totals[phase] for name, phase in OF_WORKERS.items()} | {
            name: _total(of_driver, phase) for name, phase in OF_DRIVER.items()
        }

    def _write(self, number: int, spans: Sequence[tuple[str, Sequence[NamedSpan]]]) -> None:
        """Append the spans of a round to the trace; the first round replaces an old file."""
        first, events = not self._lines, []
        for worker, recorded in spans:
            if worker not in self._lines:
                self._lines[worker] = len(self._lines) + 1
                events.append(self._event("M", worker, name="thread_name", args={"name": worker}))
            events += [
                self._event(
                    "X", worker, name=phase, ts=start * 1e6, dur=took * 1e6, args={"round": number}
                )
                for phase, start, took in recorded
            ]
        lines = ["[\n"] if first else []
        lines += [json.dumps(event) + ",\n" for event in events]
        with writing(self._path), self._path.open("w" if first else "a", encoding="utf-8") as file:
            file.writelines(lines)

    def _event(self, kind: str, worker: str, **values: object) -> dict[str, object]:
        return {"ph": kind, "pid": 1, "tid": self._lines[worker], **values}


def _virtual_spans(passes: Sequence[Columns]) -> list[tuple[str, list[NamedSpan]]]:
    """Return each client's passes in virtual time, named by version in asynchronous rounds."""
    by_client: dict[str, list[NamedSpan]] = {}
    for columns in passes:
        if "virtual_start" in columns:
            names = ("client", "virtual_start", "virtual_seconds")
            versions = columns.get("version")
            works = zip(*(columns[n].tolist() for n in names), strict=True)
            for at, (client, start, took) in enumerate(works):
                name = "training" if versions is None else f"from version {versions[at]:.0f}"
                by_client.setdefault(f"client {client:.0f}", []).append((name, start, took))
    return [*by_client.items()]


def _total(spans: Sequence[Span], phase: Phase) -> float:
    return sum((took for name, _, took in spans if name == phase), 0.0)
