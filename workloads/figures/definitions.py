"""The figures, by name: the paper's short name and the figure's number.

What a paper's figure varies is in the runs; deviations from it are in the notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysim.workloads.figures.figure import Figure, FigureRun
from raysim.workloads.presets.dnc import DNC
from raysim.workloads.presets.fedfusion import FEDFUSION
from raysim.workloads.presets.fedmax import FEDMAX
from raysim.workloads.presets.fedmmd import FEDMMD
from raysim.workloads.presets.flexchill import FLEXCHILL
from raysim.workloads.presets.mnist import MIFL

TEMPERATURES = (4.0, 1.0, 0.25, 0.05)
FEDAVG = {"method.name": "fedavg"}


def _temperatures(values: Sequence[float] = TEMPERATURES, **more: Any) -> tuple[FigureRun, ...]:
    return tuple(
        FigureRun(f"T={value:g}", {"local.temperature": value}, **more) for value in values
    )


REFERENCE = FigureRun("reference", {"partition.name": "iid", "local.temperature": 1.0}, drawn=False)
PREPASS = FigureRun("pre-pass", {**FEDAVG, "rounds": 5}, drawn=False)
DIVERGENCE: dict[str, Any] = {
    "paper": DNC,
    "runs": (PREPASS, FigureRun("FedAvg", {**FEDAVG, "rounds": 8}, reference="pre-pass")),
    "draw": "layers",
    "table": "weight_divergence",
    "values": ("divergence",),
    "axis": "weight divergence",
    "note": "In full, the pre-pass has 5 rounds and the run 8; its first 5 repeat the pre-pass.",
}
HEAT_MAP: dict[str, Any] = {
    "draw": "heat_map",
    "table": "label_heat_map",
    "values": ("samples",),
    "axis": "samples",
    "settings": {"rounds": 1, "target_accuracy": None},
}


def _fedmmd(number: str, preset: str, *strengths: float) -> Figure:
    """Return a plot of FedMMD's figure 4; the strengths are those of the L2 penalties."""
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


MIFL_RUNS = (FigureRun("FedAvg", FEDAVG), FigureRun("MIFL", {"method.name": "mifl"}))

