"""Generation: the tokens that a language model puts after others.

Legend: B batch, T tokens of a prompt, V tokens to choose from, S steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.api.scoring import NO_TOKEN


def likeliest_tokens(forward: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> Tensor:
    """Return the likeliest tokens [B, S] after prompts, each given those before it.

    Args:
        forward: Returns logits [B, T, V] of tokens.
        x: Prompts [B, T] of one token at least, padded on the right with NO_TOKEN.
        steps: Number S of tokens.
    """
    lengths = (x != NO_TOKEN).sum(1, keepdim=True)
    first, whole = x.shape[1], F.pad(x, (0, steps), value=NO_TOKEN)
    for step in range(steps):
        logits = forward(whole[:, : first + step])
        last = (lengths + step - 1).unsqueeze(-1).expand(-1, 1, logits.shape[2])
        whole = whole.scatter(1, lengths + step, logits.gather(1, last).argmax(-1))
    return whole.gather(1, lengths + torch.arange(steps, device=x.device))
