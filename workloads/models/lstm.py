"""The character-level LSTM of FedMA and Divide-and-Conquer for Shakespeare.

Source: Wang et al., "Federated Learning with Matched Averaging", ICLR 2020 (FedMA), whose authors'
public code has these sizes. Deviations from that code:

- Every window starts from a zero state, where the code hands the state of one batch to the next.
- The embedding starts standard normal, as PyTorch's, and the head's weights uniform on
  [-0.01, 0.01], where the code has [-0.1, 0.1] for both (the head's bias is 0 in both). Inputs that
  small leave the state almost the same whatever the symbols; and where the head is frozen at first
  (Divide-and-Conquer), SGD drives the units into saturation to imitate its missing bias, from where
  the head then trained cannot tell symbols apart.

Legend: B batch, L symbols of a window, E dimensions of the embedding, F units.
"""

from __future__ import annotations

from torch import Tensor, nn

from raysim.samples.data import Model
from raysim.workloads.models.parts import unsuitable
from raysim.workloads.models.stages import Staged

EMBEDDING = 8
UNITS = 256
HEAD_BOUND = 0.01
"""The head's initial weights are uniform on [-HEAD_BOUND, HEAD_BOUND]."""


class LastState(nn.Module):
    """Selects the last hidden state of the outputs of an LSTM with one layer."""

    def forward(self, outputs: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
        """Return the state [B, F] after the last symbol."""
        _, (hidden, _) = outputs  # hidden: [1, B, F]
        return hidden[-1]


class CharLstm(Model):
    """An embedding of 8 dimensions, the last state of an LSTM of 256 units, and a head.

    It predicts the next symbol, so that classes are symbols; inputs are integers (torch.int32 or
    int64) in 0..classes-1.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Build the network for windows [L] of symbols.

        Raises:
            SettingsError: the inputs are no windows of symbols.
        """
        if len(shape) != 1 or shape[0] < 1:
            raise unsuitable(self, shape, "windows [length] of at least one symbol")
        embedding, head = nn.Embedding(classes, EMBEDDING), nn.Linear(UNITS, classes)
        nn.init.uniform_(head.weight, -HEAD_BOUND, HEAD_BOUND)
        nn.init.zeros_(head.bias)
        return Staged(
            features=nn.Sequential(embedding),  # [B, L, E]
            hidden=nn.Sequential(nn.LSTM(EMBEDDING, UNITS, batch_first=True), LastState()),
            head=nn.Sequential(head),
        )
