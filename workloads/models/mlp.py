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
from typing import ClassVar

from torch import nn

from raysim.errors import SettingsError
from raysim.samples.data import Model
from raysim.workloads.models.parts import fully_connected, unsuitable
from raysim.workloads.models.stages import Staged


class _Perceptron(Model):
    """Hidden layers of `widths` units; `features` ends after the first, `hidden` after the last."""

    widths: ClassVar[tuple[int, ...]]

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for inputs of any shape, which it flattens."""
        if min(shape, default=0) < 1:
            raise unsuitable(self, shape, "inputs of at least one number, of any shape")
        widths = (math.prod(shape), *self.widths)
        return Staged(
            features=nn.Sequential(nn.Flatten(), *fully_connected(widths[:2])),
            hidden=nn.Sequential(*fully_connected(widths[1:])),
            head=nn.Sequential(nn.Linear(widths[-1], classes)),
        )


class Linear(_Perceptron):
    """No hidden layer: logistic regression of classes, linear regression of other targets."""

    widths = ()


class TwoNN(_Perceptron):
    """Two hidden layers of 200 units; `features` ends after the first, `hidden` after both."""

    widths = (200, 200)


class FlexChillDnn(_Perceptron):
    """FLex&Chill's FEMNIST network: hidden layers of 512, 256 and 128 units."""

    widths = (512, 256, 128)


class SyntheticMlp(_Perceptron):
    """FedMAX's network for synthetic data: one hidden layer of 512 units, which is `features`."""

    widths = (512,)


class ThreeNNMimic(_Perceptron):
    """MIFL's MIMIC-III network: hidden layers of 200, 100 and 50 units, and one logit."""

    widths = (200, 100, 50)

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
        return super().build(shape, 1)
