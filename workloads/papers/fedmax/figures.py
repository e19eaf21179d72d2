"""Figures of FedMAX."""

from __future__ import annotations

from raysim.user_input.limits import OF_RUN
from raysim.workloads.papers.curves import ACCURACY, table_curves
from raysim.workloads.papers.fedmax.presets import FEDMAX, FEWER_ROUNDS
from raysim.workloads.papers.figure import FEDAVG, Figure, FigureRun

MACRO_F1 = {"test_macro_f1": "test macro F1"}

SCHEDULES = {
    "3000 rounds": {},
    "600 rounds": {"rounds": 600, **{f"local.{key}": value for key, value in FEWER_ROUNDS.items()}},
}
BETAS = {
    "maximum entropy": ("fedmax-cifar10-noniid", (1.0, 10.0, 100.0, 1e3, 1e4)),
    "L2 norm": ("fedmax-cifar10-noniid-l2", (1e-4, 1e-3, 1e-2, 1e-1)),
}
"""Per regularization, the preset and the values of beta: powers of ten between the printed ends."""

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
        {"dataset.seed": OF_RUN},
        {"log": True, "apart": ("KL(mean || client)", "KL(client || mean)")},
        "A seed draws its own data: seed=1 has another set of users than seed=0.",
    ),
    "fedmax-3": Figure(
        "Test accuracy by beta, for two regularizations of the activations",
        FEDMAX,
        "figure 3",
        "fedmax-cifar10-noniid",
        (
            *(
                FigureRun(rounds, {**schedule, "method.beta": beta}, preset, panel=panel, at=beta)
                for rounds, schedule in SCHEDULES.items()
                for panel, (preset, betas) in BETAS.items()
                for beta in betas
            ),
            *(
                FigureRun(f"FedAvg, {rounds}", {**schedule, **FEDAVG})
                for rounds, schedule in SCHEDULES.items()
            ),
        ),
        "over_setting",
        "metrics",
        ("test_accuracy",),
        "test accuracy",
        options={"setting": "beta", "last": True},
        note="The paper prints the ends of the axes, 1 to 10^4 and 10^-4 to 10^-1; that the values"
        " are powers of ten is chosen. Of the accuracies it prints none.",
    ),
    "fedmax-4": table_curves("fedmax-1", "T=3000$", "figure 4", ACCURACY),
    "fedmax-5": table_curves("fedmax-1", "T=600$", "figure 5", ACCURACY),
    "fedmax-6": table_curves("fedmax-2", "", "figure 6", MACRO_F1),
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
}
