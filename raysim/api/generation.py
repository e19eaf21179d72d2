"""Generation: the tokens that a language model puts after others.

Legend: B batch, T tokens of a prompt, V tokens to choose from, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.api.scoring import NO_TOKEN


def places_of(network: nn.Module) -> int | None:
    """Return the most tokens that a network takes, as its modules' `places` say; None for any."""
    places = (getattr(module, "places", None) for module in network.modules())
    return min((number for number in places if isinstance(number, int)), default=None)


def likeliest_tokens(
    forward: Callable[[Tensor], Tensor],
    x: Tensor,
    steps: int,
    *,
    ends: Sequence[int],
    places: int | None,
) -> Tensor:
    """Return the likeliest tokens [B, S] after prompts, each given those before it.

    NO_TOKEN follows where a row has ended, or has filled all places.

    Args:
        forward: Returns logits [B, T, V] of tokens; not called again once all rows have ended.
        x: Prompts [B, T] of one token at least, padded on the right with NO_TOKEN.
        steps: Most tokens S.
        ends: Tokens that end a row; the row is returned without them.
        places: Most tokens T that `forward` takes, as many as the prompts have at least; None for
            any number.
    """
    lengths = (x != NO_TOKEN).sum(1, keepdim=True)
    first, whole = x.shape[1], F.pad(x, (0, steps), value=NO_TOKEN)
    goes_on = torch.ones_like(lengths, dtype=torch.bool)
    for step in range(steps):
        logits = forward(whole[:, : first + step][:, :places])
        last = lengths + step - 1
        goes_on &= last < logits.shape[1]
        at = last.clamp(max=logits.shape[1] - 1).unsqueeze(-1).expand(-1, 1, logits.shape[2])
        chosen = logits.gather(1, at).argmax(-1)
        for end in ends:
            goes_on &= chosen != end
        if not goes_on.any():
            break
        whole = whole.scatter(1, lengths + step, torch.where(goes_on, chosen, NO_TOKEN))
    return whole.gather(1, lengths + torch.arange(steps, device=x.device))
