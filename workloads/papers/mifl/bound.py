"""MIFL's bound on the loss of tail-averaged SGD, and a regression on which it can be computed.

Source: Uddin et al., IEEE TPDS 2021, section 4, equations 11 to 18, and Jain et al., JMLR 18(223),
2018, from which eq. 14 is. For l(w) = E (y - x.w)^2 / 2 with its least value at w*:

    E l(w_T) - l(w*) <= 2^-T (l(w_0) - l(w*)) + 16 d sigma^2 / E               eq. 12, E steps
    E l(w_T) - l(w*) <= 2^-T (l(w_0) - l(w*)) + 8 d sigma^2 T / (2^(T-1) E)    eq. 13, 2^t E steps

    H = E x x^T      R^2: the least with E |x|^2 x x^T <= R^2 H      mu: H's least eigenvalue
    eta = 1 / (2 R^2)      kappa = R^2 / mu      E > 8 log(2) kappa log(kappa)

Its assumptions, and how `settings` and `clients` meet them: y = x.w* + noise of variance sigma^2,
independent of x; SGD on batches of one sample, each used once, so a client takes part in one round
and has as many samples as steps; it sends the mean of the last half of its models
(`local.tail_average=0.5`); all clients answer; the aggregate is a convex combination.

A gap in the proof: eq. 16 has the loss of the aggregate below that of every client, where convexity
has it below their weighted mean. For a mean over the cohort that is enough, as the expectations of
its clients are equal. Clients chosen by the MI of what they have trained are no fair sample of the
cohort: as no loss is below l(w*), the mean excess of n kept of m clients is at most m/n times that
of the cohort, and with that factor alone eq. 17 is shown. Section 4 has IID data, and plain SGD for
the update, as at a client's first participation. The paper draws no figure of the bound.

`python -m raysim.workloads.papers.mifl.bound` measures both sides.

Legend: d dimensions, n points, T rounds, m clients a round, E local steps.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor, nn

import raysim
from raysim.display.canvas import style, written
from raysim.errors import SettingsError
from raysim.numbers.arrays import Floats

Clients = list[tuple[Floats, Floats]]


@dataclass(frozen=True)
class Regression:
    """Linear regression whose inputs are equally likely points.

    Attributes:
        points: The inputs x [n, d].
        optimum: w* [d].
        noise: Standard deviation sigma of a target.
    """

    points: Floats
    optimum: Floats
    noise: float

    @cached_property
    def hessian(self) -> Floats:
        """H [d, d], the loss's second derivative."""
        return np.asarray(self.points.T @ self.points / len(self.points))

    @cached_property
    def least_curvature(self) -> float:
        """mu, the least eigenvalue of H; assumption 2 has it above 0."""
        return float(np.linalg.eigvalsh(self.hessian)[0])

    @cached_property
    def radius(self) -> float:
        """R^2 of assumption 2."""
        squares = (self.points**2).sum(1, keepdims=True)
        fourth = self.points.T @ (squares * self.points) / len(self.points)
        values, vectors = np.linalg.eigh(self.hessian)
        whiten = vectors / np.sqrt(values)
        return float(np.linalg.eigvalsh(whiten.T @ fourth @ whiten)[-1])

    @property
    def lr(self) -> float:
        """Learning rate eta."""
        return 1 / (2 * self.radius)

    @property
    def least_steps(self) -> float:
        """Number of local steps above which the bound holds."""
        kappa = self.radius / self.least_curvature
        return 8 * math.log(2) * kappa * math.log(kappa)

    def excess(self, w: Floats) -> float:
        """Return l(w) - l(w*) of weights [d]."""
        apart = w - self.optimum
        return float(apart @ self.hessian @ apart / 2)

    def clients(self, rounds: Sequence[int], cohort: int, seed: int) -> Clients:
        """Return samples of clients that take part in one round each, in turn.

        Args:
            rounds: Local steps of each round [T].
            cohort: Clients a round.
            seed: Seed of the samples.
        """
        draws, clients = np.random.default_rng(seed), []
        for steps in np.repeat(rounds, cohort):
            x = self.points[draws.integers(len(self.points), size=steps)]
            y = x @ self.optimum + draws.normal(scale=self.noise, size=steps)
            clients.append((x, y))
        return clients

    def task(self, clients: Clients) -> raysim.Task:
        """Return the task of clients; its test loss is l(w) - l(w*), its first model w = 0."""
        model = nn.Linear(self.points.shape[1], 1, bias=False).double()
        nn.init.zeros_(model.weight)
        test = (self.points, self.points @ self.optimum)
        return raysim.Task(model, clients, test, raysim.Scoring(half_squared_error))

    def settings(self, rounds: int, cohort: int) -> dict[str, Any]:
        """Return the settings of the proposition's run, without its `out` and method."""
        return {
            "rounds": rounds,
            "fraction": 1 / rounds,
            "target_accuracy": None,
            "selection.name": "round_robin",
            "local.epochs": 1,
            "local.batch_size": 1,
            "local.lr": self.lr,
            "local.tail_average": 0.5,
            "engine.backend": "inline",
        }


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half the squared error [B] of outputs [B, 1]."""
    return (outputs[:, 0] - targets).square() / 2


def bound(problem: Regression, first: float, steps: int, rounds: int, doubled: bool) -> list[float]:
    """Return the bound on E l(w_t) - l(w*) after rounds 1 to T.

    Args:
        problem: The regression.
        first: l(w_0) - l(w*).
        steps: E, local steps; of the first round if they are doubled.
        rounds: T.
        doubled: Whether each round has twice the steps of the one before: eq. 13, else eq. 12.

    Raises:
        SettingsError: the steps are too few for the proposition, or H is singular.
    """
    if problem.least_curvature <= 0:
        raise SettingsError("points: their second moment must have full rank (assumption 2)")
    if steps <= problem.least_steps:
        raise SettingsError(
            f"steps={steps}: must be above {problem.least_steps:.4g} for this bound"
        )
    noise = 8 * len(problem.optimum) * problem.noise**2 / steps
    return [
        first / 2**t + (noise * t / 2 ** (t - 1) if doubled else 2 * noise)
        for t in range(1, rounds + 1)
    ]


def measured(
    problem: Regression,
    schedule: Sequence[int],
    cohort: int,
    seeds: Sequence[int],
    overrides: Mapping[str, Any],
) -> Floats:
    """Return l(w_t) - l(w*) after each round, by seed [seeds, T].

    Args:
        problem: The regression.
        schedule: Local steps of each round [T].
        cohort: Clients a round.
        seeds: Seeds of the samples.
        overrides: Further settings, such as the method.
    """
    settings, curves = problem.settings(len(schedule), cohort), []
    for seed in seeds:
        task = problem.task(problem.clients(schedule, cohort, seed))
        with TemporaryDirectory() as folder:
            out = {"out": str(Path(folder) / "run"), "seed": seed}
            config = raysim.load_config("mnist-fedavg", {**settings, **overrides, **out})
            curves.append(raysim.run(config, task).metrics["test_loss"].to_numpy())
    return np.stack(curves)


PROBLEM = Regression(
    points=math.sqrt(2) * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]),
    optimum=np.ones(2),
    noise=1.0,
)
"""Two independent directions: H is the unit matrix, R^2 = kappa = 2, eta = 1/4, E above 7.7."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg, last half": {},
    "FedAvg, last step": {"local.tail_average": 0.0},
    "MIFL, last half": {"method.name": "mifl", "method.objective": "mixture"},
}
"""Settings of the measurement. A client takes part once, so MIFL's update is plain SGD."""
SCHEDULES = {"equal": (400,) * 6, "doubled": tuple(50 * 2**t for t in range(6))}
"""Local steps of each round, of eq. 12 and of eq. 13."""


