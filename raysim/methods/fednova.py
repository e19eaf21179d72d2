"""FedNova: normalised averaging, for clients that do unequal work.

Source: Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020; the authors' code, github.com/JYWa/FedNova.

A client of tau_k local steps moves by w - w_k = eta * sum_i a_i g_i, i from 0 to tau_k - 1, where
g_i is the gradient of step i. With rho of `local.momentum` and mu of a proximal term, in a `chain`
with FedProx (mu) or FedDyn (alpha):

    SGD                 a_i = 1                                      ||a_k||_1 = tau_k
    momentum            a_i = (1 - rho^(tau_k - i)) / (1 - rho)
    Nesterov momentum   a_i = (1 - rho^(tau_k - i + 1)) / (1 - rho)
    proximal term       a_i = (1 - eta mu)^(tau_k - 1 - i)
    both                a_i = h(tau_k - i)      h(0) = 0, h(1) = 1
                        h(j + 1) = (1 + rho - eta mu) h(j) - rho h(j - 1)

    client:  d_k = (w - w_k) / ||a_k||_1
    server:  w <- w - tau_eff * sum_k p_k d_k              p_k as in FedAvg

    tau_eff = sum_k p_k ||a_k||_1        with tau_eff="norm": FedAvg's in the paper's frame
    tau_eff = sum_k p_k tau_k            with tau_eff="steps": the code with a proximal term

"steps" goes further than the clients by tau_k / ||a_k||_1, which has no bound with a proximal term:
many steps diverge. Constants added to gradients (SCAFFOLD's c - c_k) leave a_k as it is, and so
does all that is a part of the objective or of its gradient: penalties, a criterion,
`local.weight_decay`, `local.clip_norm`. A chain with changes of another kind is refused: momentum
kept from round to round (MFA's), FedProx's mean by tensor.

With a proximal term and momentum, entries of a_k may be below 0, a case that the paper does not
treat: ||a_k||_1 is then the sum of the a_i, the way along a constant gradient. Deviation: a_k
follows the steps taken. The code's does not with both terms (its norm for one step is 2 - eta mu,
not 1) and with Nesterov's momentum (it takes plain momentum's).

In a chain it goes on from no other method's model: those before it keep FedAvg's `server_update`.

With max_epochs above 0 each client of the cohort does 1 to max_epochs local epochs, drawn in every
round from a generator keyed by seed and round; with 0 all do `local.epochs`. d_k covers the
trainable parameters; buffers become the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import CHANGE, Bases, Pass, Reduced, Rules, Trained, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import add_scaled, number_beside
from raysim.user_input.limits import MOST


class FedNova(FedAvg):
    """FedAvg of the change per effective local step: clients with more do not weigh more.

    Helps where clients take different numbers of steps, by their samples or by their speed. Costs
    one number more than FedAvg's bytes up, and one pass over the parameters a round.
    """

    bases: ClassVar[Bases | None] = {"d": CHANGE, "buffers": "model"}
    needs_pulls: ClassVar[bool] = True
    max_epochs: int = Field(
        default=0,
        ge=0,
        le=MOST,
        description="clients do 1 to max_epochs epochs; 0: all do local.epochs",
    )
    tau_eff: Literal["norm", "steps"] = Field(
        default="norm", description="steps of the server: the mean ||a_k||_1, or the mean tau_k"
    )

    @property
    def needs_local(self) -> Mapping[str, object]:
        """SGD to its last step, momentum from 0, as a_k assumes; epochs if they are drawn."""
        always = {"optimizer": "sgd", "keep": False, "tail_average": 0.0}
        return {**always, **({"steps": None} if self.max_epochs else {})}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD; clients send the change per step."""
        return Rules(finish=self._finish)

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, with epochs by client if these are drawn."""
        pass_ = super().training_pass(now, state)
        if not self.max_epochs:
            return pass_
        draws = torch.randint(
            1, self.max_epochs + 1, (len(now.cohort),), generator=now.generator("epochs")
        )
        return replace(pass_, epochs=dict(zip(now.cohort, draws.tolist(), strict=True)))

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the model by tau_eff times the mean change per effective step."""
        model, d = state.groups["model"], reduced.means["d"]
        moved = add_scaled({n: model[n] for n in d}, d, -float(reduced.means["steps"]["tau_eff"]))
        return state.replace(model={**model, **reduced.means.get("buffers", {}), **moved})

    def _finish(self, view: View, trained: Trained) -> Upload:
        change = {n: view.start[n] - view.params[n].detach() for n in view.trainable}
        buffers = {name: t for name, t in view.params.items() if name not in change}
        norm = trained.effective_steps
        steps = norm if self.tau_eff == "norm" else float(trained.steps)
        return Upload(
            sums={
                "d": {name: tensor / norm for name, tensor in change.items()},
                "buffers": buffers,
                "steps": {"tau_eff": number_beside(change, steps)},
            }
        )
