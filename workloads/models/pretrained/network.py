"""Features of a pretrained network: from numbers of tokens to its last states.

Attention masks are prepared here in four dimensions. Of masks in two, transformers would read
values on the host, and such a network could neither be stacked nor recorded.

Legend: B batch, T tokens, P vectors of a prompt, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Features of an encoder with a classifier whose last layer was taken off: [B, T] to [B, F].

    Attributes:
        network: The network.
        filler: Number of the token that stands where there is none.
        prompt: Trained vectors before the tokens' embeddings [P, F], or None.
        checkpointing: Whether it keeps no activations of layers.
    """

    causal = False
    prompt: nn.Parameter | None

    def __init__(self, network: nn.Module, filler: int) -> None:
        super().__init__()
        self.network = network
        self.filler = filler
        self.register_parameter("prompt", None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of numbers of tokens, -1 where there is none."""
        output: Tensor = self._run(x >= 0, x).logits
        return output

    def _run(self, present: Tensor, x: Tensor, **more: Any) -> Any:
        """Run the network on tokens [B, T], which are `present` or not."""
        given: dict[str, Any] = {"input_ids": torch.where(present, x, self.filler)}
        if self.prompt is not None:
            table: Any = self.network.get_input_embeddings()  # type: ignore[operator]
            embedded = table(given["input_ids"])
            prompt = self.prompt.to(embedded.dtype).expand(len(x), -1, -1)
            given = {"inputs_embeds": torch.cat([prompt, embedded], 1)}
            present = torch.cat([present.new_ones(prompt.shape[:2]), present], 1)
        given["attention_mask"] = attention_mask(present, causal=self.causal)
        return self.network(**given, **more)


class Decoder(Encoder):
    """Features of a decoder without its head: [B, T] to the states [B, T, F] of all tokens."""

    causal = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of numbers of tokens, -1 where there is none."""
        states: Tensor = self._run(x >= 0, x, use_cache=False).last_hidden_state
        return states if self.prompt is None else states[:, len(self.prompt) :]


class LastToken(Decoder):
    """Features of a decoder that classifies: the state [B, F] of the last token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the state of the last token of each row."""
        states = super().forward(x)
        last = ((x >= 0).sum(1) - 1).clamp(min=0)  # a row without a token has its first state
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)


class InFloat32(nn.Module):
    """Casts the states or the logits of a base in half precision."""

    def forward(self, states: Tensor) -> Tensor:
        """Return values in float32."""
        return states.float()


def attention_mask(present: Tensor, *, causal: bool) -> Tensor:
    """Return which keys each query attends to: [B, 1, T, T], or [B, 1, 1, T] if not causal.

    All attend to the first place, so that a row without a token has no softmax of nothing.

    Args:
        present: Whether there is a token [B, T].
        causal: Whether tokens attend to earlier ones only.
    """
    length = present.shape[1]
    places = torch.arange(length, device=present.device)
    keys = (present | (places == 0))[:, None, None]
    return keys & (places <= places[:, None]) if causal else keys
