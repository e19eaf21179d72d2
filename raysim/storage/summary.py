"""Summary of a run: the figures of `summary.json`, from the rows of its rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysim.storage.recorder import Row


def rounds_to_target(rows: Sequence[Row], target: float | None) -> float | None:
    """Return the rounds until the running maximum of the test accuracy reached a target.

    The curve is interpolated between the evaluation that reached it and the one before, as in
    McMahan et al., section 3. None if there is no target or it was not reached.
    """
    before: tuple[float, float] | None = None
    for row in rows:
        accuracy = row.get("test_accuracy")  # a task that is no classification has none
        if target is None or accuracy is None:
            continue
        if accuracy >= target:
            if before is None:
                return float(row["round"])
            number, best = before
            reached: float = number + (target - best) / (accuracy - best) * (row["round"] - number)
            return reached
        before = (row["round"], max(accuracy, before[1] if before else 0.0))
    return None


def summarise(rows: Sequence[Row], target: float | None) -> Row:
    """Return the figures of a run, as in `summary.json`.

    Rounds below 1, as the first version numbered a pre-pass, are left out.
    """
    counted = [row for row in rows if row["round"] >= 1]
    evaluated = [row for row in counted if row["test_loss"] is not None]
    accuracies = [row["test_accuracy"] for row in evaluated if "test_accuracy" in row]
    last = (evaluated or counted)[-1]
    seconds = sum(
        row["seconds"] + (row["evaluation_seconds"] or 0) + row["checkpoint_seconds"]
        for row in counted
    )
    return {
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        **{
            f"final_{name.removeprefix('test_')}": value
            for name, value in last.items()
            if name.startswith(("holdout_", "client_accuracy_"))
            or (name.startswith("test_") and name != "test_accuracy")
        },
        "rounds_to_target": rounds_to_target(counted, target),
        "rounds": len(counted),
        "seconds": seconds,
        "seconds_per_round": float(np.median([row["seconds"] for row in counted])),
        "bytes_up": sum(row["bytes_up"] for row in counted),
        "bytes_down": sum(row["bytes_down"] for row in counted),
    }
