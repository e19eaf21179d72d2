"""FedBABU: the body is trained under a head that stays as it was built.

Source: Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022, algorithm 1.

    client k:  w_k <- local epochs of SGD from w, the head fixed at its first random values
    server:    w <- sum_k p_k w_k                                   p_k as in FedAvg

It is FedAvg that trains the body alone, bit for bit. The head is the same everywhere and does not
travel. At the end each client fine-tunes the whole model: `evaluation.finetune_epochs`, 5 in the
authors' code. There, clients weigh alike (`weighting=uniform`), the learning rate of the head is 0,
and local.momentum is 0.5, in its scripts 0.9, with a tenth of the learning rate after half of the
rounds and again after three quarters. PFLlib weighs by samples, and evaluates after 10 such epochs
at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Pass, Rules
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.methods.partly_shared import PartlyShared, Parts, names_of, start
from raysim.numbers.tensors import parameter_names


class FedBabu(PartlyShared):
    """FedAvg of the body under a fixed random head, for clients that fine-tune at the end.

    Helps where clients' labels differ: no head pulls the body towards the classes of some clients,
    and the body learns the features common to all. Costs less than FedAvg a step, and saves the
    head's bytes both ways; clients keep nothing.
    """

    own: Parts = Field(
        default=("head",),
        description="parts that stay as they were built: modules, tensors or patterns, none, all",
    )
    deployment: ClassVar = FedAvg.deployment
    deploys_finetuned: ClassVar[bool] = True

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the fixed tensors.

        Raises:
            SettingsError: no parameter is left to train.
        """
        names = names_of(self.own, network, "method.own")
        if parameter_names(network) <= names:
            raise SettingsError(
                f"method.own={','.join(self.own)}: must leave parameters to train; these are all"
            )
        return names

    def client_bytes(self, state: ServerState) -> int:
        """Return 0: the head is the same for all, and never changes."""
        return 0

    def rules(self) -> Rules:
        """Return the rules of local training: SGD from the shared tensors and the fixed ones."""
        return Rules(start=start)

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, which trains the shared parameters alone."""
        pass_ = super().training_pass(now, state)
        return replace(pass_, trainable=frozenset(pass_.broadcast.get("model", {})))
