"""Presets of Divide-and-Conquer: one for each of its data distributions, and its pre-pass.

Its tables vary the method (FedAvg; FedProx, whose mu=0.001 is that of FedMA's code; FedMA, whose
presets are beside them), `partition.p` (0.95, 0.75, 0.5) and, for
`dnc-imbalance`, `clients` (5, 10) from these; figure 6 varies `method.split` from `dnc-colour`.
The batch size is not printed. Settings inferred are those of the code of FedMA's authors, whose
data, models and baselines the paper takes.
"""

from __future__ import annotations

from raysim.workloads.papers.preset import Paper, Preset, origins

DNC = Paper(
    "Divide-and-Conquer",
    "Chandran, Bhat, Chakravarthy and Chandar, Weight Divergence Driven Divide-and-Conquer Approach"
    " for Optimal Federated Learning from non-IID Data, 2021",
    "the code of FedMA's authors, github.com/IBM/FedMA",
)

OTHERWISE = (
    "FedMA's code pads images by reflection before it crops them (dataset.padding_mode=reflect);"
    " this pads with black. Its VGG9 starts from PyTorch's own weights, from which SGD at the"
    " paper's learning rate does not leave the plateau of ln 10; here all layers start as He et al."
    " do, by fan-in, with zero biases."
)

COLOUR = Preset(
    "CIFAR-10, two clients of 5 classes, 95% and 5% grey: VGG9 divided after layer 5",
    {
        "dataset": {"name": "cifar10", "augmented": True},
        "partition": {"name": "color_skew", "p": 0.95},
        "model": {"name": "vgg9"},
        "method": {
            "name": "divide_and_conquer",
            "split": 5,
            "finetune_epochs": 4,
            "finetune_lr_factor": 0.5,
        },
        "clients": 2,
        "rounds": 18,
        "fraction": 1.0,
        "weighting": "uniform",
        "local": {
            "epochs": 20,
            "batch_size": 64,
            "lr": 0.001,
            "lr_decay": 0.9,
            "momentum": 0.9,
            "weight_decay": 1e-4,
        },
    },
    origins(
        printed="dataset.name partition model.name method.name method.split method.finetune_epochs"
        " method.finetune_lr_factor clients rounds weighting local.epochs local.lr local.lr_decay",
        inferred="dataset.normalised dataset.augmented model.dropout model.channel_dropout fraction"
        " local.batch_size local.momentum local.weight_decay",
    ),
    DNC,
    "table 1, figures 6 and 8",
    {"final_accuracy": 0.801},
    f"{OTHERWISE} It trains FedAvg's clients by Adam in this experiment; this trains by SGD, as the"
    " paper's algorithm 1.",
)
COLOUR_PREPASS = COLOUR.replace(
    "CIFAR-10, 95% and 5% grey: the split found by a pre-pass of 5 rounds",
    "figure 5",
    origins(
        printed="method.split method.prepass method.divergence",
        chosen="method.probe method.min_rise",
    ),
    note=COLOUR.note,
    method={"name": "divide_and_conquer", "split": "auto", "prepass": 5, "probe": 3},
)
IMBALANCE = COLOUR.replace(
    "CIFAR-10, five clients of unequal size and class shares: VGG9 divided after layer 8",
    "table 2",
    origins(printed="partition.name", inferred="partition.alpha partition.minimum"),
    {"final_accuracy": 0.871},
    "The table also has clients=10. Clients have equal weights, as algorithm 1 prints; FedMA's code"
    f" weights them by samples: weighting=examples. {OTHERWISE}",
    partition={"name": "class_imbalance", "alpha": 0.5},
    method={"split": 8},
    clients=5,
)
IMBALANCE_PREPASS = IMBALANCE.replace(
    "CIFAR-10, unequal clients: divergence by layer after a pre-pass of 5 rounds",
    "figure 7",
    origins(
        printed="method.split method.prepass method.divergence",
        chosen="method.probe method.min_rise",
    ),
    note=IMBALANCE.note,
    method=COLOUR_PREPASS.values["method"],
)
SINGLE_CLASS = IMBALANCE.replace(
    "CIFAR-10, ten clients of a class of their own",
    "section 4.3.2 (all methods below 15%)",
    origins(printed="partition clients", chosen="rounds method.split"),
    note=OTHERWISE,
    partition={"name": "split_classes"},
    clients=10,
)
SHAKESPEARE = COLOUR.replace(
    "Shakespeare, 66 roles of 10,000 characters or more: the next character, LSTM's head apart",
    "table 3",
    origins(
        printed="dataset.name partition",
        chosen="dataset.source dataset.stride local.batch_size",
        inferred="local.lr local.momentum local.weight_decay evaluation.test_samples",
    ),
    {"final_accuracy": 0.496},
    "The paper prints a learning rate of 0.001 for all its experiments, at which SGD leaves this"
    " network at the most frequent character; 0.25 is that of FedMA's code for it. That code has"
    " batches of 50, and joins the test samples of the 66 roles, as this does. In LEAF a window"
    " starts at each character; here at every tenth.",
    dataset={"name": "shakespeare"},
    partition={"name": "by_key", "key": "role", "at_least": {"characters": 10_000.0}},
    model={"name": "char-lstm"},
    method={"split": 2},
    clients=66,
    rounds=9,
    local={"batch_size": 10, "lr": 0.25},
)

