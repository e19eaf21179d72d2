"""Figures of Divide-and-Conquer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.workloads.papers.curves import ACCURACY, table_curves
from raysim.workloads.papers.dnc.presets import DNC
from raysim.workloads.papers.figure import FEDAVG, Figure, FigureRun

PREPASS = FigureRun("pre-pass", {**FEDAVG, "rounds": 5}, drawn=False)
LATER = FigureRun("FedAvg", {**FEDAVG, "rounds": 8}, reference="pre-pass")
DIVERGENCE: dict[str, Any] = {
    "paper": DNC,
    "runs": (
        PREPASS,
        LATER,
        replace(LATER, label="FedAvg, norm divergence", table="norm_divergence"),
    ),
    "draw": "layers",
    "table": "weight_divergence",
    "values": ("divergence",),
    "axis": "weight divergence",
    "note": "In full, the pre-pass has 5 rounds and the run 8; its first 5 repeat the pre-pass. The"
    " paper draws the cosine distance; the second panel is |W1-W2|/|W1|, from which it starts.",
}
TRAINING = {"train_set_accuracy": "training accuracy", **ACCURACY}
EVALUATED = {"evaluation.train_set": True}
TRAINING_NOTE = (
    "The paper draws the training accuracy, without a word on the samples: taken is that of the"
    " global model on all clients' training samples, as FedMA's code logs it after every round, but"
    " without augmentation. The second panel is the accuracy on test samples."
)

FIGURES = {
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
        note="Chosen: the shares of the other group's 20 epochs, except for the printed 0.1.",
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
        tuple(TRAINING),
        "",
        EVALUATED,
        {"apart": [*TRAINING.values()]},
        TRAINING_NOTE,
    ),
    "dnc-7": Figure(
        "Weight divergence by layer from a pre-pass, class imbalance",
        reference="figure 7",
        preset="dnc-imbalance",
        **DIVERGENCE,
    ),
    "dnc-8": table_curves(
        "dnc-1",
        "95-5$",
        "figure 8",
        TRAINING,
        f"{TRAINING_NOTE} A round of FedMA is a pass over nine layers, nine rounds of the paper.",
        settings=EVALUATED,
    ),
}
