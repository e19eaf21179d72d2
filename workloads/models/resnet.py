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
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from torch import nn

from raysim.samples.data import Model
from raysim.user_input import user_path
from raysim.workloads.models.parts import image_shape, unsuitable
from raysim.workloads.models.pretrained import load_weights
from raysim.workloads.models.stages import Staged

STRIDE = 32
"""Stride of the last feature maps, in pixels of the input."""


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
