"""Models are trained in the type of their parameters, or refused in one line."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import raysim
from raysim.numbers.tensors import as_real
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import UNEQUAL, Notes, StopAfter, in_turn, make_settings, make_task, model_of

EQUAL = (24, 24, 24)


class Double(SmallNet):
    """A network in float64."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.double()


class Waves(SmallNet):
    """A network whose first layer is complex, with a running mean; or the same in pairs."""

    def __init__(self, pairs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = 0.3 * torch.randn(12, 12, dtype=torch.complex64)
        self.pairs = pairs
        self.features = nn.Identity()
        self.wave = nn.Parameter(torch.view_as_real(weight).clone() if pairs else weight)
        mean = torch.zeros(12, dtype=torch.complex64)
        self.register_buffer("mean", torch.view_as_real(mean).clone() if pairs else mean)
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.view_as_complex(self.wave) if self.pairs else self.wave
        waves = x.to(torch.complex64) @ weight
        if self.training:
            mean = waves.detach().mean(0)
            self.mean = 0.9 * self.mean + 0.1 * (torch.view_as_real(mean) if self.pairs else mean)
        return super().forward(waves.real.square() + waves.imag)


def test_float64_is_trained_in_float64(tmp_path):
    """By hand: one step on all samples of one client, on features that float32 cannot hold."""
    x, y = samples(40, 0)
    x = x.astype(np.float64) * (1 + 1e-12)
    chosen = {"rounds": 1, "local.epochs": 1, "local.batch_size": "full", "fraction": 1.0}
    settings = make_settings(tmp_path / "run", **chosen)
    result = raysim.run(settings, raysim.Task(Double, [(x, y)], (x, y)))
    network = Double()
    loss = F.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    for name, parameter in network.named_parameters():
        expected = parameter.detach() - settings.local.lr * parameter.grad
        assert result.params[name].dtype == torch.float64
        assert torch.allclose(result.params[name], expected, rtol=0, atol=1e-13)
    network.load_state_dict(result.params)
    own = F.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y))
    assert result.metrics["test_loss"].to_pylist()[-1] == pytest.approx(own.item(), rel=1e-9)


def test_features_take_the_type_of_the_model(tmp_path):
    """In float64 or float32, of a model in float32; other floating-point types too."""
    for dtype in (np.float32, np.float64, np.float16):
        task = make_task(UNEQUAL)
        clients = [(x.astype(np.float16).astype(dtype), y) for x, y in task.clients]
        test = task.test[0].astype(np.float16).astype(dtype), task.test[1]
        settings = make_settings(tmp_path / dtype.__name__, rounds=1)
        raysim.run(settings, raysim.Task(task.model, clients, test))
    assert model_of(tmp_path / "float32") == model_of(tmp_path / "float64")
    assert model_of(tmp_path / "float32") == model_of(tmp_path / "float16")


