"""Selection of cohorts by a clock: what it knows of the clients, round by round."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.oort import Feedback, Oort
from raysim.core.given.columns import OF_CLIENTS, check_names
from raysim.core.rules import Pass, Trained, Upload, View
from raysim.core.scoring import FORWARD_ROWS
from raysim.core.seeds import stream
from raysim.driver.analyses.riding import Finish
from raysim.execution.partial_sum import Columns

Integers = npt.NDArray[np.int64]
SQUARED_LOSS = "squared_loss"
"""Column of `clients.parquet`: mean squared loss of the trained model on the client's samples."""
UTILITY = "exploited_utility"
"""Column of `metrics.parquet`: mean utility of the exploited clients whose results counted."""


class Selection:
    """Results that a clock selects by, of all clients.

    They are columns of `clients.parquet`, from which a resumed run reads them.
    """

    def __init__(self, clock: Oort, sizes: Integers, seed: int) -> None:
        self.clock, self._sizes, self._seed = clock, sizes, seed
        self._squared, self._last = np.full(len(sizes), np.nan), np.ones(len(sizes), np.int64)
        self._read, self._newest = 0, 0
        self._exploited: list[int] = []

    def restore(self, rows: Path, rounds: int) -> None:
        """Take in the rows of the committed rounds, if they are not those of this process."""
        if self._read == rounds:
            return
        for path in sorted(rows.glob("*.parquet")):
            table = pq.read_table(path)
            if SQUARED_LOSS in table.column_names:
                columns = {n: table[n].to_numpy() for n in ("round", "client", SQUARED_LOSS)}
                for number in np.unique(columns["round"]).tolist():
                    of_round = columns["round"] == number
                    self._take(number, {n: values[of_round] for n, values in columns.items()})
        self._read = rounds

    def asked(
        self, number: int, wanted: int, candidates: Integers, ticks: Integers, past: list[float]
    ) -> list[int]:
        """Return the clients of a round; the exploited ones come first.

        Args:
            number: Rounds committed.
            wanted: Clients that are wanted.
            candidates: Clients that are available, ascending [n].
            ticks: Duration of each client's plain training [K].
            past: UTILITY of the rounds so far.
        """
        feedback = Feedback(
            number=number,
            wanted=wanted,
            candidates=candidates,
            seconds=ticks / TICKS_PER_SECOND,
            samples=self._sizes,
            squared_losses=self._squared,
            last=self._last,
            newest=self._newest,
            utilities=past,
            generator=stream(self._seed, "cohort", number),
        )
        self._exploited, others = self.clock.select(feedback)
        return [*self._exploited, *others]

    def figures(self, number: int, columns: list[Columns]) -> dict[str, float]:
        """Take in a round's results; return its utility."""
        for of_pass in columns:
            if SQUARED_LOSS in of_pass:
                self._take(number + 1, of_pass)
        self._read = number + 1
        chosen = [c for c in self._exploited if self._last[c] == number + 1]
        utility = self._sizes[chosen] * np.sqrt(self._squared[chosen])
        return {UTILITY: float(np.nanmean(utility)) if len(utility) else 0.0}

    def _take(self, number: int, columns: Any) -> None:
        clients, squared = columns["client"].astype(np.int64), columns[SQUARED_LOSS]
        heard = np.isfinite(squared)
        if np.isnan(self._squared[clients[heard]]).any():
            self._newest = number
        self._squared[clients[heard]] = squared[heard]
        self._last[clients[heard]] = number


def with_squared_loss(work: Pass) -> Pass:
    """Return a training pass whose clients report their mean squared loss."""
    if not work.epochs or work.label:
        return work
    return replace(work, rules=replace(work.rules, finish=partial(_finish, work.rules.finish)))


def _finish(finish: Finish, view: View, trained: Trained) -> Upload:
    """Return the method's upload with the mean squared loss of the trained model."""
    data, squares = trained.data, []
    upload = finish(view, trained)
    check_names({**upload.scalars, **upload.metrics}, OF_CLIENTS, [SQUARED_LOSS], "its number")
    for start in range(0, len(data.y), FORWARD_ROWS):
        rows = slice(start, start + FORWARD_ROWS)
        part = data._replace(x=data.x[rows], y=data.y[rows])
        squares.append(part.losses(view.at(view.params, part.x).logits).double().square().sum())
    mean = float(sum(squares)) / len(data.y)
    return replace(upload, metrics={**upload.metrics, SQUARED_LOSS: mean})
