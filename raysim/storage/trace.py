"""Trace of a run's phases: columns of `metrics.parquet`, and a file for Perfetto.

Workers and driver record spans of their phases. A worker's time in a round outside its spans is
waiting: for its start, for a chunk, for others at the end, for the server. Evaluation comes after
the round: its spans are in the trace, and in no column but `evaluation_seconds`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Literal

from raysim.storage.atomic import writing

Phase = Literal["broadcast", "data", "training", "reduction", "placement", "evaluation"]
Span = tuple[Phase, float, float]
"""Phase, start in seconds since the epoch, and duration in seconds."""
Spans = Mapping[str, Sequence[Span]]
"""Spans of each worker and of the driver."""

WORKER_PHASES: tuple[Phase, ...] = ("broadcast", "data", "training", "reduction")
DRIVER_PHASES: tuple[Phase, ...] = ("broadcast", "placement", "reduction")
DRIVER = "driver"


class Stopwatch:
    """Recorder of the spans of one process, if switched on."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._spans: list[Span] = []

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Record the span of the body."""
        if not self._on:
            yield
            return
        started, begun = time(), perf_counter()
        try:
            yield
        finally:
            self._spans.append((phase, started, perf_counter() - begun))

    def take(self) -> list[Span]:
        """Return the recorded spans and clear them."""
        spans, self._spans = self._spans, []
        return spans


class TraceWriter:
    """Writer of a run's trace, and of its columns per round.

    The trace is in Chrome's JSON array format, which Perfetto (https://ui.perfetto.dev) opens, also
    without the closing bracket: it is valid after every round. A resumed run starts another file.
    """

    def __init__(self, folder: Path, first_round: int) -> None:
        self._path = folder / f"trace_{first_round:06d}.json"
        with writing(self._path):
            self._path.write_text("[\n", encoding="utf-8")
        self._lines: dict[str, int] = {}

    def round(
        self, number: int, seconds: float, workers: int, spans: Spans, evaluation: Spans
    ) -> dict[str, float]:
        """Write a round's spans and return its columns.

        Args:
            number: The round.
            seconds: Duration of the round without evaluation.
            workers: Number of workers, including idle ones. A worker that was lost after it had
                returned a chunk counts beside its replacement.
            spans: Spans of the round, of each worker and of the driver.
            evaluation: Spans of the evaluation after the round.

        Returns:
            Seconds of each phase and of waiting, summed over the workers, and the driver's seconds
            of broadcast, placement and reduction.
        """
        self._write(number, [*spans.items(), *evaluation.items()])
        busy = [noted for worker, noted in spans.items() if worker != DRIVER]
        totals: dict[str, float] = {
            phase: sum(_total(noted, phase) for noted in busy) for phase in WORKER_PHASES
        }
        totals["waiting"] = max(workers, len(busy)) * seconds - sum(totals.values())
        own = spans.get(DRIVER, ())
        return {f"worker_{phase}_seconds": total for phase, total in totals.items()} | {
            f"driver_{phase}_seconds": _total(own, phase) for phase in DRIVER_PHASES
        }

    def _write(self, number: int, spans: Sequence[tuple[str, Sequence[Span]]]) -> None:
        """Add spans of a round to the trace."""
        events = []
        for worker, noted in spans:
            if worker not in self._lines:
                self._lines[worker] = len(self._lines) + 1
                events.append(self._event("M", worker, name="thread_name", args={"name": worker}))
            events += [
                self._event(
                    "X", worker, name=phase, ts=start * 1e6, dur=took * 1e6, args={"round": number}
                )
                for phase, start, took in noted
            ]
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + ",\n" for event in events)

    def _event(self, kind: str, worker: str, **values: object) -> dict[str, object]:
        return {"ph": kind, "pid": 1, "tid": self._lines[worker], **values}


def _total(spans: Sequence[Span], phase: Phase) -> float:
    return sum((took for name, _, took in spans if name == phase), 0.0)
