"""The character-level LSTM of FedMA and Divide-and-Conquer for Shakespeare.

Source: Wang et al., "Federated Learning with Matched Averaging", ICLR 2020 (FedMA). Sizes and
initialisation are those of its authors' public code: the embedding and the head's weights uniform
on [-0.1, 0.1], the head's bias 0. Deviation: every window starts from a zero state, where that
code hands the state of one batch to the next.

Legend: B batch, L symbols of a window, E dimensions of the embedding, F units.
"""

from __future__ import annotations

from torch import Tensor, nn

from raysim.core.data import Model
from workloads.models.parts import unsuitable
from workloads.models.stages import Staged

EMBEDDING = 8
UNITS = 256


class LastState(nn.Module):
    """Takes the last hidden state from what an LSTM of one layer gives."""

    def forward(self, given: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
        """Return the state [B, F] after the last symbol."""
        _, (hidden, _) = given  # hidden: [1, B, F]
        return hidden[-1]


class CharLstm(Model):
    """An embedding of 8 dimensions, the last state of an LSTM of 256 units, and a head.

    It predicts the next symbol, so that there are as many symbols as classes; inputs are integers
    (torch.int32 or int64) in 0..classes-1.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for windows [L] of symbols.

        Raises:
            SettingsError: the inputs are no windows of symbols.
        """
        if len(shape) != 1 or shape[0] < 1:
            raise unsuitable(self, shape, "windows [length] of at least one symbol")
        embedding, head = nn.Embedding(classes, EMBEDDING), nn.Linear(UNITS, classes)
        nn.init.uniform_(embedding.weight, -0.1, 0.1)
        nn.init.uniform_(head.weight, -0.1, 0.1)
        nn.init.zeros_(head.bias)
        return Staged(
            features=nn.Sequential(embedding),  # [B, L, E]
            hidden=nn.Sequential(nn.LSTM(EMBEDDING, UNITS, batch_first=True), LastState()),
            head=nn.Sequential(head),
        )
