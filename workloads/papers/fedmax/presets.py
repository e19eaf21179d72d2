"""Presets of FedMAX: its tables 1 and 2 and its figures.

Settings inferred are those of the authors' public code: of `digit_object_recognition` for CIFAR and
FEMNIST*, of `medical_data` for APTOS and Chest X-ray, of its earlier `main_synthetic.py` for the
synthetic data. The tables vary the method (FedAvg; FedProx with mu=1, in the authors' code with
reduction="mean") and the figures beta, gamma1 and gamma2 from these. FEMNIST*'s IID column equals
the non-IID one in table 1, figure by figure: the authors' `main.py` takes the non-IID split for
both, so that the IID presets have no published value.
"""

from __future__ import annotations

from raysim.workloads.papers.preset import Paper, Preset, origins

FEDMAX = Paper(
    "FedMAX",
    "Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and"
    " Communication-Efficient Federated Learning, ECML PKDD 2020",
    "the authors' code, github.com/weichennone/FedMAX",
)

LONG, SHORT = "table 1 (3000 rounds), figure 4", "table 1 (600 rounds), figure 5"
FEWER_ROUNDS = {"epochs": 5, "lr_decay": 0.996}
"""Local settings of the schedule of 600 rounds."""

CIFAR10_NONIID = Preset(
    "CIFAR-10, 2 of 10 classes a client, 3000 rounds of 1 epoch",
    {
        "dataset": {"name": "cifar10", "augmented": True},
        "partition": {"name": "shards", "per_client": 2},
        "model": {"name": "cifar-cnn-5"},
        "method": {"name": "fedmax", "beta": 1500.0},
        "clients": 100,
        "rounds": 3000,
        "fraction": 0.1,
        "weighting": "uniform",
        "local": {
            "epochs": 1,
            "batch_size": 100,
            "lr": 0.1,
            "lr_decay": 0.9992,
            "momentum": 0.1,
            "nesterov": True,
            "weight_decay": 5e-4,
        },
    },
    origins(
        printed="dataset.name partition.per_client model.name method.name method.beta clients"
        " rounds fraction local.epochs local.batch_size local.lr local.lr_decay",
        inferred="partition.name dataset.normalised dataset.augmented method.direction weighting"
        " local.momentum local.nesterov local.weight_decay",
    ),
    FEDMAX,
    "table 1 (3000 rounds), figures 3a and 4",
    {"final_accuracy": 0.7310},
    "The paper prints the weights n_k/n of the average; they are equal here. It prints 2 of 10"
    " classes a client; its code draws two shards as `partition.name=shards` does, so that a client"
    " may hold two of one class.",
)
CIFAR10_IID = CIFAR10_NONIID.replace(
    "CIFAR-10, IID, 3000 rounds of 1 epoch",
    LONG,
    origins(printed="partition"),
    {"final_accuracy": 0.8366},
    partition={"name": "iid"},
)
CIFAR100_NONIID = CIFAR10_NONIID.replace(
    "CIFAR-100, 20 of 100 classes a client, 3000 rounds of 1 epoch",
    LONG,
    published={"final_accuracy": 0.4715},
    dataset={"name": "cifar100", "augmented": True},
    partition={"name": "shards", "per_client": 20},
)
CIFAR100_IID = CIFAR100_NONIID.replace(
    "CIFAR-100, IID, 3000 rounds of 1 epoch",
    origins=origins(printed="partition"),
    published={"final_accuracy": 0.5313},
    partition={"name": "iid"},
)
FEMNIST_NONIID = CIFAR10_NONIID.replace(
    "FEMNIST* (letters), 20 of 26 classes a client, 3000 rounds of 1 epoch",
    LONG,
    origins(inferred="dataset model.last_padding", printed="partition"),
    {"final_accuracy": 0.9405},
    "Printed: FEMNIST*, 26 classes. The code makes it of EMNIST's letters, padded to 32x32.",
    dataset={"name": "emnist", "split": "letters", "padded": True, "normalised": True},
    partition={"name": "classes", "per_client": 20},
    model={"name": "cifar-cnn-5", "last_padding": 0},
)
FEMNIST_IID = FEMNIST_NONIID.replace(
    "FEMNIST* (letters), IID, 3000 rounds of 1 epoch",
    note="No target: table 1 prints the values of the non-IID column here too, because the code"
    f" runs the non-IID split for both. {FEMNIST_NONIID.note}",
    partition={"name": "iid"},
)


def _fewer_rounds(preset: Preset, published: float | None = None) -> Preset:
    """Return the same with 600 rounds of 5 epochs."""
    return preset.replace(
        preset.about.replace("3000 rounds of 1 epoch", "600 rounds of 5 epochs"),
        SHORT,
        published={"final_accuracy": published} if published else None,
        note=preset.note,
        rounds=600,
        local=FEWER_ROUNDS,
    )


