"""The figures, by name: the paper's short name and the figure's number.

What a paper's figure varies is in the runs; deviations from it are in the notes.
"""

from __future__ import annotations

from typing import Any

from raysim.workloads.figures.curves import CURVES
from raysim.workloads.figures.figure import HEAT_MAP, Figure, FigureRun
from raysim.workloads.figures.flexchill import FLEXCHILL_FIGURES
from raysim.workloads.papers.dnc.presets import DNC
from raysim.workloads.papers.fedfusion.presets import FEDFUSION
from raysim.workloads.papers.fedmax.presets import FEDMAX
from raysim.workloads.papers.fedmmd.presets import FEDMMD
from raysim.workloads.papers.mifl.presets import MIFL

FEDAVG = {"method.name": "fedavg"}


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
    "dnc-4": Figure(
        "Accuracy by the epochs of fine-tuning",
        DNC,
        "figure 4",
        "dnc-colour",
        tuple(
            FigureRun(f"Ep{share:g}", {"method.finetune_epochs": round(20 * share)})
            for share in (0.1, 0.2, 0.5, 1.0)
        ),
        "curves",
        "metrics",
        ("test_accuracy",),
        "test accuracy",
        note="Chosen: the shares of the other group's 20 epochs, but for the printed 0.1.",
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
    **FLEXCHILL_FIGURES,
    **CURVES,
    "mifl-3": Figure(
        "Samples of each client and class",
        MIFL,
        "figure 3",
        "mifl-mnist-2nn-iid",
        (FigureRun("IID"), FigureRun("non-IID", preset="mifl-mnist-2nn-noniid")),
        **HEAT_MAP,
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
