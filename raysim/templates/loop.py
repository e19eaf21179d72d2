"""NewLoop: a training loop of your own, which trains one client.

    raysim run mnist-fedavg local.train=raysim.templates.loop:train rounds=3

raysim's page `docs/own-loop.md` says what a client has.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

import raysim


def train(client: raysim.Client) -> dict[str, Tensor]:
    """Train a client; return numbers of the round."""
    optimizer = client.optimizer()
    for x, y in client.batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(client.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    client.state["rounds"] = client.state.get("rounds", 0) + 1
    return {"last_loss": loss.detach()}
