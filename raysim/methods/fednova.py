"""FedNova: normalised averaging, for clients that do unequal work.

Source: Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020, update rule of FedNova with plain SGD, where
||a_k||_1 is the number tau_k of local steps.

    client:  d_k = (w - w_k) / tau_k
    server:  w <- w - (sum_k p_k tau_k) * sum_k p_k d_k       p_k as in FedAvg

With max_epochs above 0 each client of the cohort does 1 to max_epochs local epochs, drawn anew
every round from a generator keyed by seed and round; with 0 all do `local.epochs`. d_k covers the
trainable parameters; buffers become the mean. Deviation: with `local.momentum`, too, tau_k counts
steps; the paper's ||a_k||_1 for momentum is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from raysim.core.method import Round, ServerState
from raysim.core.rules import CHANGE, Bases, Pass, Reduced, Rules, Trained, Upload, View
from raysim.core.tensors import add_scaled, as_real
from raysim.core.user_input.limits import MOST
from raysim.methods.fedavg import FedAvg


class FedNova(FedAvg):
    """FedAvg of the mean change per local step: clients with more steps do not weigh more.

    Helps where clients take different numbers of steps, by their samples or by their speed. Costs
    one number more than FedAvg's bytes up, and one pass over the parameters a round.
    """

    bases: ClassVar[Bases | None] = {"d": CHANGE, "buffers": "model"}
    max_epochs: int = Field(
        default=0,
        ge=0,
        le=MOST,
        description="clients do 1 to max_epochs epochs; 0: all do local.epochs",
    )

    @property
    def needs_local(self) -> Mapping[str, object]:
        """SGD: ||a_k||_1 is that of its steps; epochs, where they are drawn."""
        return {"optimizer": "sgd", **({"steps": None} if self.max_epochs else {})}

    def rules(self) -> Rules:
        """Return the rules of local training: plain SGD, of which the mean step is sent."""
        return Rules(finish=_send_mean_step)

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, with epochs by client if these are drawn."""
        work = super().training_pass(now, state)
        if not self.max_epochs:
            return work
        draws = torch.randint(
            1, self.max_epochs + 1, (len(now.cohort),), generator=now.generator("epochs")
        )
        return replace(work, epochs=dict(zip(now.cohort, draws.tolist(), strict=True)))

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model by the mean step times the mean number of steps."""
        model, d = state.groups["model"], reduced.means["d"]
        moved = add_scaled({n: model[n] for n in d}, d, -float(reduced.means["steps"]["tau"]))
        return state.replace(model={**model, **reduced.means.get("buffers", {}), **moved})


def _send_mean_step(view: View, trained: Trained) -> Upload:
    change = {n: view.start[n] - view.params[n].detach() for n in view.trainable}
    buffers = {name: t for name, t in view.params.items() if name not in change}
    tau = float(trained.steps)
    return Upload(
        sums={
            "d": {name: tensor / tau for name, tensor in change.items()},
            "buffers": buffers,
            "steps": {"tau": as_real(next(iter(change.values()))).new_tensor(tau)},
        }
    )
