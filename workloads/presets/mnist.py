"""Presets on MNIST: FedAvg's rows of MIFL's table 2b, and the shapes of the engine's scale tests.

MIFL (Uddin et al., IEEE TPDS 2021, section 5.1) repeats McMahan et al., AISTATS 2017.
"""

from __future__ import annotations

from raysim.workloads.presets.preset import Paper, Preset, origins

MIFL = Paper(
    "MIFL",
    "Uddin, Xiang, Lu, Yearwood and Gao, Mutual Information Driven Federated Learning,"
    " IEEE Transactions on Parallel and Distributed Systems, 2021",
    "McMahan et al., AISTATS 2017, whose experiments it repeats",
)

MNIST_FEDAVG = Preset(
    "FA on IID MNIST, 2NN: rounds to 97% at C=0.1, E=5, B=10 (published: 47)",
    {
        "dataset": {"name": "mnist"},
        "partition": {"name": "iid"},
        "model": {"name": "2nn"},
        "method": {"name": "fedavg"},
        "clients": 100,
        "rounds": 100,
        "fraction": 0.1,
        "target_accuracy": 0.97,
        "local": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    },
    origins(
        printed="dataset.name partition model method clients fraction weighting target_accuracy"
        " local.epochs local.batch_size local.lr",
        chosen="rounds dataset.padded dataset.normalised",
    ),
    MIFL,
    "table 2b",
    {"rounds_to_target": 47},
)

MNIST_NONIID = MNIST_FEDAVG.replace(
    "FA on non-IID MNIST, 2NN: 200 shards of 300, 2 a client (published: 134)",
    published={"rounds_to_target": 134},
    partition={"name": "shards", "size": 300, "per_client": 2},
    rounds=300,
)

MNIST_1000 = Preset(
    "1000 clients of 60 samples, 100 a round",
    {**MNIST_FEDAVG.values, "clients": 1000},
    dict.fromkeys(MNIST_FEDAVG.marks, "chosen"),
)
MNIST_MILLION = MNIST_1000.replace(
    "1,000,000 clients that draw 60 samples each, 1000 a round",
    partition={"name": "resample", "samples": 60},
    clients=1_000_000,
    fraction=0.001,
    local={"epochs": 1},
)

PRESETS = {
    "mnist-fedavg": MNIST_FEDAVG,
    "mnist-noniid": MNIST_NONIID,
    "mnist-1000": MNIST_1000,
    "mnist-million": MNIST_MILLION,
}
