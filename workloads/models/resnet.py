"""Residual networks, which are torchvision's, in three stages.

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
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from torch import nn

from raysim.core.data import Model
from raysim.workloads.models.parts import image_shape, unsuitable
from raysim.workloads.models.pretrained import load_weights
from raysim.workloads.models.stages import Staged

STRIDE = 32
"""Of the last feature maps, in pixels of the input."""


def _absolute(path: str) -> str:
    """Return the path as every worker can open it, whatever its working directory."""
    return str(Path(path).expanduser().absolute())


class _ResNet(Model):
    """A residual network; `features` ends with the last maps, `hidden` averages them."""

    network: ClassVar[str]

    pretrained: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None,
        description="path of torchvision's weights, .safetensors or saved by torch; a head of"
        " another number of classes is left as initialised",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for colour images [3, height, width].

        Raises:
            SettingsError: the inputs are no such images of at least 32x32 pixels, or there is no
                file of weights.
            DataError: the file's weights are not those of this network.
        """
        if image_shape(self, shape, pixels=STRIDE)[0] != 3:
            raise unsuitable(self, shape, "images of 3 channels")
        import torchvision  # here: it imports torch's compiler, two seconds for who has no ResNet

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
    """torchvision's ResNet-18, with as many logits as there are classes."""

    network = "resnet18"


class ResNet50(_ResNet):
    """torchvision's ResNet-50, with as many logits as there are classes."""

    network = "resnet50"
