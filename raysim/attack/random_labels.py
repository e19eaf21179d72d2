"""Random labels: a bad client trains on labels drawn uniformly, the same in all rounds."""

from __future__ import annotations

import torch

from raysim.api.attack import Attack
from raysim.api.rules import Batch


class RandomLabels(Attack):
    """Train on labels that are drawn at random once.

    Bad data rather than bad will: labels as a careless client has them. Costs nothing.
    """

    needs_classes = True

    def poison(self, samples: Batch, classes: int, generator: torch.Generator) -> Batch:
        """Draw the labels."""
        drawn = torch.randint(classes, samples.y.shape, generator=generator)
        return samples._replace(y=drawn.to(samples.y))
