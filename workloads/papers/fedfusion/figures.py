"""Figures of FedFusion."""

from __future__ import annotations

from raysim.workloads.papers.curves import ACCURACY, table_curves
from raysim.workloads.papers.fedfusion.presets import FEDFUSION
from raysim.workloads.papers.figure import FEDAVG, Figure, FigureRun

FIGURES = {
    "fedfusion-5": table_curves("fedfusion-1", "", "figure 5", ACCURACY),
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
        "curves",
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
        {"x": "epochs", "last": True},
        "Chosen: two of 20 clients train in each of 10 rounds; three that never took part then"
        " join. Their epochs double from 1 to at most 128; beyond 16, only while the last doubling"
        " raised their mean accuracy by 0.01 or more. The paper draws the epochs to convergence, 65"
        " (conv) to 92 (FedAvg), and does not say when a client has converged.",
    ),
}
