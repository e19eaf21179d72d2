"""Presets of FLex&Chill: one for each combination of dataset, clients and method.

Its tables and figures vary the temperature (4, 2, 1, 0.5, 0.25, 0.05), those of appendix D also B,
the clients a round, E and alpha, from these; each has the temperature of the best accuracy printed,
or else 0.05. Tables 1 and 2 print the mean of the accuracies at the clients, hence
`evaluation.clients`. Crops with reflection, means and deviations, dropped last batches, weight
decay and the uniform average are those of the first author's public code, which came later.

The gradient at the logits grows as 1/T: at the rate of T=0.05, a temperature T takes first steps
that are 0.05/T as long. Beside each temperature the tables and figures have a control, which is not
the paper's: the same with lr = (the preset's lr) x T / 0.05. It takes the first steps of T=0.05,
and not the later ones: logits grow, and what the rate multiplies without 1/T (weight decay, the
term of FedProx) grows with the rate. `--only T=4` takes a row without its control, `--only control`
the controls.

T is the same in all rounds, as in the paper's tables. Algorithm 1 has the server determine it at
each round, and section 5 proposes T by sample and for stragglers, without formulas:
`temperature.name` does that, on any of the presets.
"""

from __future__ import annotations

from raysim.workloads.papers.preset import Paper, Preset, origins

FLEXCHILL = Paper(
    "FLex&Chill",
    "Lee, Kim and Ko, Improving Local Training in Federated Learning via Temperature Scaling, 2024",
    "the first author's later code, github.com/leekichang/temperature-scaling",
)

