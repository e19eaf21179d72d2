"""Fully connected networks.

Sources:
- McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
  AISTATS 2017, section 3: "A simple multilayer-perceptron with 2-hidden layers with 200 units each
  using ReLu activations (199,210 total parameters), which we refer to as the MNIST 2NN".
- Uddin et al., "Mutual Information Driven Federated Learning", IEEE TPDS 2021 (MIFL), section 5.1:
  "3-hidden layers of MLP (denoted as 3NN MIMIC) with respectively 200, 100 and 50 neurons are
  implemented with the ReLu activation, and finally a single-neuron sigmoid output layer". It prints
  320,051 parameters, 50 more than these layers have on 1473 inputs.
- Lee, Kim and Ko, "Improving Local Training in Federated Learning via Temperature Scaling", 2024
  (FLex&Chill), appendix B.1, table 3; its last layer must have 128 inputs, not the 256 printed, as
  the layer before has 128 outputs.
- Chen, Bhardwaj and Marculescu, "FedMAX: Mitigating Activation Divergence for Accurate and
  Communication-Efficient Federated Learning", ECML PKDD 2020, section 4.1: "a two-layer perceptron
  which has the same structure as the model used to generate the labels".
"""

from __future__ import annotations

import math

from torch import nn

from raysim.errors import SettingsError
from raysim.samples.data import Model
from raysim.workloads.models.parts import fully_connected, unsuitable
from raysim.workloads.models.stages import Staged

ANY_SHAPE = "inputs of at least one number, of any shape"


def _perceptron(
    model: Model, shape: tuple[int, ...], widths: tuple[int, ...], outputs: int
) -> Staged:
    """Build layers of these widths; `features` ends after the first, `hidden` after the last."""
    if min(shape, default=0) < 1:
        raise unsuitable(model, shape, ANY_SHAPE)
    return Staged(
        features=nn.Sequential(nn.Flatten(), *fully_connected((math.prod(shape), widths[0]))),
        hidden=nn.Sequential(*fully_connected(widths)),
        head=nn.Sequential(nn.Linear(widths[-1], outputs)),
    )


class Linear(Model):
    """No hidden layer: logistic regression of classes, linear regression of other targets."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        if min(shape, default=0) < 1:
            raise unsuitable(self, shape, ANY_SHAPE)
        return Staged(
            features=nn.Sequential(nn.Flatten()),
            hidden=nn.Sequential(),
            head=nn.Sequential(nn.Linear(math.prod(shape), classes)),
        )


class TwoNN(Model):
    """Two hidden layers of 200 units; `features` ends after the first, `hidden` after both."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        return _perceptron(self, shape, (200, 200), classes)


class FlexChillDnn(Model):
    """FLex&Chill's FEMNIST network: hidden layers of 512, 256 and 128 units."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        return _perceptron(self, shape, (512, 256, 128), classes)


class SyntheticMlp(Model):
    """FedMAX's network for synthetic data: one hidden layer of 512 units, which is `features`."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        return _perceptron(self, shape, (512,), classes)


class ThreeNNMimic(Model):
    """MIFL's MIMIC-III network: hidden layers of 200, 100 and 50 units, and one logit."""

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens.

        Raises:
            SettingsError: the dataset does not have 2 classes.
        """
        if classes != 2:
            raise SettingsError(
                f"model.name={self.title}: the dataset has {classes} classes; must be 2, as this"
                " network has one logit"
            )
        return _perceptron(self, shape, (200, 100, 50), 1)
