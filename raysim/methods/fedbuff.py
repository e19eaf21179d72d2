"""FedBuff: asynchronous rounds; the server buffers K updates for each version of the model.

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022, algorithm 1; s(tau) = (1 + tau)^-1/2 by default, as there.

    client:  Delta_k = w_k - w_v            w_v the version v from which the client starts
    server:  w <- w + lr_global / K * sum of s(tau_k) Delta_k            over K buffered updates

M = `concurrency` clients train at once; tau is the number of versions between a client's start and
its aggregation. With `weighted` an update counts by its client's samples, divided by the mean of
the K. Floating-point buffers (BatchNorm statistics) become the mean of the clients', weighed by s:
the changes of several versions would add up, and a running variance might fall below zero. Integer
buffers grow by the greatest change, and a boolean is true if any client's is.
The paper's experiments have K = 10.
Deviation: the paper's server picks clients at random; here it does not pick clients with an update
in the buffer.

Changes are taken in float64. With lr_global=1, K = M = m and clients that take equally long, it is
FedAvg with weighting=uniform: bit for bit if K is a power of two. Otherwise the mean of K models
often lies halfway between two float32 numbers. The rounding of 1/K then decides, and the two may
differ in the last bit.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import (
    CHANGE,
    Bases,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    Weighting,
    send_model,
)
from raysim.methods.asynchronous import AsynchronousAvg
from raysim.numbers.tensors import as_real, nbytes, number_beside
from raysim.user_input.limits import Count

UPDATE, BUFFERS, SHARE = "change", "buffers", "share"
"""Groups in an upload; the last holds a one, so that its mean is the mean of s(tau_k)."""


class FedBuff(AsynchronousAvg):
    """Asynchronous averaging with a buffer: no client waits for the slowest.

    Helps where devices differ in speed: virtual time to an accuracy falls, as no client waits for
    slow ones. Costs the server a copy of each version that clients still train on, and updates that
    are stale. Bytes of an update are FedAvg's.
    """

    bases: ClassVar[Bases | None] = {UPDATE: CHANGE, BUFFERS: "model"}
    server_rate: ClassVar[str] = "lr_global"
    buffer: Count | None = Field(
        default=None, description="K, updates that make a version; none: half of the concurrency"
    )
    lr_global: float = Field(default=1.0, gt=0, description="step of the server")
    weighted: bool = Field(default=False, description="updates count by the clients' samples")

    def updates(self, concurrency: int) -> int:
        """Return K."""
        return self.buffer or -(-concurrency // 2)

    def discount(self, staleness: int) -> float:
        """Return s(tau)."""
        return self.factor(staleness)

    @property
    def weighting(self) -> Weighting | None:  # type: ignore[override]  # a constant of others
        """Weights of the mean."""
        return "examples" if self.weighted else "uniform"

    def rules(self) -> Rules:
        """Return the rules of local training: plain SGD; clients send the change."""
        return Rules(finish=_send_change)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model by the mean of the discounted changes; take the mean of buffers."""
        model = {**state.groups["model"]}
        for name, change in reduced.means[UPDATE].items():
            step = now.server_lr * change if as_real(change).is_floating_point() else change
            flags = change.dtype == torch.bool
            model[name] = change if flags else (model[name] + step).to(model[name].dtype)
        for name, mean in reduced.means.get(BUFFERS, {}).items():
            model[name] = (mean / reduced.means[SHARE][SHARE]).to(model[name].dtype)
        return state.replace(model=model)


def _send_change(view: View, trained: Trained) -> Upload:
    sent = send_model(view, trained).sums
    model = sent["model"].items()
    buffers = {
        n: _exact(t) for n, t in model if n in view.buffers and as_real(t).is_floating_point()
    }
    change = {
        n: tensor if tensor.dtype == torch.bool else _exact(tensor) - _exact(view.start[n])
        for n, tensor in model
        if n not in buffers
    }
    sums: dict[str, dict[str, torch.Tensor]] = {UPDATE: change}
    if buffers:
        sums |= {BUFFERS: buffers, SHARE: {SHARE: number_beside(buffers, 1.0)}}
    return Upload(sums=sums, bytes_up=nbytes(sent))


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128)
    return tensor.detach().double() if tensor.is_floating_point() else tensor
