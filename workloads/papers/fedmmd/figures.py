"""Figures of FedMMD."""

from __future__ import annotations

from typing import Any

from raysim.workloads.papers.fedmmd.presets import FEDMMD
from raysim.workloads.papers.figure import FEDAVG, Figure, FigureRun


def _plot(number: str, preset: str, *strengths: float) -> Figure:
    """Return a plot of figure 4; the strengths are those of the L2 penalties."""
    l2 = {
        f"L2, lam {lam:g}": {"method.name": "two_stream_l2", "method.lam": lam} for lam in strengths
    }
    runs: dict[str, dict[str, Any]] = {"FedAvg": FEDAVG, "FedMMD": {}, **l2}
    return Figure(
        "Test accuracy",
        FEDMMD,
        f"figure {number}",
        preset,
        tuple(FigureRun(label, settings) for label, settings in runs.items()),
        "curves",
        "metrics",
        ("test_accuracy",),
        "test accuracy",
        {"target_accuracy": None},
    )


FIGURES = {
    "fedmmd-4a": _plot("4a", "fedmmd-cifar10-binary", 0.1, 0.01),
    "fedmmd-4b": _plot("4b", "fedmmd-cifar10-iid", 0.1, 0.01),
    "fedmmd-4c": _plot("4c", "fedmmd-mnist-binary", 0.001),
    "fedmmd-4d": _plot("4d", "fedmmd-mnist-noniid", 0.001),
}
