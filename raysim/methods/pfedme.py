"""pFedMe: personalised models by Moreau envelopes of the clients' losses.

Source: Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS
2020, algorithm 1; the authors' code, github.com/CharlieDinh/pFedMe.

    local step, on one batch:  K times  theta <- theta - lr_p * (g(theta) + lam * (theta - w_k)
                                                                + decay * theta)
                               w_k <- w_k - eta * lam * (w_k - theta)
    server:                    w <- (1 - beta) * w + beta * sum_k p_k w_k       p_k as in FedAvg
    deploy:                    theta after `deploy_steps` such steps from the newest w

All K steps are on the same batch, with the same random draws (dropout). theta starts a client's
round at w and continues from step to step, as in the authors' code; the paper leaves its start
open. eta is `local.lr`, and lam * (w_k - theta) the gradient of a step. So momentum, optimizers and
schedules change the steps of w_k; theta takes plain steps of SGD. The authors' R "local epochs" are
batches: `local.steps=20`. Buffers are w_k's, and become their mean. lam=0 leaves w as it is.

Discrepancies: `decay` is in the authors' code alone; decay=0 is the paper. There all clients train
in each round, and the sampled ones are averaged; here the sampled ones train, which gives the same
w. By a reading of the authors' code, its personal scores are those of w_k: its optimizer returns
the network's own parameters, which are overwritten. Here they are theta's. It is computed again for
each evaluation, so clients keep nothing, and a client that never took part deploys its own theta,
too. PFLlib takes whole epochs for the R batches. `train_loss` is the loss at w_k before a step; its
gradient is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import (
    Batch,
    LocalSteps,
    Pass,
    Reduced,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
)
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Tensors, add_scaled, parameter_names

NAME = "pfedme"


class PFedMe(FedAvg):
    """FedAvg of models that each client's personal model is tied to.

    Helps where clients differ: a personal model moves away from the global one as far as its loss
    outweighs the tie. Costs K gradients more a step, one set of parameters more in memory, and
    `deploy_steps` steps to deploy; bytes are FedAvg's, and clients keep nothing.
    """

    lam: float = Field(default=15.0, ge=0, description="strength of the tie to the global model")
    inner_steps: int = Field(default=5, ge=1, description="K, steps of theta on each batch")
    personal_lr: float = Field(default=0.09, gt=0, description="learning rate of theta")
    decay: float = Field(default=0.001, ge=0, description="weight decay of theta; 0 is the paper's")
    beta: float = Field(default=1.0, gt=0, description="step of the server to the clients' mean")
    deploy_steps: int = Field(
        default=1, ge=0, description="local steps, of K each, before theta is deployed"
    )
    # gradients that are not clipped: theta takes several of them
    needs_local: ClassVar[Mapping[str, object]] = {"clip_norm": None}

    def rules(self) -> Rules:
        """Return the rules of local training: steps of w_k to a theta of its batch."""
        update = partial(
            _towards_theta,
            lam=self.lam,
            inner_steps=self.inner_steps,
            personal_lr=self.personal_lr,
            decay=self.decay,
        )
        return Rules(transforms=(Transform(NAME, update, _trained, replaces=True),))

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the parameters to the mean, or beyond it; buffers become their mean."""
        before, mean = state.groups["model"], reduced.means["model"]
        moved = {
            name: (1 - self.beta) * before[name] + self.beta * mean[name]
            for name in parameter_names(now.network)
        }
        return state.replace(model={**mean, **moved})

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy theta, from the global model by steps on the client's own batches."""
        pass_ = self.training_pass(now, state)
        rules = replace(self.rules(), finish=_deploy)
        return replace(pass_, rules=rules, epochs=LocalSteps(self.deploy_steps))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy theta as it is after the client's steps."""
        return self.trained_alone(now, state, _deploy)


def _trained(view: View) -> Tensors:
    """Return copies of the trained parameters."""
    return {name: view.params[name].detach().clone() for name in view.trainable}


def _towards_theta(
    view: View,
    gradients: Tensors,
    batch: Batch,
    state: Tensors,
    *,
    lam: float,
    inner_steps: int,
    personal_lr: float,
    decay: float,
) -> tuple[Tensors, Tensors]:
    w = {name: view.params[name].detach() for name in gradients}
    theta = state
    for _ in range(inner_steps):
        slope = view.gradient({**view.params, **theta}, batch)
        slope = add_scaled(slope, add_scaled(theta, w, -1), lam)
        theta = add_scaled(theta, add_scaled(slope, theta, decay), -personal_lr)
    return add_scaled({n: lam * t for n, t in w.items()}, theta, -lam), theta


def _deploy(view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": {**view.params, **trained.states[NAME]}})
