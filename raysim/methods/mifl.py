"""MIFL: mutual information drives the local update and the choice of models to average.

Source: Uddin et al., "Mutual Information Driven Federated Learning", IEEE TPDS 2021, algorithms 1
and 2. F_g is the network in training, F_k the model that the client itself trained last and p its
softmax, y the labels; l_g and l_k are their mean losses on a batch of N samples.

    c_v = std(l_g, l_k) / (l_g + l_k)        sample deviation: |l_g - l_k| / (sqrt(2) (l_g + l_k))
    lam = 1/2 if l_g == l_k;  c_v if c_v <= 1/2;  1 - c_v otherwise     "adaptive": algorithm 1
    objective="penalty":   l_g - lam/(2N) * sum_i |p_g,i - p_k,i|^2                    eq. 6 and 7
    objective="mixture":   (1 - lam) l_g + lam l_k                         algorithm 1, line 34
    objective="residual":  gradient [(1 - lam) (p_g - y) + lam (p_k - y)] / N at the logits, eq. 8
    MI = -1/2 log(1 - rho^2)                                               eq. 5, after training
    w <- mean, weighted by samples, of the models that are kept

The gradient is propagated back through F_g only; F_k, in evaluation mode, and lam are held fixed.
At a client's first participation it has no F_k and does plain FedAvg. rho is the Pearson
correlation of eq. 9 between the flattened logits, on all samples of the client and in evaluation
mode, of the trained model and of the broadcast one ("global": section 3.3) or of F_k ("previous":
algorithm 1; at the first participation the broadcast one). The server sorts the clients by MI, ties
by id, and drops ceil(prune * m) at each end: the over-working and the primitive. With three clients
or more and prune above 0 at least one goes at each end; one always stays, so of one or two clients
all do.

Choices and deviations:

- Eq. 9's denominator is read as sqrt(sum a^2 * sum b^2), as a correlation needs; |rho| is clamped
  to 1 - 1e-7, and rho is 0 where one side does not vary.
- Eq. 6 has a lam from 0 to 1, algorithm 1 one for each batch, and section 5.1 says that lam "is
  empirically tuned" by both models' errors. lam="adaptive" reads that as algorithm 1; a number is
  eq. 6's, the same in all steps, to be tuned by a search. lam=0 is FedAvg's update. With "mixture",
  lam=1 is no update at all.
- The classical loss of eq. 6 and 7 is the cross-entropy; supplement B, which has the authors' own
  form for it, is not available. Supplement A, on FedAvg and FSVRG, is not either: these are here as
  in the papers that it describes (`fedavg`, `fsvrg`).
- Both networks' logits are divided by `local.temperature`, and so is the gradient at them. With
  one logit the distance is between the two-class vectors: twice the squared one of the sigmoids.
- "mixture", with F_k frozen, is FedAvg with steps scaled by 1 - lam.
- "residual" has no lower bound: its second term is constant in F_g. Where l_g is far below l_k,
  as with two classes a client, it drives the logits away without bound and diverges.
- At m = 10 clients a round the default drops 20% of the cohort, where the paper says 2 x 2.5%.
- Algorithm 2 collects every model and drops some; section 3.3 ranks models "before determining the
  models to be uploaded". collect="kept" is the latter: a client first sends its MI, and its model
  only when it is kept. Until then the model lies in the client's own state. With update=false and
  mi_reference="global" no later round reads that, and it is gone with the round; with
  aggregation=false too, the method is FedAvg bit for bit. collect="all" is algorithm 2: the dropped
  clients send theirs, too, for the same average.
- Algorithm 2, line 11, and section 3.3 deliver the new model to the dropped clients as well, "for
  replacing their previous global model". With delivery="global", dropped clients receive it after
  the aggregation; clients that the next round samples do not receive it again there. This changes
  bytes and no result, so the default is "later": with their next round. delivery="own" reads
  "previous global model" as the client's own F_k. The paper counts rounds, and no bytes.

In the tables `mi` of a client is its MI. A client with a row of pass 0 but none of pass 1 was
dropped; later passes are those of collect="all" and of the delivery. In the table of rounds,
`mi_mean` is the mean, `mi_low` and `mi_high` the least and the greatest MI that were kept,
`pruned_low` and `pruned_high` the numbers of clients below and above.

Legend: N samples of a batch, C classes, m clients of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysim.api.columns import Column
from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import (
    Batch,
    Outputs,
    Pass,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    load_nothing,
    nothing_received,
    send_nothing,
)
from raysim.api.scoring import FORWARD_ROWS
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import Groups, Tensors, nbytes

Objective = Literal["penalty", "mixture", "residual"]
Strength = Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"]
RHO_LIMIT = 1 - 1e-7
CURRENT = "current"
"""Group of the clients that have received the present model."""


class Mifl(FedAvg):
    """FedAvg of models with middling MI, trained away from each client's own last model.

    Helps where clients' data differ and some local models are outliers: they are left out. Of ten
    clients a round the default leaves out two. objective="mixture" is FedAvg with steps scaled by
    1 - lam; objective="residual" has no minimum and diverges where a client fits its data almost
    exactly. Each half alone (`update`, `aggregation`) is an ablation. Against FedAvg: one model of
    state per client that ever took part; one more forward pass a step and two over the client's
    data a round; per round 4 bytes up more for each client and, unless collect="all", no model up
    from the dropped ones; unless delivery="later", one more model down to each of these.
    """

    columns: ClassVar[Sequence[Column]] = [
        *map(Column, ("mi_mean", "mi_low", "mi_high", "pruned_low", "pruned_high"))
    ]

    prune: float = Field(
        default=0.025, ge=0, lt=0.5, description="share of the cohort dropped at each end"
    )
    update: bool = Field(default=True, description="use the client's own model in the objective")
    objective: Objective = Field(
        default="penalty",
        description="eq. 6 and 7, algorithm 1's line 34, or eq. 8, which may diverge",
    )
    lam: Strength = Field(
        default="adaptive",
        description="lambda: algorithm 1's of each batch, or one for all; 0: FedAvg's update",
    )
    aggregation: bool = Field(default=True, description="drop the models of lowest and highest MI")
    mi_reference: Literal["global", "previous"] = Field(
        default="global",
        description="model that the trained one is compared with: the broadcast or the client's",
    )
    collect: Literal["kept", "all"] = Field(
        default="kept",
        description="clients that send a model: the kept ones, after the MI, or all (algorithm 2)",
    )
    delivery: Literal["later", "global", "own"] = Field(
        default="later",
        description="when dropped clients get the new model: with their next round; at the end of"
        " this one; or then, and it also replaces their own model",
    )

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the objective, then MI."""
        criterion = partial(_criterion, self.objective, self.lam) if self.update else None
        return Rules(criterion=criterion, finish=self._finish)

    @property
    def needs_classes(self) -> str:
        """The setting that needs class probabilities: objective=penalty."""
        return "objective=penalty" if self.update and self.objective == "penalty" else ""

    @property
    def own_server(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for the model that is delivered before the rule could move it, if it is."""
        return "" if self.delivery == "later" else "delivers the model it makes within the round"

    @property
    def already_on_clients(self) -> str:  # type: ignore[override]  # a constant of other methods
        """Words for the model that dropped clients have, if it is delivered to them."""
        return "" if self.delivery == "later" else "the model that was delivered to them"

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train the cohort, sort it by MI, and average the models that are kept."""
        broadcast = self.broadcast(state)
        down = _bytes_down(broadcast, state)
        pass_ = Pass(now.cohort, broadcast, self.rules(), now.epochs, now.lr, bytes_down=down)
        trained = yield pass_
        if not self.aggregation:
            return self.server_update(now, state, trained), {}
        mi = trained.scalars["mi"]
        pruned = pruned_at_each_end(self.prune, len(mi))
        ranked = np.argsort(mi, kind="stable")  # clients ascend, so ties stay in order of id
        kept = sorted(trained.clients[i] for i in ranked[pruned : len(mi) - pruned])
        dropped = sorted({*trained.clients} - {*kept})
        # Clients already have the broadcast model, the base of their uploads.
        sending = Pass(
            kept, broadcast, Rules(load_nothing, finish=_send_staged), bytes_down=nothing_received
        )
        averaged = yield sending
        if dropped and self.collect == "all":
            yield replace(sending, clients=dropped)  # and leave them out
        after = self.server_update(now, state, averaged)
        if self.delivery != "later":
            after = yield from self._deliver(dropped, after)
        return after, {
            "mi_mean": float(mi.mean()),
            "mi_low": float(mi[ranked[pruned]]),
            "mi_high": float(mi[ranked[len(mi) - pruned - 1]]),
            "pruned_low": pruned,
            "pruned_high": pruned,
        }

    def _deliver(
        self, dropped: Sequence[int], state: ServerState
    ) -> Generator[Pass, Reduced, ServerState]:
        """Send the new model to the dropped clients, and record which clients have it."""
        reached: Sequence[int] = ()
        if dropped:
            finish = _replace_own if self.delivery == "own" and self._keeps_model else send_nothing
            pass_ = Pass(dropped, self.broadcast(state), Rules(load_nothing, finish=finish))
            reached = (yield pass_).clients
        return state.replace(**{CURRENT: {"clients": torch.tensor(reached, dtype=torch.int64)}})

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes of the model that a client keeps from round to round."""
        return nbytes(self.broadcast(state)) if self._keeps_model else 0

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the bytes of the model that a client holds until the server has chosen."""
        stages = self.aggregation and not self._keeps_model
        return nbytes(self.broadcast(state)) if stages else 0

    @property
    def _keeps_model(self) -> bool:
        return self.update or self.mi_reference == "previous"

    def _finish(self, view: View, trained: Trained) -> Upload:
        previous = view.state.get("model", view.start)
        reference = view.start if self.mi_reference == "global" else previous
        samples = trained.data
        mi = float(
            mutual_information(
                logits_of(view, view.params, samples), logits_of(view, reference, samples), samples
            )
        )
        state = {"model": view.params} if self._keeps_model else {}
        if not self.aggregation:
            return Upload(sums={"model": view.params}, state=state, metrics={"mi": mi})
        staged = {} if state else {"model": view.params}
        return Upload(state=state, round_state=staged, scalars={"mi": mi})


def pruned_at_each_end(share: float, clients: int) -> int:
    """Return the number of clients dropped at each end of m; one at least is kept."""
    wanted = math.ceil(round(share * clients, 9))  # 0.07 * 100 is 7.000000000000001
    return min(max(wanted, int(share > 0)), (clients - 1) // 2)


def mixing_weight(loss_g: Tensor, loss_k: Tensor) -> Tensor:
    """Return lam for the losses of the network in training and of the client's own model."""
    c_v = (loss_g - loss_k).abs() / (math.sqrt(2) * (loss_g + loss_k))
    return torch.where(loss_g == loss_k, 0.5, torch.minimum(c_v, 1 - c_v))


def mutual_information(logits_a: Tensor, logits_b: Tensor, batch: Batch) -> Tensor:
    """Return -1/2 log(1 - rho^2) of two networks' logits [B, C] on a batch."""
    a, b = (_centred(logits.double(), batch) for logits in (logits_a, logits_b))
    covariance, scale = _mean(a * b, batch), (_mean(a * a, batch) * _mean(b * b, batch)).sqrt()
    rho = torch.where(scale > 0, covariance / scale, 0.0).clamp(-RHO_LIMIT, RHO_LIMIT)
    return -0.5 * torch.log(1 - rho.square())


def _criterion(
    objective: Objective, strength: Strength, view: View, outputs: Outputs, batch: Batch
) -> Tensor:
    loss_g = batch.loss(outputs.logits)
    if "model" not in view.state:
        return loss_g
    logits = view.scaled(view.at(view.state["model"], batch.x).logits)  # [N, C]
    if objective == "residual":  # the value stays, the gradient at F_k's logits goes to F_g's
        logits = logits + (outputs.logits - outputs.logits.detach())
    loss_k = batch.loss(logits)
    lam: float | Tensor = mixing_weight(loss_g.detach(), loss_k.detach())
    if not isinstance(strength, str):
        lam = strength
    if objective == "penalty":
        apart = _probabilities(outputs.logits) - _probabilities(logits)
        return loss_g - lam / 2 * batch.mean(apart.square().sum(-1))
    return (1 - lam) * loss_g + lam * loss_k


def _probabilities(logits: Tensor) -> Tensor:
    """Return the class probabilities [B, C] of logits; [B, 2] for one logit per sample."""
    if logits.shape[-1] > 1:
        return logits.softmax(-1)
    positive = logits.sigmoid()
    return torch.cat([1 - positive, positive], dim=-1)


def _bytes_down(broadcast: Groups, state: ServerState) -> Callable[[int], int] | None:
    """Return the bytes that a client receives: none if the model was delivered to it."""
    if CURRENT not in state.groups:
        return None
    clients, model = {*state.groups[CURRENT]["clients"].tolist()}, nbytes(broadcast)
    return lambda client: 0 if client in clients else model


def _replace_own(view: View, trained: Trained) -> Upload:
    return Upload(state={"model": view.broadcast["model"]})


def _send_staged(view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": view.state["model"]})


def logits_of(view: View, tensors: Tensors, samples: Batch) -> Tensor:
    """Return the logits [N, C] of samples at any tensors, some samples at a time."""
    return torch.cat([view.at(tensors, x).logits for x in torch.split(samples.x, FORWARD_ROWS)])


def _mean(values: Tensor, batch: Batch) -> Tensor:
    return batch.mean(values.mean(1))


def _centred(logits: Tensor, batch: Batch) -> Tensor:
    return logits - _mean(logits, batch)