FIGURES = {
    "fedmax-2": Figure(
        "KL divergence of the clients' mean activations from their mean",
        FEDMAX,
        "figure 2",
        "fedmax-synthetic",
        tuple(
            FigureRun(
                f"{label}, gamma {gamma:g}",
                {**method, "dataset.gamma1": gamma, "dataset.gamma2": gamma},
            )
            for gamma in (0.0, 0.5, 1.0)
            for label, method in (("FedAvg", FEDAVG), ("FedMAX", {}))
        ),
        "curves",
        "kl_activations",
        ("kl_mean_client", "kl_client_mean"),
        "mean of the clients' KL divergences",
        options={"log": True, "apart": ("KL(mean || client)", "KL(client || mean)")},
    ),
    "fedmax-7": Figure(
        "t-SNE of activations: letters are clients, A the first",
        FEDMAX,
        "figures 7 to 9",
        "fedmax-cifar10-tsne",
        (FigureRun("FedAvg", FEDAVG), FigureRun("FedMAX")),
        "embedding",
        "activations",
        ("activations",),
        "",
        options={"rounds": (1, 2, 3, 4, 5, 6, 9, 12, 15)},
    ),
    "dnc-5": Figure(
        "Weight divergence by layer from a pre-pass, colour skew",
        reference="figure 5",
        preset="dnc-colour",
        **DIVERGENCE,
    ),
    "dnc-6": Figure(
        "Accuracy by the layer after which the network is divided",
        DNC,
        "figure 6",
        "dnc-colour",
        tuple(FigureRun(f"after layer {split}", {"method.split": split}) for split in range(1, 9)),
        "curves",
        "metrics",
        ("test_accuracy",),
        "test accuracy",
        note="The paper draws the accuracy on training samples.",
    ),
    "dnc-7": Figure(
        "Weight divergence by layer from a pre-pass, class imbalance",
        reference="figure 7",
        preset="dnc-imbalance",
        **DIVERGENCE,
    ),
    "flexchill-1": Figure(
        "Gradient norms at the first layer, of samples classified rightly and wrongly",
        FLEXCHILL,
        "figure 1",
        "flexchill-cifar10",
        _temperatures(),
        "distribution",
        "temperature",
        ("gradient_norm",),
        "gradient norm",
        {"rounds": 10, "evaluation.every": 10, "evaluation.clients": False},
        {"log": True, "split": ("correct", "classified rightly", "classified wrongly")},
        "The model of the last round, on 20 samples of each client of the round; the paper takes"
        " 50,000 samples and does not say at which model.",
    ),
    "flexchill-2": Figure(
        "Change of the distance to the decision boundary by a step on a misclassified sample",
        FLEXCHILL,
        "figure 2",
        "flexchill-cifar10",
        _temperatures(),
        "distribution",
        "temperature",
        ("distance_after", "distance_before"),
        "distance after the step - before it",
        {"rounds": 10, "evaluation.every": 10, "evaluation.clients": False},
        {"only": ("correct", False)},
        "The model of the last round; the paper takes an initial network.",
    ),
    "flexchill-4": Figure(
        "Accuracy at the clients: median and deciles 1 to 9",
        FLEXCHILL,
        "figure 4b",
        "flexchill-cifar10",
        _temperatures(),
        "deciles",
        "metrics",
        tuple(f"client_accuracy_d{tenth}" for tenth in range(1, 10)),
        "accuracy of a client",
        note="The paper draws the mean.",
    ),
    "flexchill-5": Figure(
        "Linear CKA by layer of the global model and an IID reference",
        FLEXCHILL,
        "figure 5, table 8",
        "flexchill-cifar10-cka",
        (REFERENCE, *_temperatures(reference="reference")),
        "similarity_to_reference",
        "cka",
        ("cka",),
        "CKA with the reference",
        {"evaluation.every": 10},
    ),
    "flexchill-6": Figure(
        "Linear CKA of the clients' models at the layer before the last",
        FLEXCHILL,
        "figures 6, 16 to 19",
        "flexchill-cifar10-cka",
        (REFERENCE, *_temperatures((1.0, 0.05), reference="reference")),
        "similarity",
        "cka",
        ("cka",),
        "CKA",
        {"evaluation.every": 1},
        {"rounds": (1, 5, 50, 100), "layer": -2},
        "All layers are in the tables of the runs.",
    ),
    "flexchill-7": Figure(
        "Change of the clients' accuracy by the aggregation",
        FLEXCHILL,
        "figure 7",
        "flexchill-cifar10",
        _temperatures(),
        "curves",
        "aggregation_drop",
        ("accuracy_after", "accuracy_before"),
        "accuracy after - before",
        options={"split": ("participant", "clients of the round", "other clients")},
    ),
    "flexchill-8": Figure(
        "Samples of each client and class",
        FLEXCHILL,
        "figure 8",
        "flexchill-cifar10",
        (FigureRun("CIFAR-10"),),
        **HEAT_MAP,
    ),
    "flexchill-15": Figure(
        "Samples of each client and class where CKA is measured",
        FLEXCHILL,
        "figure 15",
        "flexchill-cifar10-cka",
        (FigureRun("CIFAR-10"),),
        **HEAT_MAP,
    ),
    "mifl-3": Figure(
        "Samples of each client and class",
        MIFL,
        "figure 3",
        "mifl-mnist-2nn-iid",
        (FigureRun("IID"), FigureRun("non-IID", preset="mifl-mnist-2nn-noniid")),
        **HEAT_MAP,
    ),
    "mifl-6": Figure(
        "Mutual information of labels and predicted classes",
        MIFL,
        "figures 6a and 6b",
        "mifl-mnist-2nn-iid",
        MIFL_RUNS,
        "curves",
        "label_information",
        ("test", "train"),
        "mutual information [nats]",
        {"local.epochs": 1, "local.batch_size": "full", "target_accuracy": None},
        {"apart": ("test samples", "training samples")},
        "Of the paper's values of C, only 0.1 is drawn.",
    ),
    "mifl-7": Figure(
        "Mutual information of each client's trained model and the one it received",
        MIFL,
        "figure 7",
        "mifl-mnist-cnn-iid",
        (
            FigureRun("IID, B=600", {"local.batch_size": 600}),
            FigureRun("non-IID, B=10", preset="mifl-mnist-cnn-noniid"),
        ),
        "scatter",
        "client_information",
        ("information",),
        "mutual information [nats]",
        {"target_accuracy": None, "rounds": 100},
    ),
    "fedmmd-4a": _fedmmd("4a", "fedmmd-cifar10-binary", 0.1, 0.01),
    "fedmmd-4b": _fedmmd("4b", "fedmmd-cifar10-iid", 0.1, 0.01),
    "fedmmd-4c": _fedmmd("4c", "fedmmd-mnist-binary", 0.001),
    "fedmmd-4d": _fedmmd("4d", "fedmmd-mnist-noniid", 0.001),
    "fedfusion-6": Figure(
        "Accuracy of clients that join, by their local epochs",
        FEDFUSION,
        "figure 6",
        "fedfusion-mnist-permuted",
        (
            *(
                FigureRun(operator.capitalize(), {"method.operator": operator})
                for operator in ("conv", "multi", "single")
            ),
            FigureRun("None", FEDAVG),
        ),
        "epochs",
        "new_client",
        ("accuracy",),
        "accuracy of new clients",
        {
            "clients": 20,
            "fraction": 0.1,
            "rounds": 10,
            "target_accuracy": None,
            "evaluation.clients": True,
            "evaluation.every": 10,
        },
        note="Chosen: two of 20 clients train in each of 10 rounds; three that never took part then"
        " join. Their epochs double from 1 to at most 128; beyond 16, only while the last doubling"
        " raised their mean accuracy by 0.01 or more. The paper draws the epochs to convergence, 65"
        " (conv) to 92 (FedAvg), and does not say when a client has converged.",
    ),
}