CIFAR10_L2 = CIFAR10_NONIID.replace(
    "CIFAR-10, 2 of 10 classes a client, L2 norm of the activations",
    "figure 3b",
    origins(printed="method.name method.beta", inferred="method.per_sample"),
    note="beta goes from 1e-4 to 1e-1 there; also with 600 rounds of 5 epochs.",
    method={"name": "activation_l2", "beta": 1e-3},
)
CIFAR10_TSNE = CIFAR10_NONIID.replace(
    "CIFAR-10, 10 clients of 2 random classes, all in each round: activations of 15 rounds",
    "figures 7 to 9",
    origins(chosen="local.epochs local.lr_decay"),
    note="What the figures call epochs is taken for rounds of one local epoch.",
    clients=10,
    fraction=1.0,
    rounds=15,
)
SYNTHETIC = CIFAR10_NONIID.replace(
    "synthetic(1, 1): divergence of mean activations over 200 rounds",
    "figure 2",
    origins(
        printed="dataset.name dataset.gamma1 dataset.gamma2 dataset.users partition model.name",
        inferred="dataset.samples dataset.test_samples method.beta local.batch_size local.lr"
        " local.lr_decay",
    ),
    note="Also with gamma1 and gamma2 of 0 and of 0.5. The code's last runs have 10 clients, all of"
    " them in each round; here it is the paper's 100 and a tenth of them.",
    dataset={
        "name": "synthetic",
        "gamma1": 1.0,
        "gamma2": 1.0,
        "users": 100,
        "samples": 500,
        "test_samples": 100,
    },
    partition={"name": "by_key", "key": "user"},
    model={"name": "synthetic-mlp"},
    method={"name": "fedmax", "beta": 1000.0},
    rounds=200,
    local={"lr_decay": 0.992, "weight_decay": 0.0},
)

APTOS_NONIID = CIFAR10_NONIID.replace(
    "APTOS, random proportions of 5 classes a client, ResNet-50 from ImageNet's weights",
    "table 2, figure 6",
    origins(
        printed="dataset.name dataset.test_share partition.name model.name",
        inferred="dataset.image_size dataset.normalised local.momentum local.nesterov"
        " local.weight_decay",
        chosen="partition.alpha model.pretrained",
    ),
    {"final_macro_f1": 0.2706},
    "Give ImageNet's weights as model.pretrained=PATH; without them it starts from random"
    " ones. The authors' code fits grades by regression, freezes the scales of BatchNorm, rotates,"
    " shears and flips images and adds those of another competition; this does not.",
    dataset={"name": "aptos", "image_size": 256, "test_share": 0.15},
    partition={"name": "proportions", "alpha": 1.0},
    model={"name": "resnet50"},
    method={"name": "fedmax", "beta": 10_000.0},
    rounds=300,
    local={
        "epochs": 1,
        "batch_size": 32,
        "lr": 0.001,
        "lr_decay": 0.992,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 1e-4,
    },
)
APTOS_IID = APTOS_NONIID.replace(
    "APTOS, IID, ResNet-50 from ImageNet's weights",
    "table 2, figure 6",
    published={"final_macro_f1": 0.3451},
    note=APTOS_NONIID.note,
    partition={"name": "iid"},
)
XRAY_NONIID = APTOS_NONIID.replace(
    "Chest X-ray, random proportions of 2 classes a client, ResNet-50 from ImageNet's weights",
    "table 2, figure 6",
    published={"final_macro_f1": 0.7183},
    note="Give ImageNet's weights as model.pretrained=PATH; without them it starts from random"
    " ones. The published test set takes the place of a random 15%.",
    dataset={"name": "chest-xray", "image_size": 256},
    method={"name": "fedmax", "beta": 1000.0},
)
XRAY_IID = XRAY_NONIID.replace(
    "Chest X-ray, IID, ResNet-50 from ImageNet's weights",
    "table 2, figure 6",
    published={"final_macro_f1": 0.8147},
    note=XRAY_NONIID.note,
    partition={"name": "iid"},
)

PRESETS = {
    "fedmax-cifar10-noniid": CIFAR10_NONIID,
    "fedmax-cifar10-iid": CIFAR10_IID,
    "fedmax-cifar100-noniid": CIFAR100_NONIID,
    "fedmax-cifar100-iid": CIFAR100_IID,
    "fedmax-femnist-noniid": FEMNIST_NONIID,
    "fedmax-femnist-iid": FEMNIST_IID,
    "fedmax-cifar10-noniid-600": _fewer_rounds(CIFAR10_NONIID, 0.6564),
    "fedmax-cifar10-iid-600": _fewer_rounds(CIFAR10_IID, 0.8239),
    "fedmax-cifar100-noniid-600": _fewer_rounds(CIFAR100_NONIID, 0.4315),
    "fedmax-cifar100-iid-600": _fewer_rounds(CIFAR100_IID, 0.4738),
    "fedmax-femnist-noniid-600": _fewer_rounds(FEMNIST_NONIID, 0.9378),
    "fedmax-femnist-iid-600": _fewer_rounds(FEMNIST_IID),
    "fedmax-cifar10-noniid-l2": CIFAR10_L2,
    "fedmax-cifar10-tsne": CIFAR10_TSNE,
    "fedmax-synthetic": SYNTHETIC,
    "fedmax-aptos-noniid": APTOS_NONIID,
    "fedmax-aptos-iid": APTOS_IID,
    "fedmax-xray-noniid": XRAY_NONIID,
    "fedmax-xray-iid": XRAY_IID,
}
