"""Presets of MIFL: one for each dataset, network and partition of its section 5.

Tables 2, 3, 5 and 6 vary C, E, B and the method from these. A row's speed is the number of rounds
to a target accuracy; the rounds at which a preset gives up are chosen here, above the paper's
numbers. How inputs are scaled, the paper does not say: images in [0, 1], CIFAR-10's and ImageNet's
normalised by channel. The network for CIFAR-10 is McMahan's, whose crops and flips go with it.
FSVRG runs with fraction=1, its momentum's gamma is chosen. SUPPLEMENTS names what is not available;
for supplement C see also `figures`, for section 4 `bound`.

The presets for getting started are FedAvg's rows of table 2b, where section 5.1 repeats McMahan et
al., AISTATS 2017.
"""

from __future__ import annotations

from raysim.workloads.papers.preset import Paper, Preset, origins

MIFL = Paper(
    "MIFL",
    "Uddin, Xiang, Lu, Yearwood and Gao, Mutual Information Driven Federated Learning,"
    " IEEE Transactions on Parallel and Distributed Systems, 2021",
    "McMahan et al., AISTATS 2017, whose experiments it repeats",
)

SUPPLEMENTS = (
    "Not available: supplement B, with the objective for the cross-entropy (method.objective is eq."
    " 6 and 7 with it), A, on FedAvg and FSVRG, and C, further plots (figures mifl-c4 to mifl-c6b)."
    " Lambda is algorithm 1's, and dropped clients neither send a model nor receive one before"
    " their next round: other readings are in the table mifl-choices."
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

MNIST_2NN_IID = MNIST_FEDAVG.replace(
    "MIFL on IID MNIST, 2NN: rounds to 97%",
    "tables 2 and 6a",
    origins(
        printed="method.name method.prune method.lam",
        chosen="method.mi_reference method.objective method.collect method.delivery",
    ),
    {"rounds_to_target": 33},
    SUPPLEMENTS,
    method={"name": "mifl"},
)
MNIST_2NN_NONIID = MNIST_NONIID.replace(
    "MIFL on MNIST in 200 shards of 300, 2 a client, 2NN: rounds to 97%",
    "tables 2 and 6a",
    MNIST_2NN_IID.marks,
    {"rounds_to_target": 90},
    SUPPLEMENTS,
    method={"name": "mifl"},
)
MNIST_CNN_IID = MNIST_2NN_IID.replace(
    "MIFL on IID MNIST, CNN: rounds to 99%",
    "tables 2b, 3, 5 and 6b",
    published={"rounds_to_target": 7},
    note=SUPPLEMENTS,
    model={"name": "mnist-cnn-128"},
    target_accuracy=0.99,
)
MNIST_CNN_NONIID = MNIST_2NN_NONIID.replace(
    "MIFL on MNIST in 200 shards of 300, 2 a client, CNN: rounds to 99%",
    "tables 2b, 3, 5 and 6b",
    published={"rounds_to_target": 157},
    note=SUPPLEMENTS,
    model={"name": "mnist-cnn-128"},
    target_accuracy=0.99,
    rounds=600,
)
CIFAR10 = MNIST_CNN_IID.replace(
    "MIFL on IID CIFAR-10, three convolutions: rounds to 80%",
    "tables 4 and 6b",
    origins(printed="dataset.name", inferred="dataset.augmented", chosen="dataset.normalised"),
    {"rounds_to_target": 207},
    f"80% with 122,570 parameters is suspect. {SUPPLEMENTS}",
    dataset={"name": "cifar10", "augmented": True},
    model={"name": "cifar-cnn-3"},
    target_accuracy=0.8,
    rounds=500,
    local={"batch_size": 50},
)
IMAGENET = CIFAR10.replace(
    "MIFL on IID ImageNet, ResNet-50: rounds to 70%",
    "table 4",
    origins(printed="dataset.name dataset.image_size", chosen="dataset.normalised"),
    {"rounds_to_target": 71},
    SUPPLEMENTS,
    dataset={"name": "imagenet"},
    partition={"name": "iid"},
    model={"name": "resnet50"},
    target_accuracy=0.7,
    rounds=150,
    local={"batch_size": 64},
)
MIMIC3 = MNIST_CNN_NONIID.replace(
    "MIFL on MIMIC-III sorted by age group and gender, 3NN: rounds to 85%",
    "tables 3, 5 and 6a",
    origins(printed="dataset"),
    {"rounds_to_target": 66},
    SUPPLEMENTS,
    dataset={"name": "mimic3"},
    partition={"name": "sorted_by", "columns": ("age_group", "gender")},
    model={"name": "3nn-mimic"},
    target_accuracy=0.85,
    rounds=200,
    local={"batch_size": 50, "lr": 0.001},
)

PRESETS = {
    "mifl-mnist-2nn-iid": MNIST_2NN_IID,
    "mifl-mnist-2nn-noniid": MNIST_2NN_NONIID,
    "mifl-mnist-cnn-iid": MNIST_CNN_IID,
    "mifl-mnist-cnn-noniid": MNIST_CNN_NONIID,
    "mifl-cifar10": CIFAR10,
    "mifl-imagenet": IMAGENET,
    "mifl-mimic3": MIMIC3,
}
