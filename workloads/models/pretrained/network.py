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
    """Features of an encoder that classifies: from tokens [B, T] to the head's inputs [B, F].

    Attributes:
        network: The network; its head is taken off.
        filler: Number of the token that stands where there is none.
        prompt: Trained vectors before the tokens' embeddings [P, F], or None.
        drawn: Names of the parameters that no file has, in the network with its stages.
    """

    causal = False
    drawn: frozenset[str] = frozenset()
    prompt: nn.Parameter | None

    def __init__(self, network: nn.Module, filler: int) -> None:
        super().__init__()
        self.network = network
        self.filler = filler
        self.register_parameter("prompt", None)

    @property
    def vectors(self) -> int:
        """Number of vectors of the prompt P."""
        return 0 if self.prompt is None else len(self.prompt)

    @property
    def places(self) -> int | None:
        """Most tokens of an input; None for any number."""
        limits = limits_of(self.network)
        return min(limits.values()) - self.vectors if limits else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of numbers of tokens, -1 where there is none."""
        output: Tensor = self.network(**self.given(x)).logits
        return output

    def given(self, x: Tensor) -> dict[str, Any]:
        """Return what the network is given for numbers of tokens [B, T]: these, and their mask."""
        present = x >= 0
        given: dict[str, Any] = {"input_ids": torch.where(present, x, self.filler)}
        if self.prompt is not None:
            table: Any = self.network.get_input_embeddings()  # type: ignore[operator]
            embedded = table(given["input_ids"])
            prompt = self.prompt.to(embedded.dtype).expand(len(x), -1, -1)
            given = {"inputs_embeds": torch.cat([prompt, embedded], 1)}
            present = torch.cat([present.new_ones(prompt.shape[:2]), present], 1)
        return {**given, "attention_mask": attention_mask(present, causal=self.causal)}


class Decoder(Encoder):
    """Features of a decoder that predicts tokens: its states [B, T, F]."""

    causal = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of numbers of tokens, -1 where there is none."""
        states: Tensor = self.network(**self.given(x)).logits
        return states[:, self.vectors :]

    def given(self, x: Tensor) -> dict[str, Any]:
        """Return what the network is given for numbers of tokens [B, T], with their places."""
        # Some networks would read the places from a mask in two dimensions.
        places = torch.arange(self.vectors + x.shape[1], device=x.device)[None]
        return {**super().given(x), "position_ids": places, "use_cache": False}


class LastToken(Decoder):
    """Features of a decoder that classifies: the state [B, F] of the last token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the state of the last token of each row."""
        base: Any = self.network.base_model
        states = base(**self.given(x)).last_hidden_state
        last = self.vectors + ((x >= 0).sum(1) - 1).clamp(min=0)  # at least the first one's
        chosen: Tensor = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2]))
        return chosen.squeeze(1)


class InFloat32(nn.Module):
    """Casts the states or the logits of a base in half precision."""

    def forward(self, states: Tensor) -> Tensor:
        """Return values in float32."""
        return states.float()


def limits_of(network: nn.Module) -> dict[str, int]:
    """Return the most vectors that a network takes, by the names of its configuration."""
    config: Any = network.config
    names = ("max_position_embeddings", "sliding_window")
    found = {name: getattr(config.get_text_config(), name, None) for name in names}
    limits = {name: most for name, most in found.items() if isinstance(most, int)}
    for name, table in network.named_modules():
        filler = getattr(table, "padding_idx", None)
        if name.endswith("position_embeddings") and filler is not None:
            limits[names[0]] = table.num_embeddings - filler - 1  # places begin after padding's
    return limits


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
