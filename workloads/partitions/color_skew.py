"""Two clients, one of mostly grey images, one of mostly coloured ones, with classes of their own.

Source: Chandran et al., Weight Divergence Driven Divide-and-Conquer Approach for Optimal Federated
Learning from non-IID Data, 2021, section 4.1: of ten classes each client holds five; in the first a
fraction p of the images is turned grey, in the second 1-p. From FedMA's published code (Wang et
al., Federated Learning with Matched Averaging, ICLR 2020), which that follows: the classes are
dealt at random, and half of the test images are grey.

Deviations: grey is the luminance of ITU-R BT.601, where that code repeats the red channel; and the
fractions hold for a client and for the test set as a whole, where that code has them in each class.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.numbers.arrays import Flags
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Partition, Split
from raysim.workloads.partitions.split_classes import SplitClasses

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue."""


class ColorSkew(Partition):
    """Deal the classes to two clients at random; turn a fraction of each one's images grey.

    Grey is computed on decoded inputs, its value in all three channels. Where decoding normalises
    channels, it is the luminance of the normalised channels: no colour is left, but the weights of
    the colours are those of luminance over the standard deviations (CIFAR-10's: within 1% of
    luminance), and a grey image has equal channels after normalisation, not before it.

    Attributes:
        p: Fraction of grey images in the first client; the second has 1-p.
    """

    p: Annotated[float, Field(ge=0, le=1)] = 0.95

    def split(self, data: Split, clients: int, seed: int) -> ListedIndices:
        """Give each client half of the classes.

        Raises:
            DataError: there are not two clients, the number of classes is odd, or images have no
                colour.
        """
        if clients != 2:
            raise DataError(f"clients={clients}: color_skew is made of two clients; set clients=2")
        if len(data.x.shape) == 4 and 3 not in data.x.shape[1:]:
            raise _colourless(data.x.shape[1:])
        return SplitClasses(shuffle=True).split(data, clients, seed)

    def client_view(self, x: Tensor, rows: Tensor, client: int, seed: int) -> Tensor:
        """Turn exactly round(p*n), or round((1-p)*n), of a client's images [n, 3, H, W] grey.

        Raises:
            DataError: the inputs are not images of three channels.
        """
        fraction = self.p if client == 0 else 1 - self.p
        order = stream(seed, "color-skew", client).permutation(len(rows))
        return _turn_grey(x, order < round(fraction * len(rows)))

    def test_view(self, x: Tensor, rows: Tensor, clients: int, seed: int) -> Tensor:
        """Turn every other test image [n, 3, H, W] grey: one of samples 2i and 2i+1, by lot.

        Raises:
            DataError: the inputs are not images of three channels.
        """
        pair, second = np.divmod(rows.cpu().numpy(), 2)
        lots = stream(seed, "color-skew-test").integers(2, size=pair.max() + 1)
        return _turn_grey(x, lots[pair] == second)


def _turn_grey(x: Tensor, chosen: Flags) -> Tensor:
    if x.ndim != 4 or x.shape[1] != 3:
        raise _colourless(x.shape[1:])
    grey = (x * x.new_tensor(LUMINANCE)[:, None, None]).sum(1, keepdim=True)  # [n, 1, H, W]
    return torch.where(torch.from_numpy(chosen).to(x.device)[:, None, None, None], grey, x)


def _colourless(shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"partition.name=color_skew: inputs are of shape {tuple(shape)}; it needs images of three"
        " colour channels"
    )
