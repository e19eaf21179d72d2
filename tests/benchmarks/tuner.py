"""Seconds of the tuner for an evaluation: its report to Optuna and the pruner's decision.

`python -m tests.benchmarks.tuner [--storage sqlite|URL] [--trials 200] [--slots 64]` plays a study
without training: all slots are full, and each trial has 50 evaluations. The columns are means in
milliseconds, the 99th percentile of report and decision together, and the share of a second that 64
evaluations take. `ask` and `end` are once a trial.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from uuid import uuid4

from raysim.numbers.seeds import stream
from raysim.tuning.search.search import Search
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_study

EVALUATIONS = 50


class Played:
    """A study whose trials are played.

    Attributes:
        seconds: Durations by kind of call: ask, evaluation, end.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, kind, call, *arguments):
        """Call, and note how long it takes."""
        begun = perf_counter()
        found = call(*arguments)
        self.seconds[kind].append(perf_counter() - begun)
        return found

    def play(self, trials: int, slots: int) -> None:
        """Run trials side by side; the accuracy of each rises to a number of its own."""
        search, left, running = self.search, trials, []
        while left or running:
            while left and len(running) < slots:
                running.append((self.timed("ask", search.ask), []))
                left -= 1
            for trial, done in [*running]:
                done.append(len(done) + 1)
                best = stream(0, "played", trial.number).random()
                curve = {len(done): best * len(done) / EVALUATIONS}
                goes_on = self.timed("evaluation", search.decisions.judge, trial, curve)
                if goes_on and len(done) < EVALUATIONS:
                    continue
                running.remove((trial, done))
                summary = {"final_holdout_accuracy": best, "bytes_up": 1, "bytes_down": 1}
                if goes_on:
                    self.timed("end", search.tell, trial, summary)
                else:
                    self.timed("end", search.prune, trial)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default="sqlite")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--slots", type=int, default=64)
    options = parser.parse_args()
    print("| pruner | evaluations | evaluation, ms | p99 | 64 a second | ask, ms | end, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for pruner in ("none", "median", "hyperband"):
        with TemporaryDirectory() as folder:
            own = {"sqlite": f"sqlite:///{folder}/study.db"}
            storage = own.get(options.storage, options.storage)
            resolved = make_study(Path(folder)).resolve({"rounds": EVALUATIONS})
            name = f"tuner-{uuid4().hex}"
            search = Search(name, storage, SearchOptions("random", pruner), resolved)
            search.claim()
            played = Played(search)
            played.play(options.trials, options.slots)
            search.close()
        each = played.seconds["evaluation"]
        ask, end = (1e3 * mean(played.seconds[kind]) for kind in ("ask", "end"))
        last = 1e3 * quantiles(each, n=100)[-1]
        figures = f"{1e3 * mean(each):.1f} | {last:.1f} | {64 * mean(each):.0%}"
        print(f"| {pruner} | {len(each)} | {figures} | {ask:.1f} | {end:.1f} |", flush=True)


if __name__ == "__main__":
    main()
