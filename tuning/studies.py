"""Named studies: one for each setting that the papers sweep, and two of the schedule.

Ranges of method settings are those of the papers' figures and tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from raysim.tuning.study import Study

STUDIES: Mapping[str, Study] = {
    "fedmax-beta": Study(
        "FedMAX's beta on non-IID CIFAR-10 (FedMAX, figure 3a)",
        "fedmax-cifar10-noniid",
        {"method.beta": FloatDistribution(1.0, 1e4, log=True)},
    ),
    "activation-l2-beta": Study(
        "beta of the L2 norm of activations on non-IID CIFAR-10 (FedMAX, figure 3b)",
        "fedmax-cifar10-noniid-l2",
        {"method.beta": FloatDistribution(1e-4, 1e-1, log=True)},
    ),
    "fedprox-mu": Study(
        "FedProx's mu on non-IID MNIST",
        "mnist-noniid",
        {"method.mu": FloatDistribution(1e-3, 1.0, log=True)},
        {"method.name": "fedprox"},
    ),
    "temperature": Study(
        "the temperature of local training on CIFAR-10 in shards (FLex&Chill, table 1)",
        "flexchill-cifar10",
        {"local.temperature": FloatDistribution(0.05, 4.0, log=True)},
    ),
    "fedmmd-lambda": Study(
        "FedMMD's lambda for two clients of five classes of CIFAR-10 (FedMMD, figure 4a)",
        "fedmmd-cifar10-binary",
        {"method.lam": FloatDistribution(1e-3, 1.0, log=True)},
    ),
    "fedfusion": Study(
        "FedFusion's operator and moving average on MNIST in shards (FedFusion, table 1)",
        "fedfusion-mnist-noniid",
        {
            "method.operator": CategoricalDistribution(("conv", "multi", "single")),
            "method.ema": FloatDistribution(0.0, 0.99),
        },
    ),
    "mifl-prune": Study(
        "the fraction of models that MIFL drops at each end, on MNIST in shards",
        "mifl-mnist-2nn-noniid",
        {"method.prune": FloatDistribution(0.05, 0.4)},
    ),
    "dnc-split": Study(
        "Divide-and-Conquer's split layer and fine-tuning epochs (D&C, figure 6)",
        "dnc-colour",
        {
            "method.split": IntDistribution(1, 8),
            "method.finetune_epochs": IntDistribution(1, 8),
        },
    ),
    "fedavg-lr": Study(
        "FedAvg's learning rate and its decay on non-IID MNIST",
        "mnist-noniid",
        {
            "local.lr": FloatDistribution(1e-3, 0.5, log=True),
            "local.lr_decay": FloatDistribution(0.95, 1.0),
        },
    ),
    "fedavg-schedule": Study(
        "learning rate, local epochs E, batch size B and fraction C on non-IID MNIST",
        "mnist-noniid",
        {
            "local.lr": FloatDistribution(1e-3, 0.5, log=True),
            "local.epochs": IntDistribution(1, 20),
            "local.batch_size": CategoricalDistribution((10, 20, 50, 100)),
            "fraction": CategoricalDistribution((0.1, 0.2, 0.5)),
        },
    ),
}
