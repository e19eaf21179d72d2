"""Three-stage module, built by every model of this folder.

Legend: B batch, F features, C classes.
"""

from __future__ import annotations

from torch import Tensor, nn


class Staged(nn.Module):
    """Network of three stages.

    Attributes:
        features: Maps inputs to feature maps [B, channels, height, width] or [B, F].
        hidden: Maps them to the input of the last fully connected layer, [B, F].
        head: The last fully connected layer, to logits [B, C].
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
