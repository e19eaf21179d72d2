"""FedLC: logits are calibrated by how many samples of each class a client has.

Source: Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated Learning with Label Distribution Skew via
Logits Calibration", ICML 2022, eq. 6 and 7.

    loss = CE(f - m, y)        m_c = tau * n_kc^(-1/4)        n_kc samples of class c at client k

so that a class which a client seldom sees must win by a wider margin. tau=0 is FedAvg bit for bit.
f are the logits that are divided by `local.temperature`. Choices and discrepancies:

- The paper's denominator leaves out the sample's own class. That loss is unbounded below and at
  tau=0 is not cross-entropy; here the sum is over all classes, as in FL-bench and fluke. The
  authors' code is not public.
- A class without samples counts as 1e-8 of one, as in these two: m_c is 100 tau, which takes its
  logit out of the client's softmax as the paper's infinite m_c does.
- counts="global", as in PFLlib: n_c of all clients together, the same m for everyone. Before the
  first training, a pass over all clients gathers C numbers from each; clients receive the sums with
  every model.

Legend: C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Batch, Outputs, Pass, Rules, Trained, Upload, View
from raysim.methods.fedavg import BeforePasses, FedAvg
from raysim.methods.linear_head import class_counts, classes_of, linear_head, shifted, weight_in
from raysim.numbers.tensors import Groups

COUNTS, N = "counts", "n"
ABSENT = 1e-8
"""Number of samples that a class without samples counts as."""


class FedLc(FedAvg):
    """FedAvg with margins between classes in the local loss.

    Helps where clients' labels are distributed differently: a client's model forgets less of the
    classes that it lacks. Costs an addition to the logits every step; bytes are FedAvg's. With
    counts="global" it costs C numbers of each client of the population once, and C with each model.
    """

    staged: ClassVar[bool] = True

    tau: float = Field(default=1.0, ge=0, description="strength of the calibration")
    counts: Literal["client", "global"] = Field(
        default="client", description="samples that are counted: the client's, or all clients'"
    )

    @property
    def needs_classes(self) -> str:
        """The setting that needs a classification."""
        return f"name={self.title}"

    @property
    def needs_local(self) -> Mapping[str, object]:
        """No kept optimizer with global counts: round 1 has one pass more than the others."""
        return {"keep": False} if self.counts == "global" else {}

    def key_needing(self, name: str) -> str:
        """Return the setting of the counts."""
        return f"method.counts={self.counts}"

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, and no counts."""
        state, head = super().init(network), linear_head(self, network)
        if self.counts == "client":
            return state
        return state.replace(counts={N: torch.zeros(classes_of(head), dtype=head.weight.dtype)})

    def broadcast(self, state: ServerState) -> Groups:
        """Return the model, and the counts of all clients if these are used."""
        counts = {COUNTS: state.groups[COUNTS]} if self.counts == "global" else {}
        return {**super().broadcast(state), **counts}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the calibrated loss."""
        counting = _count if self.counts == "client" else None
        return Rules(criterion=self._calibrated, from_samples=counting)

    def before_training(self, now: Round, state: ServerState) -> BeforePasses:
        """Count the classes of all clients, once, if these counts are used."""
        if self.counts == "client" or now.number:
            return state
        sent = {COUNTS: state.groups[COUNTS]}
        counting = Rules(finish=_send_counts)
        reduced = yield Pass(now.everyone, sent, counting, weighting="uniform", bases={})
        return state.replace(counts={N: reduced.means[COUNTS][N] * len(reduced.clients)})

    def _calibrated(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        groups = view.state if self.counts == "client" else view.broadcast
        margins = groups[COUNTS][N].clamp(min=ABSENT) ** -0.25  # [C]
        return batch.loss(shifted(outputs.logits, -self.tau * margins))


def _count(groups: Groups, samples: Batch) -> Groups:
    tensors = {name: tensor for group in groups.values() for name, tensor in group.items()}
    return {COUNTS: {N: class_counts(samples, weight_in(tensors))}}


def _send_counts(view: View, trained: Trained) -> Upload:
    return Upload(sums={COUNTS: {N: class_counts(trained.samples, view.broadcast[COUNTS][N])}})