LOADER = {"augmented": True, "padding_mode": "reflect"}
CIFAR10 = Preset(
    "CIFAR-10, 5 shards of 200 a client, two convolutions",
    {
        "dataset": {
            "name": "cifar10",
            **LOADER,
            "means": [0.49139968, 0.48215841, 0.44653091],
            "deviations": [0.24703223, 0.24348513, 0.26158784],
        },
        "partition": {"name": "shards", "size": 200, "per_client": 5},
        "model": {"name": "flexchill-cnn"},
        "method": {"name": "fedavg"},
        "clients": 50,
        "rounds": 300,
        "fraction": 0.2,
        "weighting": "uniform",
        "local": {
            "epochs": 10,
            "batch_size": 16,
            "drop_last": True,
            "lr": 0.001,
            "weight_decay": 1e-4,
            "temperature": 0.05,
        },
        "evaluation": {"clients": True},
    },
    origins(
        printed="dataset.name partition model method clients rounds fraction local.epochs"
        " local.batch_size local.lr local.temperature evaluation.clients",
        inferred="dataset.normalised dataset.augmented dataset.padding_mode dataset.means"
        " dataset.deviations weighting local.drop_last local.momentum local.weight_decay",
    ),
    FLEXCHILL,
    "tables 1 and 2, figures 4b and 7",
    {"final_client_accuracy_mean": 0.4471},
    "Printed: the mean accuracy at the clients, not on which samples. Here they are test samples in"
    " a client's class proportions, as the later code divides the test set. T is the same in all"
    " rounds; algorithm 1, which has the server determine it at each, is temperature.name.",
)
CIFAR100 = CIFAR10.replace(
    "CIFAR-100, 5 shards of 200 a client, ResNet-18",
    "table 1, figure 4c",
    published={"final_client_accuracy_mean": 0.3063},
    note=CIFAR10.note,
    dataset={
        "name": "cifar100",
        **LOADER,
        "means": [0.50707516, 0.48654887, 0.44091784],
        "deviations": [0.26733429, 0.25643846, 0.27615047],
    },
    model={"name": "resnet18"},
    local={"temperature": 0.25},
)
FEMNIST = CIFAR10.replace(
    "FEMNIST, 36 of the writers, four fully connected layers",
    "table 1, figure 4a",
    origins(
        printed="dataset.name",
        inferred="evaluation.clients evaluation.test_samples",
        chosen="partition.minimum partition.choose",
    ),
    {"final_client_accuracy_mean": 0.8086},
    "Ten of 36 clients a round: 0.28 of them. A writer is tested on its own test samples, as LEAF"
    " splits them; the paper follows LEAF.",
    dataset={"name": "femnist"},
    partition={"name": "by_key", "key": "writer"},
    model={"name": "flexchill-dnn"},
    clients=36,
    fraction=0.28,
)
CIFAR10_IID = CIFAR10.replace(
    "CIFAR-10, IID, two convolutions",
    "table 2",
    published={"final_client_accuracy_mean": 0.5466},
    note=CIFAR10.note,
    partition={"name": "iid"},
    local={"temperature": 1.0},
)
CIFAR10_CENTRALISED = CIFAR10_IID.replace(
    "CIFAR-10 in one place, two convolutions",
    "table 2",
    origins(chosen="local.epochs rounds clients fraction"),
    {"final_client_accuracy_mean": 0.6518},
    "Printed: centralised learning. One client with all data; 300 rounds of one epoch.",
    clients=1,
    fraction=1.0,
    local={"epochs": 1},
)
CIFAR10_CKA = CIFAR10.replace(
    "CIFAR-10, 10 clients by Dirichlet 0.5, all in each round: similarity of features by layer",
    "table 8, figures 5 and 6, appendix E",
    origins(chosen="partition.minimum"),
    {"final_accuracy": 0.7276},
    "Table 5 prints 100 rounds, section 4.4 speaks of 300. The reference is the same with"
    " partition.name=iid local.temperature=1.",
    partition={"name": "dirichlet", "alpha": 0.5},
    clients=10,
    fraction=1.0,
    rounds=100,
    local={"batch_size": 32, "lr": 0.005},
    evaluation={"clients": False},
)
CIFAR10_DIRICHLET = CIFAR10.replace(
    "CIFAR-10, 50 clients by Dirichlet 0.5, 5 a round",
    "appendix D, figures 10 to 13",
    origins(chosen="partition.minimum"),
    partition={"name": "dirichlet", "alpha": 0.5},
    fraction=0.1,
    rounds=100,
    local={"epochs": 5, "batch_size": 32},
    evaluation={"clients": False},
)
CIFAR10_FEDPROX = CIFAR10_DIRICHLET.replace(
    "CIFAR-10, 50 clients by Dirichlet 0.5, 5 a round, with FedProx",
    "appendix C, figure 9a",
    method={"name": "fedprox", "mu": 0.01},
    rounds=300,
)
CIFAR10_SCAFFOLD = CIFAR10_FEDPROX.replace(
    "CIFAR-10, 50 clients by Dirichlet 0.5, 5 a round, with SCAFFOLD",
    "appendix C, figure 9b",
    origins(chosen="method.lr_global"),
    method={"name": "scaffold"},
)
PLANE = Preset(
    "Six classes in the plane on three clients, logistic regression: decision regions",
    {
        "dataset": {"name": "plane"},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": {"name": "linear"},
        "method": {"name": "fedavg"},
        "clients": 3,
        "rounds": 5,
        "fraction": 1.0,
        "local": {"steps": 10, "batch_size": "full", "lr": 0.1, "temperature": 0.5},
    },
    origins(
        printed="clients local.steps local.temperature model.name method.name fraction",
        chosen="dataset.name partition.name partition.alpha partition.minimum rounds"
        " local.batch_size local.lr",
    ),
    FLEXCHILL,
    "figure 3, section 3.1.3",
    {},
    "Printed: logistic regression of data in two dimensions, three clients, 10 local updates, T=1"
    " and 0.5. The data, how it is split, the learning rate and the rounds are not.",
)

PRESETS = {
    "flexchill-femnist": FEMNIST,
    "flexchill-cifar10": CIFAR10,
    "flexchill-cifar100": CIFAR100,
    "flexchill-cifar10-iid": CIFAR10_IID,
    "flexchill-cifar10-centralised": CIFAR10_CENTRALISED,
    "flexchill-cifar10-cka": CIFAR10_CKA,
    "flexchill-cifar10-dirichlet": CIFAR10_DIRICHLET,
    "flexchill-cifar10-fedprox": CIFAR10_FEDPROX,
    "flexchill-cifar10-scaffold": CIFAR10_SCAFFOLD,
    "flexchill-plane": PLANE,
}
