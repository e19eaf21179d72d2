"""Label flip: a bad client trains on wrong labels.

    y <- C - 1 - y, or y <- target

Source of the first: Tolpegin, Truex, Gursoy and Liu, "Data Poisoning Attacks Against Federated
Learning Systems", ESORICS 2020, flip chosen classes; C - 1 - y is blades' and byzfl's.
"""

from __future__ import annotations

import torch
from pydantic import Field

from raysim.api.attack import Attack
from raysim.api.rules import Batch
from raysim.errors import SettingsError


class LabelFlip(Attack):
    """Train on labels C - 1 - y, or all on one class.

    A weak attack that is hard to see, as updates look like updates of unequal data. Costs nothing.
    """

    needs_classes = True

    target: int | None = Field(
        default=None, ge=0, description="label of all samples of a bad client; none: C - 1 - y"
    )

    def poison(self, samples: Batch, classes: int, generator: torch.Generator) -> Batch:
        """Change the labels."""
        if self.target is None:
            return samples._replace(y=classes - 1 - samples.y)
        check_target(self.target, classes)
        return samples._replace(y=torch.full_like(samples.y, self.target))


def check_target(target: int, classes: int) -> None:
    """Check that samples have a label, of C.

    Raises:
        SettingsError: they do not.
    """
    if target >= classes:
        raise SettingsError(
            f"attack.target={target}: must be a label of the samples, 0 to {classes - 1}"
        )
