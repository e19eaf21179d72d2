"""Centralized training: the samples of all clients in one place.

Source: the baseline of studies of federated learning, for example of Zhao et al., "Federated
Learning with Non-IID Data", arXiv:1806.00582, 2018. No paper describes it.

    w <- as many steps of SGD from w, on batches of all samples, as the round's cohort would take

The steps are the sum over the cohort of the steps that each client would take in `local.epochs` or
`local.steps`, so that as many gradients are computed as under FedAvg. Every round draws a new order
of the samples. Momentum starts at zero in every round unless `local.keep` is set. A sample that
several clients hold is there several times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from raysim.api.method import Round, ServerState
from raysim.api.rules import LocalSteps, Pass, Rules, Trained, Upload, View
from raysim.methods.fedavg import FedAvg


class Centralized(FedAvg):
    """Training on the samples of all clients in one place.

    The ceiling of most tables: it helps to see the cost of keeping data on clients. Against
    FedAvg it costs no bytes and as many steps, one after another on one worker, which holds the
    samples of all clients in memory.
    """

    pooled: ClassVar[bool] = True

    def rules(self) -> Rules:
        """Return the rules of training: plain SGD, and nothing is sent."""
        return Rules(finish=_keep)

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return a pass over one client, which stands for the samples of all."""
        return replace(
            super().training_pass(now, state),
            clients=now.everyone[:1],
            epochs=LocalSteps(sum(map(now.steps, now.cohort))),
        )


def _keep(view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": view.params}, bytes_up=0)
