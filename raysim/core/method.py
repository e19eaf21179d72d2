"""The interface of a federated method: rules of local training, and a round of the server.

The engine holds no method's name. It hands a method the cohort of a round and a function that
runs passes over clients; the method decides how many passes there are, what is sent, and what the
next global model is. How the methods use it:

- One pass, one rule: FedAvg; FedMAX, activation-L2, FedMMD, two-stream L2 (a penalty); FedProx (a
  transform with a value).
- FedFusion: `network` wraps the model with the frozen extractor and the fusion operator;
  `Rules.start` copies the averaged extractor into the frozen one; `round` smooths the weights.
- SCAFFOLD: group "c" beside the model, state per client, a transform, `finish`.
- Momentum FedAvg: group "d"; a transform's state starts from it, `finish` sends the last one.
- FSVRG: a pass of 0 epochs over all clients whose `finish` sends `view.gradient`, then a
  training pass whose transform calls `view.gradient` again.
- MIFL: `criterion`; a first pass keeps the trained model as client state and sends one scalar,
  a second pass of 0 epochs averages the kept models of the clients that were not pruned.
- Divide-and-conquer: `trainable` alternates; `warmup` rounds run its pre-pass.
- FedMA: several passes; `Upload.rows`, `personal` assignments, `Rules.start`; shapes of the
  deployed tensors grow and workers resize the network to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from raysim.core.components import Component, Registry
from raysim.core.rules import Pass, Reduced
from raysim.core.tensors import Groups, Tensors, nbytes

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class ServerState:
    """What the server keeps between rounds: groups of tensors, and numbers or words.

    Both are checkpointed; `info` as JSON.
    """

    groups: Groups
    info: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """What a method is given for one round.

    Attributes:
        number: Rounds committed before this one; negative in a method's warm-up.
        cohort: The m sampled clients, ascending.
        clients: K, the number of clients in all.
        epochs: `local.epochs`.
        lr: `local.lr * local.lr_decay ** number`; a warm-up decays from its own start.
        run: Runs a pass over clients.
        note: Tells the user something, in one line.
    """

    number: int
    cohort: tuple[int, ...]
    clients: int
    epochs: int
    lr: float
    run: Callable[[Pass], Reduced]
    note: Callable[[str], None]


class Method(Component, ABC):
    """A federated method; its fields are its settings."""

    staged: ClassVar[bool] = False
    """Whether a network must have the three stages `features`, `hidden` and `head`."""

    @property
    def warmup(self) -> int:
        """Rounds of the method's own before round 0; they count in no figure of the run."""
        return 0

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network to train, where the method adds to the model."""
        return model

    @abstractmethod
    def init(self, network: nn.Module) -> ServerState:
        """Return the server's state before the first round.

        Raises:
            SettingsError: the method's settings do not suit the network.
        """

    def client_init(self, state: ServerState) -> Groups:
        """Return the state of a client that never took part; empty if clients keep none."""
        return {}

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes that a client keeps between its participations, at most.

        With 0, whatever a pass leaves with a client is for the passes of the same round alone.
        """
        return nbytes(self.client_init(state))

    @abstractmethod
    def round(self, now: Round, state: ServerState) -> tuple[ServerState, Metrics]:
        """Run one round; return the next state and the method's own metrics.

        The given state must be left as it is: an interrupted round is run again from it.
        """

    def deployed(self, state: ServerState) -> Tensors:
        """Return the tensors of the network as it would be deployed and is evaluated."""
        return state.groups["model"]


METHODS: Registry[Method] = Registry("method", Method)  # type: ignore[type-abstract]
