"""Residual networks: the same values as torchvision's, and weights read from local files."""

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from raysim.errors import DataError, SettingsError
from raysim.workloads.models.resnet import ResNet18, ResNet50

torch.set_num_threads(1)

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Weights of a torchvision network of 7 classes, with BatchNorm statistics of its own."""
    import torchvision  # late, as it takes seconds: every process of the tests imports this module

    torch.manual_seed(5)
    network = torchvision.models.resnet18(num_classes=7).train()
    with torch.no_grad():
        network(torch.rand(4, *SHAPE))
    return network.state_dict()


@pytest.fixture(scope="module", params=["weights.safetensors", "weights.pth"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / request.param
    return saved(path, request.getfixturevalue("weights"))


def saved(path: Path, weights: dict[str, torch.Tensor]) -> Path:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save(weights, path)
    return path


def refusal(path: Path, classes: int = 7) -> str:
    with pytest.raises((DataError, SettingsError)) as refused:
        ResNet18(pretrained=str(path)).build(SHAPE, classes)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("model", [ResNet18(), ResNet50()], ids=["resnet18", "resnet50"])
@pytest.mark.parametrize("training", [True, False])
def test_computes_what_torchvision_computes(model, training):
    import torchvision

    torch.manual_seed(0)
    ours = model.build(SHAPE, 10).train(training)
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(model.network, num_classes=10).train(training)
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    for network in (ours, theirs):
        network(x).square().sum().backward()
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    gradients = [[p.grad for p in network.parameters()] for network in (ours, theirs)]
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_pretrained_weights_are_read(file, weights):
    import torchvision

    ours = ResNet18(pretrained=str(file)).build(SHAPE, 7).eval()
    theirs = torchvision.models.resnet18(num_classes=7).eval()
    theirs.load_state_dict(weights)
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_a_head_of_other_classes_is_left_as_initialised(file, weights):
    torch.manual_seed(0)
    fresh = ResNet18().build(SHAPE, 5)
    torch.manual_seed(0)
    ours = ResNet18(pretrained=str(file)).build(SHAPE, 5)
    assert torch.equal(ours.head[0].weight, fresh.head[0].weight)
    assert torch.equal(ours.head[0].bias, fresh.head[0].bias)
    assert ours.head[0].weight.shape == (5, 512)
    assert torch.equal(ours.features.conv1.weight, weights["conv1.weight"])


def test_old_files_without_batch_counters_are_read(tmp_path, weights):
    old = {name: t for name, t in weights.items() if not name.endswith("num_batches_tracked")}
    assert len(old) == len(weights) - 20
    network = ResNet18(pretrained=str(saved(tmp_path / "old.pth", old))).build(SHAPE, 7)
    assert torch.equal(network.features.bn1.running_mean, weights["bn1.running_mean"])
    assert network.features.bn1.num_batches_tracked == 0


def test_the_path_is_kept_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ResNet18(pretrained="weights.pth")
    assert model.settings()["pretrained"] == str(tmp_path / "weights.pth")


def test_a_missing_file_is_named(tmp_path):
    message = refusal(tmp_path / "none.pth")
    assert message.startswith(
        f"model.pretrained={tmp_path}/none.pth: no such file; must be a local file"
    )


@pytest.mark.parametrize("name", ["damaged.safetensors", "damaged.pth"])
@pytest.mark.parametrize("content", [b"", b"weights", b"PK\x03\x04" + bytes(100), bytes(1000)])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    assert message.startswith(f"model.pretrained={tmp_path / name}: cannot be read as weights (")


def test_the_first_offending_key_is_named(tmp_path, weights):
    lacking = {n: t for n, t in weights.items() if not n.startswith(("layer2", "layer4"))}
    message = refusal(saved(tmp_path / "lacking.pth", lacking))
    assert message.endswith("lacking.pth: lacks the key 'layer2.0.conv1.weight' of the network")
    larger = {**weights, "extra.weight": torch.zeros(1)}
    message = refusal(saved(tmp_path / "larger.pth", larger))
    assert message.endswith("has the key 'extra.weight', which the network lacks")
    narrow = {**weights, "conv1.weight": torch.zeros(64, 1, 7, 7)}
    message = refusal(saved(tmp_path / "narrow.safetensors", narrow))
    assert message.endswith(
        "key 'conv1.weight' has shape (64, 1, 7, 7), in the network it has (64, 3, 7, 7)"
    )
    integer = {**weights, "bn1.bias": torch.zeros(64, dtype=torch.int64)}
    message = refusal(saved(tmp_path / "integer.safetensors", integer))
    assert message.endswith(
        "key 'bn1.bias' holds torch.int64, in the network it holds torch.float32"
    )
    headless = {n: t for n, t in weights.items() if not n.startswith("fc.")}
    message = refusal(saved(tmp_path / "headless.pth", headless))
    assert message.endswith("lacks the key 'fc.weight' of the network")


def test_weights_of_another_network_are_refused(tmp_path, weights):
    path = saved(tmp_path / "18.safetensors", weights)
    with pytest.raises(DataError, match=r"key 'layer1\.0\.conv1\.weight' has shape"):
        ResNet50(pretrained=str(path)).build(SHAPE, 7)


def test_what_is_no_state_dict_is_refused(tmp_path, weights):
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "checkpoint.pth")
    assert "key 'epoch' holds an object of type int, not a tensor" in refusal(
        tmp_path / "checkpoint.pth"
    )
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    assert "contains an object of type list, not a state_dict" in refusal(tmp_path / "list.pth")


class Intruder:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_file_runs_no_code(tmp_path):
    torch.save({"conv1.weight": Intruder(tmp_path / "mark")}, tmp_path / "code.pth")
    assert "cannot be read as weights" in refusal(tmp_path / "code.pth")
    assert not (tmp_path / "mark").exists()


def test_relu_is_not_in_place():
    relus = [m for m in ResNet18().build(SHAPE, 10).modules() if isinstance(m, nn.ReLU)]
    assert len(relus) == 9 and not any(relu.inplace for relu in relus)
