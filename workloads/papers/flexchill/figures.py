"""Figures of FLex&Chill.

Runs named control are not the paper's: see `presets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raysim.workloads.papers.curves import ACCURACY, table_curves
from raysim.workloads.papers.figure import HEAT_MAP, Figure, FigureRun
from raysim.workloads.papers.flexchill.presets import FLEXCHILL

CLIENT_ACCURACY = {"client_accuracy_mean": "mean accuracy of the clients"}
TEST_LOSS = {**ACCURACY, "test_loss_at_temperature": "test loss at T"}
LOWEST = 0.05
TEMPERATURES = (4.0, 1.0, 0.25, LOWEST)
NONIID = "flexchill-1 --only cifar10"
ALL = (4.0, 2.0, 1.0, 0.5, 0.25, LOWEST)


def _temperatures(
    values: Sequence[float] = TEMPERATURES, lr: float = 0.001, **more: Any
) -> Iterator[FigureRun]:
    """Yield the runs at temperatures, each with a control that takes the first steps of the lowest.

    Args:
        values: The temperatures.
        lr: The preset's learning rate.
        more: Other fields of the runs.
    """
    for value in values:
        settings = {"local.temperature": value}
        yield FigureRun(f"T={value:g}", settings, **more)
        if value != LOWEST:
            rate = round(lr * value / LOWEST, 6)
            name = f"control of {value:g}"
            yield FigureRun(name, {**settings, "local.lr": rate}, **more)


def _tuned(table: str, note: str = "") -> str:
    """Return a note that ends with the command of the rates tuned for each temperature.

    Args:
        table: Table of the same runs, and options that choose its cells.
        note: The note's beginning.
    """
    command = f"raysim table {table} --tune local.lr=1e-3..0.2:log --tune-trials 6 --seeds 5"
    return f"{note} With the rate tuned for each T by the same budget: {command}".strip()


REFERENCE = FigureRun("reference", {"partition.name": "iid", "local.temperature": 1.0}, drawn=False)


def _between_clients(reference: str, layer: int, temperatures: Sequence[float]) -> Figure:
    """Return the similarity of the clients' models at a layer."""
    return Figure(
        "Linear CKA of the clients' models at a layer",
        FLEXCHILL,
        reference,
        "flexchill-cifar10-cka",
        (REFERENCE, *_temperatures(temperatures, 0.005, reference="reference")),
        "similarity",
        "cka",
        ("cka",),
        "CKA",
        {"evaluation.every": 1},
        {"rounds": (1, 5, 50, 100), "layer": layer},
        _tuned("flexchill-8", "All layers are in the tables of the runs."),
    )


FIGURES = {
    "flexchill-1": Figure(
        "Gradient norms at the first layer, of samples classified rightly and wrongly",
        FLEXCHILL,
        "figure 1",
        "flexchill-cifar10",
        tuple(_temperatures()),
        "distribution",
        "temperature",
        ("gradient_norm",),
        "gradient norm",
        {"rounds": 10, "evaluation.every": 10, "evaluation.clients": False},
        {
            "last": True,
            "log": True,
            "split": ("correct", "classified rightly", "classified wrongly"),
        },
        _tuned(
            NONIID,
            "The model of the last round, on 20 samples of each client of the round; the paper"
            " takes 50,000 samples and does not say at which model.",
        ),
    ),
    "flexchill-2": Figure(
        "Change of the distance to the decision boundary by a step on a misclassified sample",
        FLEXCHILL,
        "figure 2",
        "flexchill-cifar10",
        tuple(_temperatures()),
        "distribution",
        "temperature",
        ("distance_after", "distance_before"),
        "distance after the step - before it",
        {"rounds": 10, "evaluation.every": 10, "evaluation.clients": False},
        {"last": True, "only": {"correct": False}},
        _tuned(NONIID, "The model of the last round; the paper takes an initial network."),
    ),
    "flexchill-3": Figure(
        "Decision regions of the clients' models and of their mean, in two dimensions",
        FLEXCHILL,
        "figure 3",
        "flexchill-plane",
        (
            FigureRun("T=1", {"local.temperature": 1.0}),
            FigureRun("control of 1", {"local.temperature": 1.0, "local.lr": 0.2}),
            FigureRun("T=0.5"),
        ),
        "regions",
        "decision_regions",
        ("label",),
        "class",
        {"evaluation.every": 5},
        {"last": True},
        note="The paper does not print its data, rates and rounds. The control takes the first"
        " steps of T=0.5 at T=1. With the rate tuned for each T by the same budget: raysim sweep"
        " flexchill-plane local.temperature=1,0.5 --tune local.lr=0.01..10:log --tune-trials 6"
        " seed=0..4",
    ),
    "flexchill-4": table_curves(
        "flexchill-1", "accuracy$", "figure 4", CLIENT_ACCURACY, _tuned("flexchill-1")
    ),
    "flexchill-4b": Figure(
        "Accuracy at the clients: median and deciles 1 to 9",
        FLEXCHILL,
        "figure 4b",
        "flexchill-cifar10",
        tuple(_temperatures()),
        "deciles",
        "metrics",
        tuple(f"client_accuracy_d{tenth}" for tenth in range(1, 10)),
        "accuracy of a client",
        note=_tuned(NONIID, "The paper draws the mean, as flexchill-4 does."),
    ),
    "flexchill-5": Figure(
        "Linear CKA by layer of the global model and an IID reference",
        FLEXCHILL,
        "figure 5, table 8",
        "flexchill-cifar10-cka",
        (REFERENCE, *_temperatures(lr=0.005, reference="reference")),
        "curves",
        "cka",
        ("cka",),
        "CKA with the reference",
        {"evaluation.every": 10},
        {"x": "layer", "last": True, "only": {"first": "after", "second": "reference"}},
        _tuned("flexchill-8"),
    ),
    "flexchill-6": _between_clients("figure 6", -2, (1.0, 0.05)),
    "flexchill-7": Figure(
        "Change of the clients' accuracy by the aggregation",
        FLEXCHILL,
        "figure 7",
        "flexchill-cifar10",
        tuple(_temperatures()),
        "curves",
        "aggregation_drop",
        ("accuracy_after", "accuracy_before"),
        "accuracy after - before",
        options={"split": ("participant", "clients of the round", "other clients")},
        note=_tuned(NONIID),
    ),
    "flexchill-8": Figure(
        "Samples of each client and class",
        FLEXCHILL,
        "figure 8",
        "flexchill-cifar10",
        (
            FigureRun("FEMNIST", preset="flexchill-femnist"),
            FigureRun("CIFAR-10"),
            FigureRun("CIFAR-100", preset="flexchill-cifar100"),
        ),
        **HEAT_MAP,
    ),
    "flexchill-9": table_curves(
        "flexchill-c", "accuracy$", "figure 9", TEST_LOSS, _tuned("flexchill-c")
    ),
    **{
        f"flexchill-{number}": table_curves(
            "flexchill-d", f"^{name}=", f"figure {number}", TEST_LOSS, _tuned("flexchill-d")
        )
        for number, name in ((10, "B"), (11, "m"), (12, "E"), (13, "alpha"))
    },
    "flexchill-15": Figure(
        "Samples of each client and class where CKA is measured",
        FLEXCHILL,
        "figure 15",
        "flexchill-cifar10-cka",
        (FigureRun("CIFAR-10"),),
        **HEAT_MAP,
    ),
    **{
        f"flexchill-{number}": _between_clients(f"figure {number}", layer, ALL)
        for number, layer in ((16, 0), (17, 1), (18, -2), (19, -1))  # of four layers
    },
}
