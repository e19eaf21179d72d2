"""What the parts of the scale benchmarks are given, and how they show their figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        rounds: Rounds of a run that count.
        out: Folder for plots, if they are wanted.
        tiny: Whether to show only that everything works.
        models: Networks whose engine cost is measured.
    """

    rounds: int
    out: Path | None
    tiny: bool
    models: tuple[str, ...] = ("2nn", "mnist-cnn-128")

    def save(self, name: str, figure: Figure) -> None:
        """Save a plot, where plots are wanted."""
        if self.out:
            figure.savefig(self.out / f"{name}.png")


def new_figure(width: float = 7, height: float = 4) -> Figure:
    """Return an empty figure; sizes in inches."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def percent(share: float) -> str:
    return f"{share:.1%}"
