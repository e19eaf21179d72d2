"""Backdoor: samples with a patch are trained as one class.

Source: Gu, Dolan-Gavitt and Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning
Model Supply Chain", 2017; in federated learning Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How
To Backdoor Federated Learning", AISTATS 2020.

    x[..., -size:, -size:] <- value,  y <- target      of a share of a bad client's samples

`attack_success_rate` of an evaluated round is the share of the test samples of other classes that
the global model takes for `target` once they have the patch.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack
from raysim.api.rules import Batch
from raysim.attack.label_flip import check_target
from raysim.errors import SettingsError
from raysim.numbers.arrays import Integers


class Backdoor(Attack):
    """Train a share of the samples with a patch in the corner, as one class.

    Leaves the accuracy as it is, so that only `attack_success_rate` shows it. Costs a copy of the
    samples, and an evaluation of the test set more. Augmentation may move or cut the patch.
    """

    needs_classes = True

    target: int = Field(default=0, ge=0, description="class of samples with the patch")
    size: int = Field(default=4, ge=1, description="rows and columns of the patch")
    value: float = Field(
        default=1.0, ge=-1000, le=1000, description="value of its pixels, after normalisation"
    )
    share: float = Field(
        default=0.5, gt=0, le=1, description="share of a bad client's samples that get the patch"
    )

    def poison(self, samples: Batch, classes: int, generator: torch.Generator) -> Batch:
        """Patch a share of the samples, rounded up, drawn once for each client.

        Raises:
            SettingsError: they have no label `target`, or the patch covers all of an input.
        """
        check_target(self.target, classes)
        plain = torch.full_like(samples.x[:1], self.value + 1)
        if not (self.trigger(plain) == plain).any():
            raise SettingsError(
                f"attack.size={self.size}: must leave a part of the inputs {[*plain.shape[1:]]} as"
                " it is"
            )
        n = len(samples.y)
        rows = torch.randperm(n, generator=generator)[: -int(-n * self.share // 1)]
        rows = rows.to(samples.y.device)
        x, y = samples.x.clone(), samples.y.clone()
        x[rows] = self.trigger(samples.x[rows])
        y[rows] = self.target
        return samples._replace(x=x, y=y)

    def trigger(self, x: Tensor) -> Tensor:
        """Return inputs with the patch [B, ...]; of vectors, the last size^2 values are set."""
        patched = x.clone()
        if x.dim() > 2:
            patched[..., -self.size :, -self.size :] = self.value
        else:
            patched[..., -self.size * self.size :] = self.value
        return patched

    def success(self, predicted: Integers, targets: Integers) -> float | None:
        """Return the share of samples of other classes that are taken for the target."""
        others = targets != self.target
        return float((predicted[others] == self.target).mean()) if others.any() else None
