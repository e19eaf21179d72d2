"""Presets on MNIST.

Source: MIFL (Uddin et al., "Mutual Information Driven Federated Learning", IEEE TPDS 2021),
section 5.1 and tables 2 and 3, which repeat McMahan et al., AISTATS 2017.
"""

from __future__ import annotations

from raysim.config import LocalSettings, Settings
from raysim.methods.fedavg import FedAvg
from workloads.datasets.mnist import Mnist
from workloads.models.mlp import TwoNN
from workloads.partitions.iid import Iid
from workloads.partitions.resample import Resample
from workloads.partitions.shards import Shards
from workloads.presets.preset import Preset

# MIFL table 2b, 2NN, IID, B=10, C=0.1, FA: 47 rounds to 97%. Printed: K, C, E, B, lr (0.1),
# target. Chosen: at most 100 rounds.
MNIST_FEDAVG = Preset(
    "MIFL table 2b, FA on IID MNIST, 2NN: rounds to 97% at C=0.1, E=5, B=10 (published: 47)",
    Settings(
        dataset=Mnist(),
        partition=Iid(),
        model=TwoNN(),
        method=FedAvg(),
        clients=100,
        rounds=100,
        fraction=0.1,
        target_accuracy=0.97,
        local=LocalSettings(epochs=5, batch_size=10, lr=0.1),
    ),
    {"rounds_to_target": 47},
)

# The same row, non-IID: 134 rounds. Printed: 200 shards of 300, two each. Chosen: at most 300
# rounds.
MNIST_NONIID = MNIST_FEDAVG.replace(
    "MIFL table 2b, FA on non-IID MNIST, 2NN: 200 shards of 300, 2 a client (published: 134)",
    {"rounds_to_target": 134},
    partition=Shards(size=300, per_client=2),
    rounds=300,
)

# No published counterpart: the shape of the engine's own scale tests.
MNIST_1000 = MNIST_FEDAVG.replace(
    "1000 clients of 60 samples, 100 a round; no published counterpart",
    clients=1000,
)
MNIST_MILLION = MNIST_FEDAVG.replace(
    "1,000,000 clients that draw 60 samples each, 1000 a round; no published counterpart",
    partition=Resample(samples=60),
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
