"""Presets of pfl-research's CIFAR-10 benchmark, without and with differential privacy.

1,000 clients of 50 samples, 50 a round. The epsilon of its runs with privacy is that of Poisson
cohorts of 1,000 of a million clients, of which there are none: it is labelled hypothetical. The sum
over a cohort of 50 has the noise that the sum over 1,000 would have, scaled down to it.

The section is inferred: notes in the authors' code refer to sections 4.1, C.5 and D.1 for CIFAR-10.
"""

from __future__ import annotations

from typing import Any

from raysim.workloads.papers.preset import Paper, Preset, origins

PFL = Paper(
    "pfl-research",
    "Granqvist, Song, Cahill, van Dalen, Pelikan, Chan, Feng, Krishnaswami, Jina and Chitnis,"
    " pfl-research: Simulation Framework for Accelerating Research in Private Federated Learning,"
    " NeurIPS Datasets and Benchmarks, 2024",
    "its code, benchmarks/image_classification of github.com/apple/pfl-research",
)
SAMPLED = "Its cohorts are drawn with replacement, so that a client may count twice in a round."
PRIVATE: dict[str, Any] = {
    "aggregation": {"name": "mean", "weighting": "fixed"},
    "channel": {
        "gaussian": {
            **{"clip": 0.4, "noise": 0.6328, "epsilon": 2.0, "delta": 1e-6, "accountant": "pld"},
            **{"noise_cohort": 1000, "population": 1_000_000},
        }
    },
}
OF_PRIVACY = origins(inferred="aggregation channel")
HYPOTHETICAL = (
    f"{SAMPLED} The epsilon is hypothetical: cohorts of 1,000 of a million clients, a number in its"
    " train.py. The noise is the least that keeps to it over 3,000 rounds, to four digits."
)

IID = Preset(
    "CIFAR-10, 1000 clients of 50 samples, 50 a round, without privacy",
    {
        "dataset": {
            **{"name": "cifar10", "normalised": True},
            "means": [0.49139968, 0.48215841, 0.44653091],
            "deviations": [0.24703223, 0.24348513, 0.26158784],
        },
        "partition": {"name": "iid"},
        "model": {"name": "pfl-cifar-cnn"},
        "method": {"name": "fedavg"},
        "clients": 1000,
        "rounds": 1500,
        "fraction": 0.05,
        "weighting": "uniform",
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.1},
        "evaluation": {"every": 10},
    },
    origins(
        inferred="dataset partition model method clients rounds fraction weighting local.epochs"
        " local.batch_size local.lr evaluation.every"
    ),
    PFL,
    "section 4, by the notes in its code",
    note=SAMPLED,
)
NONIID = IID.replace(
    "CIFAR-10, 1000 clients of 50 samples with classes by Dirichlet 0.1, without privacy",
    origins=origins(inferred="partition.alpha rounds", chosen="partition.name"),
    partition={"name": "proportions", "alpha": 0.1},
    rounds=3000,
    note=f"{SAMPLED} It fills one client after another from what is left of the classes; here all"
    " draw alike.",
)

PRESETS = {
    "pfl-cifar10": IID,
    "pfl-cifar10-noniid": NONIID,
    "pfl-cifar10-dp": IID.replace(
        "CIFAR-10, 1000 clients of 50 samples, 50 a round, with a hypothetical epsilon of 2",
        origins=OF_PRIVACY,
        rounds=3000,
        note=HYPOTHETICAL,
        **PRIVATE,
    ),
    "pfl-cifar10-noniid-dp": NONIID.replace(
        "CIFAR-10, classes by Dirichlet 0.1, with a hypothetical epsilon of 2",
        origins=OF_PRIVACY,
        note=HYPOTHETICAL,
        **PRIVATE,
    ),
}
