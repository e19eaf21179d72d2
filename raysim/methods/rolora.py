"""RoLoRA: rounds train B alone and A alone, in turn.

Source: Chen, Guo, Ju, Dalal, Zhu and Khisti, "Robust Federated Finetuning of LLMs via Alternating
Optimization of LoRA", arXiv:2502.01755, 2025, and Chen et al., arXiv:2409.02346, 2024, algorithm 1.

    rounds 1, 3, 5, ...:  B_k <- local epochs of SGD from B, A fixed        B <- sum_k p_k B_k
    rounds 2, 4, 6, ...:  A_k <- local epochs of SGD from A, B fixed        A <- sum_k p_k A_k

p_k as in FedAvg. The half that rests is the same on all clients, so the mean of products B_k A is
the product of means: nothing is lost, unlike in FedIT. Clients send the half that they train. Other
trained parts, such as a head, are trained and averaged in every round. The papers do not say which
half comes first; public code (FedLLM-Factory) trains B in odd rounds. `first` chooses: with B = 0
at the start, A has no gradient in the first round. Clients receive both halves, as one that missed
a round needs both.

In the tables `half` is 0 in rounds of A, 1 in rounds of B.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from raysim.api.columns import Column
from raysim.api.method import Metrics, Round, ServerState
from raysim.api.rules import Pass, Trained, Upload, View
from raysim.methods import partly_shared
from raysim.methods.adapted import Adapted
from raysim.numbers.adapters import adapters_of
from raysim.numbers.tensors import parameter_names, without


class RoLora(Adapted):
    """FedAvg of one half of the adapters in each round, the other half fixed.

    Helps where means of A and of B lose the mean of their products: with one half fixed they lose
    nothing. Against FedAvg it saves a half of the adapters' bytes up, and gradients of that half;
    each half moves in every second round.
    """

    own_server: ClassVar[str] = "moves a half of the adapters in each round"
    columns: ClassVar[Sequence[Column]] = (Column("half"),)
    # no kept optimizer: its passes train other parameters from round to round
    needs_local: ClassVar[Mapping[str, object]] = {"keep": False}

    first: Literal["B", "A"] = Field(default="B", description="half that the first round trains")

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, which trains one half and everything except the adapters."""
        pass_ = super().training_pass(now, state)
        rests = [a.a if self._trains_b(now) else a.b for a in adapters_of(now.network)]
        trainable = parameter_names(now.network) - {*rests}
        rules = replace(pass_.rules, finish=partial(_send, frozenset(rests)))
        return replace(pass_, rules=rules, trainable=trainable)

    def _trains_b(self, now: Round) -> bool:
        return (now.number % 2 == 0) == (self.first == "B")

    def round_metrics(self, now: Round, state: ServerState, after: ServerState) -> Metrics:
        """Return which half the round trained."""
        return {"half": float(self._trains_b(now))}


def _send(rests: Collection[str], view: View, trained: Trained) -> Upload:
    """Send the shared tensors, without the half that rests."""
    upload = partly_shared.finish(view, trained)
    return replace(upload, sums={"model": without(upload.sums["model"], rests)})
