"""Presets of FedFusion: one for each plot of its figure 5, which are the columns of its table 1.

The tables vary the method (FedAvg) and `method.operator` from these. The authors' code has B=64 and
E=5, and trains two clients of five digits, or five random ones of CIFAR-10 in a round. What is
inferred from it, and what is not followed, is in the presets' notes. On CIFAR-10 its clients are
trained by processes that receive a copy of the optimizer and return none, so that their momentum
is lost with every round, unlike that of MNIST's clients, which one process trains.
"""

from __future__ import annotations

from raysim.workloads.papers.fedmmd.presets import CITATION
from raysim.workloads.papers.preset import Paper, Preset, origins

FEDFUSION = Paper("FedFusion", CITATION, "the authors' code, github.com/thu-media/FedFusion")

AS_THE_CODE = (
    "K, C, B and E are not printed. As in the authors' code, the fusion conv has a bias and starts"
    " from torch's random weights, all other layers from Xavier's; model_best.safetensors is the"
    " global model of the round whose clients' trained models were best on their own test samples"
    " (trained_accuracy_mean). The paper does not say of which models its accuracies are; the"
    " tables take those of the global model on the whole test set."
)
MNIST_AS_IT_IS = (
    f"{AS_THE_CODE} The momentum persists on a client, as in the code. Deviations from it: MNIST is"
    " not augmented, the code crops it at random sizes and aspect ratios and mirrors it; the layers"
    " are those that the paper prints, the code's second convolution is 3x3, and its pooling"
    " overlaps."
)
SOME_CLIENTS = (
    " In the code, clients that sit out a round keep the model and the learning rate of their last"
    " one; here all have those of the round."
)
TWO_PARTITIONS = (
    "Figures 5a and 5b are both of artificial non-IID clients, and the paper does not say in what"
    " they differ; here 5a has two clients of 5 digits and 5b the shards of section 4.2."
)

MNIST_BINARY = Preset(
    "MNIST, two clients of 5 digits each, operator multi",
    {
        "dataset": {"name": "mnist", "normalised": True},
        "partition": {"name": "split_classes"},
        "model": {"name": "mnist-cnn", "initialisation": "xavier_uniform"},
        "method": {"name": "fedfusion", "operator": "multi", "ema": 0.9, "conv_start": "torch"},
        "clients": 2,
        "rounds": 500,
        "fraction": 1.0,
        "patience_metric": "trained_accuracy_mean",
        "evaluation": {"clients": True, "trained": True},
        "local": {
            "epochs": 5,
            "batch_size": 64,
            "lr": 0.003,
            "lr_decay": 0.985,
            "lr_min": 1e-4,
            "momentum": 0.9,
            "keep": True,
            "weight_decay": 5e-4,
        },
    },
    origins(
        printed="dataset.name model.name method.name method.operator weighting local.lr"
        " local.lr_decay",
        inferred="dataset.normalised partition model.dropout model.initialisation method.ema"
        " method.conv_start clients fraction rounds local.epochs local.batch_size local.lr_min"
        " local.momentum local.keep local.weight_decay patience_metric evaluation.clients"
        " evaluation.trained",
    ),
    FEDFUSION,
    "table 1a, figure 5a",
    {"final_accuracy": 0.9051},
    f"{TWO_PARTITIONS} {MNIST_AS_IT_IS}",
)
MNIST_NONIID = MNIST_BINARY.replace(
    "MNIST in 200 shards of 300, 2 a client, operator multi",
    "table 1b, figure 5b",
    origins(chosen="partition clients fraction"),
    {"final_accuracy": 0.9278},
    f"{MNIST_BINARY.note}{SOME_CLIENTS}",
    partition={"name": "shards", "size": 300, "per_client": 2},
    clients=100,
    fraction=0.1,
)
MNIST_PERMUTED = MNIST_NONIID.replace(
    "Permuted MNIST, two clients, operator conv: rounds to 95%",
    "tables 1c and 2, figures 5c and 6",
    origins(printed="partition.name target_accuracy", inferred="clients fraction"),
    {"rounds_to_target": 92},
    "The number of clients is that of the authors' code: with 100 permutations, centralised"
    " training of the 2NN reaches 76%. The code tests the global model on a permutation of its own,"
    " on which no client trains; of its figures, the local accuracy, trained_accuracy_mean, is the"
    f" one that a target of 95% can be of. {MNIST_AS_IT_IS}",
    partition={"name": "permuted"},
    clients=2,
    fraction=1.0,
    method={"operator": "conv"},
    target_accuracy=0.95,
    local={"lr": 0.002, "lr_decay": 0.99},
)
CIFAR10_IID = MNIST_BINARY.replace(
    "CIFAR-10, IID, operator multi",
    "table 1d, figure 5d",
    origins(
        printed="dataset.name partition",
        inferred="dataset.normalised local.lr local.lr_decay local.keep",
        chosen="dataset.augmented clients fraction",
    ),
    {"final_accuracy": 0.8295},
    "Five clients train in a round, as in the authors' code; the ten from which they are drawn are"
    f" chosen. {AS_THE_CODE} The momentum is reset every round, as in the code, where processes"
    " that train the clients do not hand it back. Deviations from it: CIFAR-10 is padded, cropped"
    f" and mirrored, the code crops it at random sizes and aspect ratios.{SOME_CLIENTS}",
    dataset={"name": "cifar10", "augmented": True},
    partition={"name": "iid"},
    model={"name": "cifar-cnn-2"},
    clients=10,
    fraction=0.5,
    local={"lr": 0.005, "lr_decay": 0.99, "keep": False},
)

PRESETS = {
    "fedfusion-mnist-binary": MNIST_BINARY,
    "fedfusion-mnist-noniid": MNIST_NONIID,
    "fedfusion-mnist-permuted": MNIST_PERMUTED,
    "fedfusion-cifar10-iid": CIFAR10_IID,
}