@pytest.fixture
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
def test_another_default_type_is_another_run(tmp_path):
    class Cast(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.float()

    settings = make_settings(tmp_path / "run", rounds=1)
    raysim.run(settings, make_task(EQUAL, Cast))
    torch.set_default_dtype(torch.float32)
    with pytest.raises(raysim.RunError, match=r"default dtype was float64 .here float32"):
        raysim.run(settings, make_task(EQUAL, Cast))


class Made(SmallNet):
    """A network whose forward pass makes a tensor of torch's default type."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.full((3,), 0.1)


@pytest.mark.usefixtures("float64_by_default", "resident_actors")
def test_a_default_type_of_torch_holds_for_the_run(tmp_path):
    """In the forward pass, too, on actors, and where the caller has another one meanwhile."""
    task = make_task(EQUAL, Made)
    for backend in ("inline", "ray"):
        chosen = {"engine.backend": backend, "engine.actors": 2, "rounds": 2}
        raysim.run(make_settings(tmp_path / backend, **chosen), task)
    result = raysim.run(make_settings(tmp_path / "inline", rounds=2), task)
    assert {tensor.dtype for tensor in result.params.values()} == {torch.float64}
    for _ in raysim.rounds(make_settings(tmp_path / "meanwhile", rounds=2), task):
        torch.set_default_dtype(torch.float32)
    assert model_of(tmp_path / "ray") == model_of(tmp_path / "inline")
    assert model_of(tmp_path / "meanwhile") == model_of(tmp_path / "inline")


ALL = {
    "fedavg": {"local.momentum": 0.5, "local.weight_decay": 0.01},
    "fedadam": {},
    "fedasync": {},
    "fedat": {"method.tiers": 2, "clock.name": "devices"},
    "fedbuff": {"method.lr_global": 0.5},
    "feddyn": {},
    "fedmmd": {},
    "fednova": {},
    "fedprox": {"method.mu": 0.5},
    "fsvrg": {},
    "mifl": {},
    "momentum": {},
    "scaffold": {},
    "two_stream_l2": {"method.space": "weights", "method.lam": 0.3},
    "ditto": {"evaluation.clients": True, "method.lam": 0.5},
    "divide_and_conquer": {"method.split": 1},
}
UNSTAGED = [name for name in ALL if name != "divide_and_conquer"]


@pytest.mark.parametrize(
    ("method", "stacked"),
    [("fedavg", 3), *in_turn(UNSTAGED, [0, 3])],
)
def test_complex_parameters_are_pairs_of_reals(tmp_path, method, stacked):
    overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 3, **ALL[method]}
    overrides |= {"local.epochs": 1, "checkpoint_every": 9}
    results = [
        raysim.run(
            make_settings(tmp_path / str(pairs), **overrides),
            make_task((16,) * 6, lambda pairs=pairs: Waves(pairs)),
        )
        for pairs in (False, True)
    ]
    found, expected = (result.params for result in results)
    assert found["wave"].dtype == found["mean"].dtype == torch.complex64
    for name, tensor in expected.items():
        assert torch.allclose(as_real(found[name]), tensor, atol=1e-5), name
    losses = [result.metrics["test_loss"].to_pylist() for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("model", [Double, Waves])
def test_a_run_in_another_type_can_be_resumed(tmp_path, model):
    task, overrides = make_task(EQUAL, model), {"method.name": "scaffold", "rounds": 4}
    raysim.run(make_settings(tmp_path / "whole", **overrides), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "resumed", **overrides), task, StopAfter(2))
    raysim.resume(tmp_path / "resumed", task)
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "resumed")


@pytest.mark.parametrize("model", [Double, Waves])
def test_actors_train_in_the_same_type(tmp_path, resident_actors, model):
    task = make_task(EQUAL, model)
    for backend in ("inline", "ray"):
        chosen = {"method.name": "scaffold", "engine.backend": backend, "engine.actors": 2}
        raysim.run(make_settings(tmp_path / backend, **chosen, rounds=2), task)
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "ray")


def frozen() -> nn.Module:
    return SmallNet().requires_grad_(False)


def with_buffer() -> nn.Module:
    network = SmallNet()
    network.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    return network


class Uncopied(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.scale = self.head.weight.norm()


class ComplexOutputs(SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1j


def old(norm: Any) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return nn.Sequential(nn.Flatten(), norm(nn.Linear(12, 3)))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bfloat16": (
        lambda: SmallNet().bfloat16(),
        {},
        "the model's parameter hidden.0.weight is bfloat16: must be float32, float64, complex64;"
        " float32 with engine.precision=bf16",
    ),
    "float16": (lambda: SmallNet().half(), {}, "hidden.0.weight is float16: must be float32, "),
    "complex128": (
        lambda: SmallNet().to(torch.complex128),
        {},
        "parameter hidden.0.weight is complex128: must be float32, float64, complex64",
    ),
    "buffer": (with_buffer, {}, "the model's buffer phase is complex128: must be"),
    "outputs": (ComplexOutputs, {}, "the model's outputs are torch.complex64; must be real"),
    "autocast": (
        Double,
        {"engine.precision": "bf16"},
        "engine.precision=bf16: the model's hidden.0.weight is float64, which autocast does not",
    ),
    "none": (nn.Flatten, {}, "the model has no parameters: there is nothing to train"),
    "frozen": (frozen, {}, "the model's parameters are all frozen [(]hidden.0.weight"),
    "weight_norm": (
        lambda: old(nn.utils.weight_norm),
        {},
        "the model's module 1 has torch.nn.utils.weight_norm, which cannot be copied: use"
        " torch.nn.utils.parametrizations.weight_norm",
    ),
    "spectral_norm": (
        lambda: old(nn.utils.spectral_norm),
        {},
        "torch.nn.utils.spectral_norm, .* use torch.nn.utils.parametrizations.spectral_norm",
    ),
    "uncopied": (Uncopied, {}, "the model cannot be copied by copy.deepcopy: Only Tensors created"),
    **{
        method: (
            Waves,
            {"method.name": method},
            f"method.name={method}: needs a model of real parameters; wave is complex",
        )
        for method in ("fedma", "fedmax", "activation_l2", "fedfusion")
    },
    "chain": (
        Waves,
        {"method.name": "chain", "method.methods": {"fedmax": {}, "fedprox": {}}},
        "method.name=chain: needs a model of real parameters; wave is complex",
    ),
    "activations": (
        Waves,
        {"analysis": ["kl_activations"]},
        "analysis=kl_activations: needs a model of real parameters; wave is complex",
    ),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_trained(tmp_path, case):
    model, overrides, message = REFUSED[case]
    with pytest.raises(raysim.SettingsError, match=message) as refused:
        raysim.run(make_settings(tmp_path / "run", **overrides), make_task(EQUAL, model))
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


class Normed(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = parametrizations.weight_norm(self.head)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of the norm, in stacks
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mifl", "ditto"])
@pytest.mark.parametrize("stacked", [0, 3])
def test_a_parametrized_norm_is_trained(tmp_path, method, stacked):
    notes = Notes()
    overrides = {"method.name": method, "engine.vectorize": stacked}
    settings = make_settings(tmp_path / "run", **overrides)
    result = raysim.run(settings, make_task(EQUAL, Normed), notes)
    losses = result.metrics["test_loss"].to_pylist()
    assert losses[-1] < losses[0] and not any("stack" in note for note in notes.notes)
    assert "head.parametrizations.weight.original0" in result.params


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_script_is_refused_by_name(tmp_path):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(12, 3)))
    with pytest.raises(raysim.SettingsError, match=r"the model is a script of TorchScript"):
        raysim.run(make_settings(tmp_path / "run"), make_task(EQUAL, lambda: scripted))


class Flagged(SmallNet):
    """A network with a flag or a count, whose name is the first in a file."""

    def __init__(self, flag: Tensor) -> None:
        super().__init__()
        self.register_buffer("flag", flag)


@pytest.mark.parametrize("method", ["fedprox", "feddyn", "drfa"])
@pytest.mark.parametrize("flag", [torch.tensor([True, False]), torch.tensor([300])])
def test_a_step_s_numbers_do_not_take_the_type_of_a_flag(tmp_path, method, flag):
    """Tensors of a checkpoint are in the order of their names."""
    task = make_task(EQUAL, lambda: Flagged(flag))
    overrides = {"method.name": method, "rounds": 2, "fraction": 1.0, "engine.vectorize": 3}
    whole = raysim.run(make_settings(tmp_path / "whole", **overrides), task)
    with raysim.rounds(make_settings(tmp_path / "left", **overrides), task) as rounds:
        next(rounds)
    resumed = raysim.resume(tmp_path / "left", task)
    found = [run.metrics["objective"].to_pylist() for run in (whole, resumed)]
    assert found[0] == found[1]
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "left")
