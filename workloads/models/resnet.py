"""torchvision's residual networks, in three stages.

Sources:
- He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, as in torchvision.
- Lee, Kim and Ko, "Improving Local Training in Federated Learning via Temperature Scaling", 2024
  (FLex&Chill), appendix B.1: for CIFAR-100 "we exploited PyTorch implementation ... by only
  replacing the final classification head". So the stem (7x7 convolution and 3x3 max pooling, each
  of stride 2) stays torchvision's for 32x32 images too; their last maps are of one pixel.
- Chen, Bhardwaj and Marculescu, "FedMAX: Mitigating Activation Divergence for Accurate and
  Communication-Efficient Federated Learning", ECML PKDD 2020, section 4.4: "The activation of
  ResNet50 is the output of final average-pool layer".

ReLU is not in place, unlike torchvision's: the values are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from torch import Tensor, nn

from raysim.errors import DataError, SettingsError
from raysim.samples.data import Model
from raysim.storage.weights import read_weights
from raysim.user_input import user_path
from raysim.workloads.models.parts import image_shape, unsuitable
from raysim.workloads.models.stages import Staged

STRIDE = 32
"""Stride of the last feature maps, in pixels of the input."""
OPTIONAL_KEY = "num_batches_tracked"
"""BatchNorm's counter, missing in old files; it starts at 0."""


def _absolute(path: str) -> str:
    """Return an absolute path: workers have other working directories."""
    return str(user_path(path, "model.pretrained").absolute())


class _ResNet(Model):
    """A residual network; `features` ends with the last maps, `hidden` averages them."""

    network: ClassVar[str]

    pretrained: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None,
        description="file of torchvision's weights, .safetensors or saved by torch; a head with"
        " another number of classes stays as initialised",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for colour images [3, height, width].

        Raises:
            SettingsError: the inputs are not such images of at least 32x32 pixels, or there is no
                file of weights.
            DataError: the file's weights do not match this network.
        """
        if image_shape(self, shape, pixels=STRIDE)[0] != 3:
            raise unsuitable(self, shape, "images of 3 channels")
        import torchvision  # imports torch's compiler: two seconds that other models need not pay

        network = torchvision.models.get_model(self.network, weights=None, num_classes=classes)
        if self.pretrained is not None:
            load_weights(network, self.pretrained, head="fc")
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        parts = OrderedDict(network.named_children())
        head, pooling = parts.pop("fc"), parts.pop("avgpool")
        return Staged(
            features=nn.Sequential(parts),
            hidden=nn.Sequential(pooling, nn.Flatten()),
            head=nn.Sequential(head),
        )


class ResNet18(_ResNet):
    """torchvision's ResNet-18, with one logit per class."""

    network = "resnet18"


class ResNet50(_ResNet):
    """torchvision's ResNet-50, with one logit per class."""

    network = "resnet50"


def load_weights(network: nn.Module, path: str, head: str) -> None:
    """Copy the weights of a local file into a network; execute no code of it.

    Args:
        network: The initialised network.
        path: A safetensors file, or a state_dict saved by torch.
        head: Path of the last layer; it stays as initialised if the file's layer has another
            number of classes.

    Raises:
        SettingsError: the file does not exist.
        DataError: the file cannot be read, or a key is missing, unknown or has another shape.
    """
    loaded = _read(Path(path))
    tensors = network.state_dict()
    weight = loaded.get(f"{head}.weight")
    if weight is not None and weight.shape[1:] == tensors[f"{head}.weight"].shape[1:]:
        other = len(weight) != len(tensors[f"{head}.weight"])
        names = [name for name in tensors if other and name.startswith(f"{head}.")]
        loaded = {name: tensor for name, tensor in loaded.items() if name not in names}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in names}
    if problem := _mismatch(tensors, loaded):
        raise DataError(f"model.pretrained={path}: {problem}")
    network.load_state_dict(loaded, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise SettingsError(
            f"model.pretrained={path}: no such file; must be a local file of weights"
            " (.safetensors, or saved by torch)"
        )
    return read_weights(path, "model.pretrained")


def _mismatch(tensors: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str | None:
    """Describe the first key that does not match; None if all match."""
    for name, tensor in tensors.items():
        other = loaded.get(name)
        if other is None:
            if not name.endswith(OPTIONAL_KEY):
                return f"lacks the key {name!r} of the network"
        elif other.shape != tensor.shape:
            return (
                f"key {name!r} has shape {tuple(other.shape)}, in the network it has"
                f" {tuple(tensor.shape)}"
            )
        elif other.is_floating_point() != tensor.is_floating_point():
            return f"key {name!r} holds {other.dtype}, in the network it holds {tensor.dtype}"
    unknown = next((name for name in loaded if name not in tensors), None)
    return f"has the key {unknown!r}, which the network lacks" if unknown is not None else None
