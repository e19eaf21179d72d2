"""The three-stage module that every model here builds.

Legend: B batch, F features, C classes.
"""

from __future__ import annotations

from torch import Tensor, nn


class Staged(nn.Module):
    """A network cut where methods look into it.

    Attributes:
        features: Inputs to a representation, [B, channels, height, width] or [B, F].
        hidden: The representation to the input of the last fully connected layer, [B, F].
        head: That layer, giving logits [B, C].
    """

    def __init__(self, features: nn.Sequential, hidden: nn.Sequential, head: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.hidden = hidden
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C] of inputs [B, ...]."""
        hidden = self.hidden(self.features(x))
        logits: Tensor = self.head(hidden)
        return logits