FEDMA_VGG9 = {"name": "fedma", "gamma": 7.0, "average": "posterior"}
"""FedMA as in its authors' code for VGG9, whose passes over 9 layers count as rounds there."""
COLOUR_FEDMA = COLOUR.replace(
    "CIFAR-10, 95% and 5% grey: FedMA, two passes over the layers of VGG9",
    "table 1",
    origins(
        printed="method.name",
        inferred="rounds weighting method.gamma method.average",
        chosen="method.sigma method.sigma0 method.sweeps method.max_width",
    ),
    {"final_accuracy": 0.81},
    "A pass over 9 layers counts as 9 rounds in the paper; its 18 rounds are two passes. The last"
    f" layer is averaged by class shares, as in FedMA's code for VGG9. {OTHERWISE}",
    method=FEDMA_VGG9,
    rounds=2,
    weighting="examples",
)
IMBALANCE_FEDMA = IMBALANCE.replace(
    "CIFAR-10, unequal clients: FedMA, two passes over the layers of VGG9",
    "table 2",
    COLOUR_FEDMA.marks,
    {"final_accuracy": 0.875},
    COLOUR_FEDMA.note,
    method=FEDMA_VGG9,
    rounds=2,
    weighting="examples",
)
SHAKESPEARE_FEDMA = SHAKESPEARE.replace(
    "Shakespeare, 66 roles: FedMA, three passes over the layers of the LSTM",
    "table 3",
    COLOUR_FEDMA.marks,
    {"final_accuracy": 0.474},
    "A pass over 3 layers counts as 3 rounds in the paper; its 9 rounds are three passes. The last"
    " layer is averaged with equal weights, as in FedMA's code for the LSTM."
    f" {SHAKESPEARE.note}",
    method={"name": "fedma", "gamma": 1e-3},
    rounds=3,
)

PRESETS = {
    "dnc-colour": COLOUR,
    "dnc-colour-fedma": COLOUR_FEDMA,
    "dnc-imbalance-fedma": IMBALANCE_FEDMA,
    "dnc-shakespeare-fedma": SHAKESPEARE_FEDMA,
    "dnc-colour-prepass": COLOUR_PREPASS,
    "dnc-imbalance": IMBALANCE,
    "dnc-imbalance-prepass": IMBALANCE_PREPASS,
    "dnc-single-class": SINGLE_CLASS,
    "dnc-shakespeare": SHAKESPEARE,
}
