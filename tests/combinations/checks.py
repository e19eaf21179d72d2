"""Checks of a case: runs that must agree, and a saved model that must have its row's metrics."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import raysim
from tests.combinations.cases import ROUNDS, Case, Outcome
from tests.combinations.drawing import ASYNCHRONOUS, Drawn
from tests.combinations.federations import NETWORKS

Table = list[dict[str, Any]]
ACTORS: Drawn = {"engine.backend": "ray", "engine.actors": 2}
SHOWN = 6
"""Differences that are shown of a pair of runs."""
RANDOM = ("attention", "dropout")
"""Networks that draw other numbers in a stack."""
CLOSE = {"rel_tol": 2e-3, "abs_tol": 1e-5}
"""How far a stack's losses and norms may be from those of clients alone in the first round."""

NUDGES = (1 + 1e-6, 1 - 1e-6, 1 + 1e-5)
"""Factors of a rate. Where one of them moves a column, training magnifies what rounding changes."""


def state_of(run: Path) -> dict[str, Any]:
    """Return all that two equal runs have alike: digests of tensors, and tables without times."""
    found: dict[str, Any] = {}
    for path in sorted([*run.glob("*.safetensors"), *run.glob("client_models/**/*.safetensors")]):
        found[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for path in sorted([*run.glob("*.parquet"), *run.glob("analysis/*.parquet")]):
        found[str(path.relative_to(run))] = [
            _timeless(row) for row in pq.read_table(path).to_pylist()
        ]
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = [_timeless(summary)]
    return found


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without real times, in which NaN equals NaN."""
    timed = ("clients_per_second", "interruptions", "resumed")
    kept = {
        key: value
        for key, value in row.items()
        if key not in timed and ("seconds" not in key or key.startswith("virtual"))
    }
    return {k: "NaN" if isinstance(v, float) and math.isnan(v) else v for k, v in kept.items()}


def differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between two runs' states, by file, row and column."""
    for name in sorted({*first, *second}):
        ours, theirs = first.get(name), second.get(name)
        if not isinstance(ours, list) or not isinstance(theirs, list):
            if ours != theirs:
                yield f"{name}: {ours} and {theirs}"
        elif len(ours) != len(theirs):
            yield f"{name}: {len(ours)} and {len(theirs)} rows"
        else:
            for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                for key in sorted({*a, *b}):
                    if a.get(key, "missing") != b.get(key, "missing"):
                        yield f"{name}, row {number}, {key}: {a.get(key)} and {b.get(key)}"


def compared(case: Case, name: str, outcome: Outcome) -> Iterator[str]:
    """Yield how a run differs from the whole one, or that it failed."""
    if outcome.error:
        yield f"{name}: {outcome.error}"
        return
    found = list(differences(state_of(case.folder / "whole"), state_of(case.folder / name)))
    yield from (f"{name}: {text}" for text in found[:SHOWN])


def resumed(case: Case) -> Iterator[str]:
    """Interrupt a run, take its newest checkpoint away half of the time, and go on with it."""
    stopped = case.run("resumed", stop=case.draws.randrange(1, ROUNDS))
    if stopped.error:
        yield f"resumed: {stopped.error}"
        return
    checkpoints = sorted((case.folder / "resumed" / "checkpoints").iterdir())
    if len(checkpoints) > 1 and case.draws.random() < 0.5:
        shutil.rmtree(checkpoints[-1])
    yield from compared(case, "resumed", case.resume("resumed"))


def grown(case: Case) -> Iterator[str]:
    """Run fewer rounds, then more, where no setting depends on their number."""
    settings = case.settings
    methods = {settings["method.name"], *settings.get("method.methods", {})}
    if (
        settings.get("local.schedule", "constant") != "constant"
        or methods & {*ASYNCHRONOUS, "dp_ftrl"}
        or "patience" in settings
    ):
        return
    every = settings.get("evaluation.every", 1)
    fewer = [n for n in range(1, ROUNDS) if n % every == 0]  # no evaluation at the end alone
    if not fewer:
        return
    short = case.run("grown", {"rounds": case.draws.choice(fewer)})
    if not short.refused:
        more = {"rounds": ROUNDS}
        yield from compared(case, "grown", short if short.error else case.resume("grown", more))


def distributed(case: Case) -> Iterator[str]:
    """Run on two actors."""
    yield from compared(case, "actors", case.run("actors", ACTORS))


def stacked(case: Case) -> Iterator[str]:
    """Train clients in stacks and alone, without the parts that look at rounded updates."""
    if case.federation.family in RANDOM:
        return
    other = ("channel", "downlink", "aggregation", "attack", "analysis", "engine", "temperature")
    other += ("server",)
    kept = {k: v for k, v in case.settings.items() if k.partition(".")[0] not in other}
    kept |= {"engine.backend": "inline", "rounds": 1}
    if kept.get("local.optimizer", "sgd") != "sgd":
        kept["local.lr"] = 1e-3  # the first steps of the others follow signs, which rounding flips
    outcomes = {n: _first_round(case, kept, n) for n in (0, 3)}
    if any(outcome.refused and not outcome.crashed for outcome, _ in outcomes.values()):
        return
    if failed := [outcome.error for outcome, _ in outcomes.values() if outcome.error]:
        yield f"stacked: {failed[0]}"
        return
    alone, together = (row for _, row in outcomes.values())
    apart = _apart(alone, together)
    for nudge in NUDGES if apart else ():
        rate = raysim.load_config("mnist-fedavg", kept).local.lr * nudge
        _, nudged = _first_round(case, kept | {"local.lr": rate}, 0)
        if _apart(alone, nudged):
            return
    for key in sorted(apart):
        yield f"stacked: {key}: {alone[key]} alone and {together.get(key)} in stacks"


def _first_round(case: Case, settings: Drawn, stack: int) -> tuple[Outcome, dict[str, Any]]:
    """Run a round with clients in stacks of a size; return how it ended, and its row."""
    folder = case.folder / "stack"
    shutil.rmtree(folder, ignore_errors=True)
    own, case.settings = case.settings, settings
    outcome = case.run(folder.name, {"engine.vectorize": stack})
    case.settings = own
    if outcome.error:
        return outcome, {}
    return outcome, _timeless(pq.read_table(folder / "metrics.parquet").to_pylist()[0])


def _apart(ours: dict[str, Any], theirs: dict[str, Any]) -> set[str]:
    """Return the columns whose values differ by more than rounding."""
    both = {key: (value, theirs.get(key)) for key, value in ours.items() if not _is_count(key)}
    return {key for key, (a, b) in both.items() if not (a == b or _is_close(a, b))}


def _is_count(key: str) -> bool:
    """Return whether a column counts samples that were classified right, which rounding moves."""
    return any(word in key for word in ("accuracy", "f1", "precision", "recall", "auc"))


def _is_close(ours: Any, theirs: Any) -> bool:
    return _is_number(ours) and _is_number(theirs) and math.isclose(ours, theirs, **CLOSE)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def saved(case: Case) -> Iterator[str]:
    """Load the saved models, and work out anew the test loss of their rows."""
    run = case.folder / "whole"
    rows = pq.read_table(run / "metrics.parquet").to_pylist()
    extrapolates = case.settings.get("aggregation.name") == "fltrust"
    if not (extrapolates or "attack.name" in case.settings):  # running variances may be negative
        yield from not_finite(rows)
    if not case.federation.sizes or case.settings.get("engine.precision") == "bf16":
        return
    network = NETWORKS[case.federation.family][0]
    best = json.loads((run / "summary.json").read_text()).get("best_round")
    of = {False: rows[-1]} | ({True: rows[best - 1]} if best else {})
    for is_best, row in of.items():
        if is_best and not (run / "model_best.safetensors").exists():
            continue
        loss, kept = row.get("test_loss"), raysim.load(run, model=network, best=is_best)
        ours = case.federation.test_loss(kept)
        if loss is None or ours is None or (math.isnan(loss) and math.isnan(ours)):
            continue
        if not math.isclose(loss, ours, rel_tol=1e-3):
            yield f"saved: the loss is {ours}, its row has {loss}{' (best)' if is_best else ''}"


def not_finite(rows: Table) -> Iterator[str]:
    """Yield the columns that have NaN or infinity in a round that lost no client."""
    for row in rows:
        bad = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
        if bad and row.get("clients", 1):
            yield f"saved: round {row['round']}: {', '.join(bad)} not finite"


CHECKS: tuple[Callable[[Case], Iterator[str]], ...] = (saved, resumed, grown, stacked)
"""Checks of each case on one core; `distributed` starts actors."""


def failures(case: Case, actors: bool) -> tuple[Outcome, list[str]]:
    """Run a case in all ways; return how the whole run ended, and what did not agree."""
    outcome = case.settle()
    may_diverge = "attack.name" in case.settings
    if outcome.crashed or (outcome.diverged and not may_diverge):
        return outcome, [f"whole: {outcome.error}"]
    if outcome.error:
        return outcome, []
    checks = (*CHECKS, distributed) if actors else CHECKS
    return outcome, [text for check in checks for text in check(case)]
