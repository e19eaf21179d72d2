"""FedAvg: federated averaging.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, algorithm 1.

    w <- sum_k p_k w_k        p_k = n_k / sum of the n_k aggregated (or 1/m: weighting="uniform")

`local.batch_size=full` with `local.epochs=1` is FedSGD. Floating-point buffers (BatchNorm
statistics) are averaged like parameters; integer buffers take the maximum.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from torch import nn

from raysim.api.chain import Join, first, only
from raysim.api.method import Method, Metrics, Passes, Round, ServerState
from raysim.api.next_state import check_model, check_state
from raysim.api.rules import Bases, Finish, Pass, Reduced, Rules, Weighting
from raysim.numbers.tensors import Groups, state_of

BeforePasses = Generator[Pass, Reduced, ServerState]
"""Passes before the training pass of a round: yields each, and returns the state to train from."""


class FedAvg(Method):
    """Mean of the clients' trained models, weighted by their samples.

    The baseline of all methods; many local steps help where communication is expensive. Costs a
    client one model in memory, and one model down and one up a round. The base of most methods,
    which override `rules`, `broadcast`, `before_training`, `training_pass` or `server_update` and
    keep the round.
    """

    _joined: ClassVar[Mapping[str, Join]] = {
        **{**Method._joined, "weighting": first, "before_training": only}
    }
    weighting: ClassVar[Weighting | None] = None
    """Weights of the mean; None takes the run's `weighting`."""
    bases: ClassVar[Bases | None] = None
    """Bases of the groups that clients send; see `Pass.bases`."""
    pooled: ClassVar[bool] = False
    """Whether the samples of all clients are in one place; see `Pass.pooled`."""
    compares: ClassVar[bool] = False
    """Whether local training holds the client's network against the broadcast model."""
    needs_pulls: ClassVar[bool] = False
    """Whether all transforms must state their `pull`, for `Trained.effective_steps`."""

    def rules(self) -> Rules:
        """Return the rules of local training: plain SGD."""
        return Rules()

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built."""
        return ServerState({"model": {n: t.clone() for n, t in state_of(network).items()}})

    def broadcast(self, state: ServerState) -> Groups:
        """Return the groups sent to every client: only the model."""
        return {"model": state.groups["model"]}

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Return the next state: tensors that clients sent become their means, others stay."""
        groups, means = state.groups, reduced.means
        moved = {name: {**groups[name], **means[name]} for name in means if name in groups}
        return state.replace(**moved)

    def metrics(self, state: ServerState) -> Metrics:
        """Return the method's own metrics of a round, given the state after it."""
        return {}

    def before_training(self, now: Round, state: ServerState) -> BeforePasses:
        """Yield passes before the training pass; return the state to train from.

        FedAvg has none.
        """
        yield from ()
        return state

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return the pass over the cohort: its broadcast, rules, epochs and learning rate."""
        return Pass(
            now.cohort,
            self.broadcast(state),
            self.rules(),
            now.epochs,
            now.lr,
            weighting=self.weighting,
            bases=self.bases,
            pooled=self.pooled,
        )

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Return the training pass, if it is the round's only one and clients keep no model."""
        return None if self.deploys_client_models else self.trained_alone(now, state)

    def trained_alone(
        self, now: Round, state: ServerState, finish: Finish | None = None
    ) -> list[Pass] | None:
        """Return the training pass, for `deployment_after`; None if it is not the round's.

        Args:
            now: The next round.
            state: The state before it.
            finish: Replaces the rules' own, to send the deployed model; None: clients deploy their
                network after the training.
        """
        if type(self).round is not FedAvg.round or self.pooled:
            return None
        pass_ = self.training_pass(now, state)
        return [replace(pass_, rules=replace(pass_.rules, finish=finish or pass_.rules.finish))]

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train the cohort from the global model and update the state with the means."""
        state = yield from self.before_training(now, state)
        reduced = yield self.training_pass(now, state)
        after = self.server_update(now, state, reduced)
        check_state(self, "server_update", after)
        check_model(self, "server_update", after, state)
        return after, self.metrics(after)
