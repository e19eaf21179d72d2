"""pfl-research (`pfl`): federated averaging in its simulated backend, under torchrun.

As its guide to fast simulations says: one process a core, launched by torchrun, and data that fits
in memory in its own `Dataset`, as tensors. Clients are weighted by their samples. With SCAFFOLD,
control variates are on the disk, since pfl's storage in memory serves one process alone.
"""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import DiskUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import Tensor, nn

from tests.benchmarks.peers.turns import Turns
from tests.benchmarks.peers.work import MU, ROUNDS, Case, open_data


class TakingTurns(TrainingProcessCallback):
    """Holds all processes up between rounds; the first of them knows when to go on."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.first = turns, pytorch_ops.distributed.global_rank == 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.ended()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        return self.ended(), Metrics()

    def ended(self) -> bool:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wanted = torch.tensor([float(self.first and self.turns.wait())])
        return not pytorch_ops.distributed.all_reduce([wanted])[0].item()


def loss(model: nn.Module, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
    model.train(not eval)
    return F.cross_entropy(model(x), y)


@torch.no_grad()
def metrics(model: nn.Module, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
    return {"loss": Weighted(float(loss(model, x, y, eval)) * len(y), len(y))}


def algorithm_of(case: Case, folder: Path) -> tuple[Any, NNAlgorithmParams]:
    """Return pfl's algorithm of a case, and its parameters."""
    common: dict[str, Any] = {
        "central_num_iterations": ROUNDS,
        "evaluation_frequency": ROUNDS,
        "train_cohort_size": case.cohort,
        "val_cohort_size": 0,
    }
    if case.method == "fedprox":
        return FedProx(), FedProxParams(**common, mu=MU)
    if case.method == "scaffold":
        # It reads its files as torch did before 2.6.
        torch.serialization.add_safe_globals([MappedVectorStatistics])
        states = DiskUserStateStorage(str(folder / "states"))
        return SCAFFOLD(), SCAFFOLDParams(
            **common,
            population=case.clients,
            use_gradient_as_control_variate=False,
            user_state_storage=states,
        )
    return FederatedAveraging(), NNAlgorithmParams(**common)


def run(case: Case, folder: Path, turns: Turns, precision: str = "fp32") -> None:
    """Train rounds in fp32 or bf16; in every process of torchrun."""
    torch.manual_seed(0)  # the processes must draw the same weights and cohorts
    np.random.seed(0)
    x, y = (data.to(pytorch_ops.get_default_device()) for data in open_data(folder))
    module: Any = case.build()
    module.loss, module.metrics = MethodType(loss, module), MethodType(metrics, module)
    users = {client: [x[client], y[client]] for client in range(case.clients)}
    data = FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))
    algorithm, parameters = algorithm_of(case, folder)
    algorithm.run(
        parameters,
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(
            module,
            torch.optim.SGD,
            torch.optim.SGD(module.parameters(), lr=1.0),
            amp_dtype=torch.bfloat16 if precision == "bf16" else None,
        ),
        NNTrainHyperParams(
            local_num_epochs=case.epochs,
            local_learning_rate=case.lr,
            local_batch_size=case.batch,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[TakingTurns(turns)],
    )