def main() -> None:
    """Print the bound and the measured excess of the loss; draw both if a file is given."""
    parser = argparse.ArgumentParser(description="MIFL's bound, measured")
    parser.add_argument("--seeds", type=int, default=10, help="samples of each mean")
    parser.add_argument("--cohort", type=int, default=3, help="clients a round; 3: MIFL keeps one")
    parser.add_argument("--figure", type=Path, help="file of a drawing, bound.svg or bound.png")
    arguments = parser.parse_args()
    first = PROBLEM.excess(np.zeros(2))
    curves: dict[str, dict[str, Floats]] = {}
    for kind, schedule in SCHEDULES.items():
        limit = bound(PROBLEM, first, schedule[0], len(schedule), kind == "doubled")
        curves[kind] = {"bound": np.array(limit)}
        for name, overrides in METHODS.items():
            excess = measured(
                PROBLEM, schedule, arguments.cohort, range(arguments.seeds), overrides
            )
            curves[kind][name] = excess.mean(0)
        print(f"\nl(w_t) - l(w*), mean of {arguments.seeds} seeds, local steps {schedule}")
        for name, values in curves[kind].items():
            print(f"{name:20}", *(f"{value:8.4f}" for value in values))
    if arguments.figure:
        draw(curves, arguments.figure)


def draw(curves: Mapping[str, Mapping[str, Floats]], path: Path) -> None:
    """Draw the curves [T] of each schedule in a panel of its own."""
    from matplotlib.figure import Figure

    with style():
        canvas = Figure(figsize=(9, 3.6), layout="constrained")
        panels = canvas.subplots(1, len(curves))
        for axes, (kind, lines) in zip(panels, curves.items(), strict=True):
            for name, values in lines.items():
                look = "k--" if name == "bound" else ".-"
                axes.plot(range(1, len(values) + 1), values, look, label=name)
            axes.set(xlabel="round", title=f"{kind} local steps", yscale="log")
            axes.set_ylabel("$l(w_t) - l(w_*)$")
        axes.legend()
    path.write_bytes(written(canvas, path.suffix.lstrip(".")))


if __name__ == "__main__":
    main()
