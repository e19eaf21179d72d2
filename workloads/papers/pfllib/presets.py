"""Presets of PFLlib's leaderboard: two label-skewed splits of Fashion-MNIST and CIFAR-100.

Training and test images are one pool, which is divided among 20 clients; each cuts a quarter of its
own at random for its test, trains on the rest in batches of ten, without the last if it is smaller,
and is scored with the model that it would deploy after the broadcast and before it trains: the
share of all clients' test samples that are right, in the best round on these samples. The page
prints neither its rates nor what a grid search found for each method: those here are the defaults
of its `main.py`, and of its authors' papers where a default switches a method off.
"""

from __future__ import annotations

from raysim.workloads.papers.preset import Paper, Preset, origins

PFLLIB = Paper(
    "PFLlib",
    "Zhang, Liu, Hua, Wang, Song, Xue, Ma and Cao, PFLlib: A Beginner-Friendly and Comprehensive"
    " Personalized Federated Learning Library and Benchmark, JMLR, 2025",
    "its code, github.com/TsingZ0/PFLlib",
)
HALF = {"pooled": True, "normalised": True}
NOTE = "Scored as its code does; the page's deviations are of three trials on one division."

PATHOLOGICAL = Preset(
    "Fashion-MNIST, two classes a client",
    {
        "dataset": {"name": "fashion-mnist", **HALF, "means": [0.5], "deviations": [0.5]},
        "partition": {
            "name": "classes",
            "per_client": 2,
            "assigned": "in_order",
            "shares": "random",
        },
        "model": {"name": "mnist-cnn", "padding": 0, "dropout": 0.0},
        "method": {"name": "fedavg"},
        "clients": 20,
        "rounds": 2000,
        "fraction": 1.0,
        "local": {"epochs": 1, "batch_size": 10, "drop_last": True, "lr": 0.005},
        "evaluation": {"local_test": 0.25, "local_test_cut": "random"},
    },
    origins(
        printed="dataset.name partition.name partition.per_client method.name clients rounds"
        " fraction local.epochs local.batch_size",
        inferred="dataset.pooled dataset.normalised dataset.means dataset.deviations partition"
        " model local.drop_last local.lr local.momentum evaluation",
    ),
    PFLLIB,
    "table 1 of its page",
    note=NOTE,
)
PRACTICAL = PATHOLOGICAL.replace(
    "Fashion-MNIST, Dirichlet 0.1",
    origins=origins(printed="partition.name partition.alpha", inferred="partition.minimum"),
    partition={"name": "class_imbalance", "alpha": 0.1, "minimum": 40},
    note=NOTE,
)
CIFAR = {
    "name": "cifar100",
    **HALF,
    "means": [0.5, 0.5, 0.5],
    "deviations": [0.5, 0.5, 0.5],
}
CIFAR_PATHOLOGICAL = PATHOLOGICAL.replace(
    "CIFAR-100, ten classes a client",
    dataset=CIFAR,
    partition={"per_client": 10},
    note=NOTE,
)
CIFAR_PRACTICAL = PRACTICAL.replace("CIFAR-100, Dirichlet 0.1", dataset=CIFAR, note=NOTE)

PRESETS = {
    "pfllib-fmnist-pathological": PATHOLOGICAL,
    "pfllib-fmnist-practical": PRACTICAL,
    "pfllib-cifar100-pathological": CIFAR_PATHOLOGICAL,
    "pfllib-cifar100-practical": CIFAR_PRACTICAL,
}
