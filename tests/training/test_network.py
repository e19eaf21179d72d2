"""A network's own forward, and when its stages stand for it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import raysim
from raysim.api.rules import Batch
from raysim.api.scoring import FORWARD_ROWS
from raysim.testing.tasks import SmallNet, samples
from raysim.training.network import Network, is_composition, score
from tests.cuda.device import CudaDevice
from tests.tasks import make_settings, make_task

SIZES = (30, 12, 5)


class Direct(SmallNet):
    """Activations stand in the stages."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(12, 10), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(10, 16), nn.Tanh())


class Between(SmallNet):
    """The same with activations between the stages."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
        self.hidden = nn.Linear(10, 16)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(F.relu(self.features(x)))))


class Stepwise(SmallNet):
    def forward(self, x):
        features = self.features(x)
        hidden = self.hidden(features)
        return self.head(hidden)


class InTraining(SmallNet):
    def forward(self, x):
        return self.head(F.dropout(self.hidden(self.features(x)), 0.5, self.training))


class Moded(SmallNet):
    def forward(self, x):
        return self.head(self.hidden(self.features(x))) if self.training else self.features(x)


class Twice(SmallNet):
    def forward(self, x):
        self.features(x)
        return self.head(self.hidden(self.features(x)))


class Same(SmallNet):
    """Its forward is that of its stages, and nothing proves it."""

    def forward(self, x):
        return self.head(self.hidden(self.features(x) + 0))


class Typed(SmallNet):
    """Its forward does to tensors what it does to nothing else."""

    def forward(self, x):
        x = self.features(x)
        return self.head(self.hidden(x.relu() if isinstance(x, torch.Tensor) else x))


def replaced():
    module = SmallNet()
    module.forward = lambda x: x
    return module


def hooked():
    module = SmallNet()
    module.register_forward_hook(lambda module, given, output: 2 * output)
    return module


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        *((SmallNet, True), (Stepwise, True), (Between, False), (InTraining, False)),
        *((Moded, False), (Twice, False), (Same, False), (Typed, False)),
        *((replaced, False), (hooked, False)),
    ],
)
def test_a_forward_is_proven_to_be_its_stages(module, expected):
    assert is_composition(module()) is expected


def test_outputs_of_stages_in_a_forward_of_its_own():
    module, x = Between(), torch.randn(4, 12)
    outputs = Network(module)(x)
    features = module.features(x)
    hidden = module.hidden(F.relu(features))
    for found, expected in zip(outputs, (features, hidden, module(x)), strict=True):
        assert torch.equal(found, expected)
    assert not module.features._forward_hooks


def test_hooks_of_a_network_are_called():
    module, x = hooked(), torch.randn(4, 12)
    assert torch.equal(Network(module)(x).logits, module(x))


@pytest.mark.parametrize("stacked", [0, 3])
def test_a_forward_of_its_own_is_trained(tmp_path, stacked):
    """Activations between the stages, and in them: the same values by other names."""
    trained = []
    for model in (Direct, Between):

        def build(model=model):
            torch.manual_seed(3)
            return model()

        options = {"rounds": 2, "engine.vectorize": stacked}
        settings = make_settings(tmp_path / model.__name__, **options)
        trained.append(raysim.run(settings, make_task(SIZES, build)).params)
    for (name, first), second in zip(trained[0].items(), trained[1].values(), strict=True):
        assert torch.equal(first, second), name


@pytest.mark.parametrize("method", ["fedmax", "divide_and_conquer"])
def test_methods_that_look_into_stages_refuse_a_forward_of_its_own(tmp_path, method):
    overrides = {"method.name": method, "rounds": 1}
    if method == "divide_and_conquer":
        overrides["method.split"] = 1
    message = (
        rf"method.name={method}: needs a model whose forward is .*differ by 0\.\d+ on a sample"
    )
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "refused", **overrides), make_task(SIZES, Between))
    assert not (tmp_path / "refused").exists()
    raysim.run(make_settings(tmp_path / "run", **overrides), make_task(SIZES, Same))


class Unflat(SmallNet):
    """A flatten stands between the stages, which do not fit without it."""

    def __init__(self):
        super().__init__()
        self.features = nn.Unflatten(1, (3, 4))

    def forward(self, x):
        return self.head(self.hidden(self.features(x).flatten(1)))


def test_stages_that_do_not_fit_are_refused(tmp_path):
    overrides = {"method.name": "fedmax", "rounds": 1}
    with pytest.raises(raysim.SettingsError, match=r"composed that way, they fail: .*shapes"):
        raysim.run(make_settings(tmp_path / "refused", **overrides), make_task(SIZES, Unflat))
    raysim.run(make_settings(tmp_path / "run", rounds=1), make_task(SIZES, Unflat))


def test_tensors_are_laid_out_as_the_networks_own():
    network = Network(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2)))
    network.placed(torch.device("cpu"))
    given = {name: tensor.detach().contiguous() for name, tensor in network.tensors().items()}
    found = network.laid_out(given)
    own = network.tensors()
    assert own["0.weight"].stride() != given["0.weight"].stride()
    assert {n: t.stride() for n, t in found.items()} == {n: t.stride() for n, t in own.items()}
    assert all(torch.equal(tensor, given[name]) for name, tensor in found.items())
    assert [name for name in found if found[name] is not given[name]] == ["0.weight"]
    assert all(network.laid_out(found)[name] is tensor for name, tensor in found.items())
    assert network.laid_out({"0.weight": torch.ones(5)})["0.weight"].shape == (5,)


class Unread(TorchDispatchMode):
    """Refuses to read a value: on a device Python would wait for it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("on_gpu", "whole_batch", "sizes"),
    [
        (False, False, [250, 250, 250, 250, 7]),
        (True, False, [1000, 7]),
        (True, True, [250, 250, 250, 250, 7]),
    ],
)
def test_forward_passes_are_as_large_as_the_device_likes(on_gpu, whole_batch, sizes):
    class Sized(SmallNet):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    seen: list[int] = []
    data = Batch(*map(torch.as_tensor, samples(1007, 0)))
    if whole_batch:
        scoring = raysim.Scoring(losses=F.cross_entropy, whole_batch=True)
        data = data._replace(scoring=scoring)
    with CudaDevice() if on_gpu else nullcontext(), torch.no_grad():
        network = Network(Sized()).eval()
        if on_gpu:
            network = network.placed(torch.device("cuda", 0))
            data = data._replace(x=data.x.cuda(), y=data.y.cuda())
        score(network, data)
    assert seen == sizes


def test_scores_are_not_waited_for_batch_by_batch():
    network = Network(SmallNet()).eval()
    rows = 2 * FORWARD_ROWS + 7
    data = Batch(*map(torch.as_tensor, samples(rows, 0)))
    with torch.no_grad(), Unread():
        (loss,), (predicted,) = score(network, data)
    expected, classes = 0.0, []
    with torch.no_grad():
        for x, y in zip(data.x.split(FORWARD_ROWS), data.y.split(FORWARD_ROWS), strict=True):
            logits = network(x).logits
            expected += float(F.cross_entropy(logits, y)) * len(y)
            classes += logits.argmax(1).tolist()
    assert loss == expected and predicted.tolist() == classes
