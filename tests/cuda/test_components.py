"""Components and evaluations on the device: the CPU's models and figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.analysis import ANALYSES
from raysim.api.aggregation import AGGREGATIONS
from raysim.api.attack import ATTACKS
from raysim.api.channel import STAGES
from raysim.api.optimizer import OPTIMIZERS
from raysim.api.server import SERVER_RULES
from raysim.api.temperature import TEMPERATURES
from raysim.testing.tasks import SmallNet
from tests.cuda.device import CudaDevice
from tests.cuda.runs import DISTANCE, FEW, Runs, distance
from tests.tasks import make_settings, make_task

MORE: dict[str, dict[str, Any]] = {
    "attack=backdoor": {"attack.target": 0, "attack.size": 1},
    "attack=replacement": {"attack.size": 1},
    "aggregation=fltrust": {"aggregation.root": 20},
    **{f"aggregation={name}": {"aggregation.byzantine": 0} for name in ("krum", "multi_krum")},
    "aggregation=bulyan": {"aggregation.byzantine": 0},
    "channel=gaussian": {"aggregation.weighting": "fixed"},
}
"""Further settings that a component needs."""
NOT_HERE = {
    "analysis=decision_regions": "needs inputs of two numbers",
    "analysis=answers": "needs a dataset of text",
}
"""Components that this task does not have, and why."""
EVALUATIONS: dict[str, dict[str, Any]] = {
    "one by one": {"evaluation.clients": True},
    "training set": {"evaluation.train_set": True},
    "holdout": {"evaluation.holdout": 0.3},
    "own tests, tuned": {"evaluation.local_test": 0.3, "evaluation.finetune_epochs": 1},
    "new clients": {"evaluation.local_test": 0.3, "evaluation.new_clients": 0.3},
}


def settings_of_components() -> dict[str, dict[str, Any]]:
    """Return settings with each component, by its name."""
    kinds = {
        **{"local.optimizer": OPTIMIZERS, "channel": STAGES, "analysis": ANALYSES},
        **{"attack.name": ATTACKS, "aggregation.name": AGGREGATIONS},
        **{"server.name": SERVER_RULES, "temperature.name": TEMPERATURES},
    }
    found = {}
    for key, registry in kinds.items():
        for name in registry:
            case = f"{key.removesuffix('.name')}={name}"
            half = {"attack.fraction": 0.5} if registry is ATTACKS and name != "none" else {}
            value = {name: {}} if registry is STAGES else name
            ones = {"evaluation.clients": True} if registry is ANALYSES else {}
            found[case] = {key: value, **half, **ones, **MORE.get(case, {})}
    return {case: own for case, own in found.items() if case not in NOT_HERE}


CASES = settings_of_components() | EVALUATIONS


@pytest.mark.parametrize("case", CASES)
def test_a_component_is_the_cpus(tmp_path, monkeypatch, case):
    runs = Runs(tmp_path, monkeypatch, "fedavg", "mlp", **CASES[case])
    cpu, gpu = runs.on_cpu(), runs.on_gpu("alone")
    assert distance(cpu, gpu.result) < DISTANCE and not gpu.notes
    for name in cpu.metrics.column_names:
        expected = cpu.metrics[name].to_pylist()
        if not name.endswith("seconds") and isinstance(expected[-1], float):
            assert gpu.result.metrics[name].to_pylist() == pytest.approx(expected, rel=1e-3), name


OF_STEPS: dict[str, dict[str, Any]] = {
    "kept": {"local.keep": True, "local.optimizer": "adam", "rounds": 3, "local.lr": 0.01},
    "clipped": {"local.clip_norm": 0.1, "local.momentum": 0.9, "local.nesterov": True},
    "decayed": {"local.optimizer": "adamw", "local.weight_decay": 0.1, "local.lr": 0.01},
    "averaged": {"local.tail_average": 0.5, "local.momentum": 0.5},
    "bf16": {"engine.precision": "bf16"},
    "steps": {"local.steps": 7, "local.epochs": 1},
}


@pytest.mark.parametrize(
    ("method", "family"),
    [("fedavg", "dropping"), ("scaffold", "cnn"), ("fedprox", "residual"), ("apfl", "mlp")],
)
def test_steps_that_share_a_launch_are_steps_one_by_one(tmp_path, monkeypatch, method, family):
    own = {"local.batch_size": 3, "rounds": 6, "local.momentum": 0.5 * (method != "scaffold")}
    runs = Runs(tmp_path, monkeypatch, method, family, (70, 61, 9), **own)
    alone, recorded = runs.on_gpu("alone"), runs.on_gpu("recorded")
    assert distance(alone.result, recorded.result) == 0 and not recorded.notes
    losses = [each.result.metrics["train_loss"].to_pylist() for each in (alone, recorded)]
    assert losses[0] == losses[1]
    steps = 2 * 6 * (24 + 21 + 3)  # of epochs, rounds and clients; a companion's are apart
    replays = recorded.gpu.counts["replays"]
    assert replays < (steps / 2 if method != "apfl" else steps) and replays > steps / 10


@pytest.mark.parametrize("case", OF_STEPS)
def test_settings_of_steps_are_in_their_graphs(tmp_path, monkeypatch, case):
    runs = Runs(tmp_path, monkeypatch, "fedavg", "mlp", FEW, **OF_STEPS[case])
    alone, recorded, stack, graphs = map(runs.on_gpu, ("alone", "recorded", "stack", "graphs"))
    assert recorded.gpu.counts["replays"] > 0 < graphs.gpu.counts["replays"]
    assert distance(alone.result, recorded.result) == distance(stack.result, graphs.result) == 0
    assert distance(alone.result, stack.result) < (1e-3 if case == "bf16" else DISTANCE)
    assert case == "bf16" or distance(runs.on_cpu(), alone.result) < DISTANCE


class Writing(SmallNet):
    """Writes to a frozen number where it is evaluated after training on a GPU."""

    trained = False

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.trained |= self.head.training
        if x.is_cuda and self.trained and not self.head.training:
            self.scale.add_(1)
        return super().forward(x) * self.scale


def test_a_write_to_the_base_in_the_last_evaluation_is_refused(tmp_path):
    options = {"rounds": 1, "engine.gpus_per_actor": 1, "fraction": 1.0}
    with (
        CudaDevice(),
        pytest.raises(raysim.SettingsError, match="frozen tensor scale was changed in place"),
    ):
        raysim.run(make_settings(tmp_path / "run", **options), make_task(FEW, Writing))
