"""Interface of a federated method: rules of local training, and a round of the server.

The engine names no method. Each round it selects a cohort (`Selection`) and calls `Method.round`, a
generator of one or more passes over clients, which returns the next server state. Methods use:

- One pass, one rule: FedAvg; FedMAX, activation-L2, FedMMD, two-stream L2 (a penalty); FedProx (a
  transform of the gradient).
- Server optimisers: a `ServerRule` moves the model of the state that a round returns, whatever the
  method; `FedAvg.server_update` makes that state of the means.
- FedFusion: `network` wraps the model with the frozen extractor and the fusion operator.
- SCAFFOLD, FedDyn: a group in addition to the model, client state, a transform, `Rules.finish`.
- FSVRG: a pass of 0 epochs over all clients; its `finish` sends `view.gradient`. Then a
  training pass with a transform that calls `view.gradient` again.
- MIFL: `criterion`; one pass sends a scalar, a second one averages the models that were kept.
- Divide-and-conquer: `Pass.trainable` alternates; its pre-pass is several passes in the first
  round, accounted under a separate label.
- FedMA: several passes; `Upload.rows`, `personal` assignments; shapes of the deployed tensors grow
  and workers resize the network to them.
- APFL: `Rules.companions` train a second model, step by step with the network.
- FedALA: a pass of 0 epochs; its `finish` works on the client's samples, however long it takes.
- Per-FedAvg, pFedMe: a transform computes its own gradients, `view.gradient`, for every step.
- Ditto: a second pass trains each client's own model on the same batches (`Pass.draws`);
  `deployment` deploys it. FedPer and others keep a part of the model on the client.
- Centralized training: `Pass.pooled`.
- A method's own noise and compression: `Round.generator`, `View.generator`, `Upload.bytes_up`.
  Noise and compression for all methods are stages of the channel; `Pass.bases` names the groups
  that they change.
- AFL, DRFA, TERM: a weight for each client (`Pass.personal`), which scales its upload.
- DP-FTRL: `privacy` claims the guarantee of its clip and noise, `selection` brings the clients.
- FedBuff, FedAsync: `asynchrony` makes rounds overlap, `discount` weighs stale updates.
- FedAT: `asynchrony` with tiers, `Reduced.tiers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import nn

from raysim.api.chain import Join, first, only
from raysim.api.columns import Recording
from raysim.api.components import Registry, called, returns, suggest
from raysim.api.privacy import PrivacyClaim
from raysim.api.rules import MEANS_ALONE, LocalWork, Pass, Reduced, Weighting
from raysim.api.selection import Selection, are_lines
from raysim.api.server import ServerRule
from raysim.api.withheld import COHORT, SINGLE, closed
from raysim.errors import SettingsError
from raysim.numbers.arrays import Integers
from raysim.numbers.tensors import Groups, Tensors, nbytes

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class ServerState:
    """State of the server between rounds: groups of tensors, and numbers or words.

    Both are checkpointed; `info` as JSON.
    """

    groups: Groups
    info: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def in_order(self) -> ServerState:
        """This state with its tensors by name, as checkpoints have them: sums over them agree."""
        groups = {
            group: dict(sorted(tensors.items())) for group, tensors in sorted(self.groups.items())
        }
        return ServerState(groups, self.info)

    def replace(self, **groups: Tensors) -> ServerState:
        """Return this state with some groups replaced or added; all others stay."""
        return ServerState({**self.groups, **groups}, self.info)


@dataclass(frozen=True)
class Round:
    """Input of `Method.round`.

    A method may pass on a withheld field but not read it: reading it ends the run in one line.

    Attributes:
        number: Rounds committed before this one.
        cohort: The clients that take part, ascending; may be withheld. A pass may be over them.
        clients: K, the number of clients in all that may take part.
        epochs: `local.epochs`, or `LocalSteps(local.steps)`: for `Pass.epochs`.
        lr: Learning rate of this round, `lr_at(number)`.
        lr_at: Learning rate of any round.
        weighting: The run's `weighting`, a word or the path of a table.
        network: The network as it was built, for its structure; its tensors are not the state's.
        steps: `steps(client)`: the local steps of a client in `epochs`; may be withheld.
        sample: `sample(*keys)`: a further uniform cohort of m clients, keyed by seed, round, keys.
        generator: `generator(purpose)`: a generator on the CPU, keyed by seed, round and purpose.
        note: Shows the user one line.
        everyone: The clients that may take part, ascending: all K, or fewer by
            `evaluation.new_clients`; a pass may be over these alone.
        samples: Training samples of each client, by its number; may be withheld.
        size: m, the clients of a round.
        expected: Expected number of clients of a round; the divisor of
            `aggregation.weighting=fixed`.
        server_lr: Learning rate of the method's own server in this round: `Method.server_lr` by the
            settings `server`; 1 for a method without one.
        server_rule: The server's rule, with its rate of this round: the engine applies it to the
            state that `round` returns. None takes that state as it is.
    """

    number: int
    cohort: tuple[int, ...] = field(
        metadata=closed(
            *("the clients of a round", COHORT),
            instead=f"{MEANS_ALONE}; your own method passes now.cohort on unchanged",
            handle=True,
        )
    )
    clients: int
    epochs: LocalWork
    lr: float
    lr_at: Callable[[int], float]
    weighting: Weighting | str
    network: nn.Module
    steps: Callable[[int], int] = field(
        metadata=closed("the local steps of clients", SINGLE, instead=MEANS_ALONE)
    )
    sample: Callable[..., tuple[int, ...]]
    generator: Callable[[str], torch.Generator]
    note: Callable[[str], None]
    everyone: Sequence[int] = ()
    samples: Sequence[int] | Integers = field(
        default=(), metadata=closed("the sizes of clients", SINGLE, instead=MEANS_ALONE)
    )
    size: int = 1
    expected: float = 1.0
    server_lr: float = 1.0
    server_rule: ServerRule | None = None

    def __post_init__(self) -> None:
        """Take all K clients for `everyone` if it is not given."""
        if not self.everyone:
            object.__setattr__(self, "everyone", range(self.clients))


Passes = Generator[Pass, Reduced, tuple[ServerState, Metrics]]
"""Passes of a round: yields each, is sent its result, and returns the next state and metrics."""


@dataclass(frozen=True)
class Asynchrony:
    """Overlap of asynchronous rounds: each makes a version of the model, from clients' updates.

    Attributes:
        buffer: K, the updates that make a version. None: all updates of clients that started
            together; they arrive with the slowest, and their tier starts others then.
        concurrency: M, the clients that train at once.
        max_staleness: Largest staleness of an update that counts; None sets no limit.
        tiers: Number of equal parts into which clients are split by the time of their work; each
            has an equal share of the M.
    """

    buffer: int | None
    concurrency: int
    max_staleness: int | None = None
    tiers: int = 1

    def accepts(self, staleness: int) -> bool:
        """Return whether an update of `staleness` versions counts."""
        return self.max_staleness is None or staleness <= self.max_staleness


def _are_tensors(tensors: Any) -> bool:
    return all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


def _are_frozen(returned: object, method: object, model: nn.Module) -> bool:
    """Return whether names are those of frozen parameters of a model."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    return isinstance(returned, Collection) and {*returned} <= frozen


class Method(Recording, ABC):
    """Federated method; its fields are its settings."""

    _lasting: ClassVar[str] = "what lasts belongs in ServerState or in the state of a client"
    _claims: ClassVar[tuple[str, ...]] = ("privacy",)
    _joined: ClassVar[Mapping[str, Join]] = {
        "revision": lambda stated: sum(stated) - len(stated) + 1,
        "columns": lambda stated: [column for columns in stated for column in columns],
        "needs_local": lambda stated: {name: v for needed in stated for name, v in needed.items()},
        **dict.fromkeys(("staged", "real", "changes_shapes", "needs_sample_losses"), first),
        **dict.fromkeys(
            ("needs_classes", "needs_everyone", "needs_mean", "already_on_clients"), first
        ),
        **dict.fromkeys(("own_round", "own_server", "server_lr"), first),
        **dict.fromkeys(("deploys_finetuned", "deploys_client_models"), first),
        **dict.fromkeys(("asynchrony", "discount", "deployed", "deployment"), only),
    }
    """How a chain joins its methods' statements, and the functions that one of them may override.
    It refuses statements that it cannot join: claims, a selection and a rule of the server."""
    staged: ClassVar[bool] = False
    """Whether a network must have the three stages `features`, `hidden` and `head`."""
    real: ClassVar[bool] = False
    """Whether all parameters must be real, because the method compares or orders them."""
    needs_sample_losses: ClassVar[bool] = False
    """Whether the task's loss must be a mean over samples, not one of whole batches."""
    changes_shapes: ClassVar[bool] = False
    """Whether its rounds give the model's tensors other shapes."""
    deploys_finetuned: ClassVar[bool] = False
    """Whether clients deploy their models after `evaluation.finetune_epochs`, where it is set."""
    server_rate: ClassVar[str] = ""
    """Name of the field that is the learning rate of its server; empty without one. Its formula has
    `Round.server_lr` in place of the field, which then follows the settings `server`."""
    own_server: ClassVar[str] = ""
    """The step of its server that goes only with `server.name=mean`, in words, because other rules
    would move the model in addition to it; empty if it goes with all."""
    needs_mean: ClassVar[str] = ""
    """The uploads of its clients in place of changes, in words, if only their mean is a step; empty
    if clients send changes."""
    already_on_clients: ClassVar[str] = ""
    """The parts of the broadcast model that clients already have, in words, so that they receive
    less; such a method does not go with the down-link. Empty for none."""
    needs_everyone: ClassVar[str] = ""
    """A method to choose instead where `fraction` is below 1, if all clients must take part in
    every round of this one; empty if fewer may."""
    own_round: ClassVar[str] = ""
    """A round in words, if it is more than one trip of the model to the clients and back; tables do
    not compare such rounds with other methods' rounds."""

    @property
    def deploys_client_models(self) -> bool:
        """True if clients deploy their own models (`deployment`)."""
        return type(self).deployment is not Method.deployment

    @property
    def needs_classes(self) -> str:
        """The method's setting, as `key=value`, that needs a classification; empty for none."""
        return ""

    @property
    def needs_local(self) -> Mapping[str, object]:
        """The `local` settings that the method needs at one value, by name.

        A method states `{"optimizer": "sgd"}` if its formula takes a step for the learning rate
        times a gradient, or times a momentum of gradients.
        """
        return {}

    @property
    def server_lr(self) -> float | None:
        """Learning rate of its server, the field `server_rate`; None of a method without one.

        Raises:
            SettingsError: it has no field of that name.
        """
        if not self.server_rate:
            return None
        fields = [*type(self).model_fields]
        if self.server_rate not in fields:
            raise SettingsError(
                f"{called(self)}: server_rate={self.server_rate!r}: must be the name of a field;"
                f" {suggest(self.server_rate, fields)}"
            )
        rate: float | None = getattr(self, self.server_rate)
        return rate

    @property
    def server_rule(self) -> ServerRule | None:
        """The rule of its server, if its name stands for a pair of a method and a rule.

        Such a method states in `own_server` that it takes no other rule, and in `server_rate` which
        of its fields is the rule's `lr`.
        """
        return None

    @property
    def selection(self) -> Selection | None:
        """The selection that its rounds rest on; None takes the run's.

        It replaces the run's default, `uniform`, or a selection of the same class. The engine
        refuses others.
        """
        return None

    @property
    def privacy(self) -> PrivacyClaim | None:
        """The differential privacy of clients that it claims, as a stage may; None claims none.

        A subclass that overrides code of a class with a claim must state its own claim; else it is
        refused.
        """
        return None

    @property
    def sending(self) -> Method:
        """The method that defines the uploads: for a chain, its only member that does."""
        return self

    def with_noise(self, noise: float) -> Self:
        """Return this method with the noise multiplier that fits the epsilon of its claim."""
        return self

    def key_needing(self, name: str) -> str:
        """Return the setting, as `key=value` or a key, that needs a `local` setting at one value.

        Args:
            name: A name in `needs_local`.
        """
        return f"method.name={self.title}"

    @returns("a sequence of lines", are_lines)
    def notes(self, network: nn.Module) -> Sequence[str]:
        """Return notes on surprises with a network, in lines that are shown before the run."""
        return ()

    @returns("a torch.nn.Module", nn.Module)
    def network(self, model: nn.Module) -> nn.Module:
        """Return the network to train: the model, with the method's additions if it has any.

        First weights may be drawn from torch's global generator, which the run's seed keys.
        """
        return model

    @returns("names of the model's frozen parameters", _are_frozen)
    def moved(self, model: nn.Module) -> Collection[str]:
        """Return the names of the frozen parameters of the model that the server changes.

        It is asked before and after `network`, which may have added some.
        They are part of the state's group "model", so that clients receive them, but do not train
        them. Leave them out in `finish`: what it returns is sent up, counted and averaged as any
        other tensor. Other frozen parameters are the network's base, which no group has.
        """
        return ()

    @abstractmethod
    def init(self, network: nn.Module) -> ServerState:
        """Return the server's state before the first round.

        Raises:
            SettingsError: the method's settings do not suit the network.
        """

    @returns("a raysim.Asynchrony, or None", Asynchrony | None)
    def asynchrony(self, size: int) -> Asynchrony | None:
        """Return the overlap of rounds with m clients each; None if they do not overlap.

        The round of an asynchronous method runs one pass over the clients that start from the
        current version. It receives the updates that arrive by its end; their clients may have
        started earlier. Clients keep no state. Passes of different rounds differ only in clients,
        broadcast and learning rate.
        """
        return None

    def discount(self, staleness: int) -> float:
        """Return the factor, from 0 to 1, of an update of `staleness` versions."""
        return 1.0

    @returns(
        "groups of tensors; no groups if clients keep nothing",
        lambda groups, *_: all(map(_are_tensors, groups.values())),
    )
    def client_init(self, state: ServerState) -> Groups:
        """Return the state of a client that never took part; empty if clients keep none."""
        return {}

    @returns("a number of bytes", lambda returned, *_: isinstance(returned, int) and returned >= 0)
    def client_bytes(self, state: ServerState) -> int:
        """Return the most bytes that a client keeps between rounds; 0 if its first state stays.

        Asynchronous rounds need 0, as the order of clients would change their states.
        """
        return nbytes(self.client_init(state))

    def round_state_bytes(self, state: ServerState) -> int:
        """Return the most bytes of round state that a client keeps between passes."""
        return 0

    @abstractmethod
    @returns(
        "the next ServerState and a dict of metrics",
        lambda pair, _: isinstance(pair[0], ServerState) and isinstance(pair[1], Mapping),
    )
    def round(self, now: Round, state: ServerState) -> Passes:
        """Yield the passes of one round; return the next state and the method's own metrics.

        `reduced = yield Pass(...)` runs a pass, and raises its error if it fails. The given state
        must be left as it is: an interrupted round is run again from it.
        """

    @returns("the network's tensors by name", lambda returned, *_: _are_tensors(returned))
    def deployed(self, state: ServerState) -> Tensors:
        """Return the network's tensors as they are deployed and evaluated."""
        return state.groups["model"]

    @returns("a Pass, or None", Pass | None)
    def deployment(self, now: Round, state: ServerState) -> Pass | None:
        """Return the pass that makes the model which a client deploys; None for the global one.

        A client deploys the model that it has before it trains again: the newest broadcast, with
        its kept state. Each evaluated client runs the pass on its training samples, from its own
        state. The evaluation takes the client's tensors after the pass, or the group `model` if the
        client sends it, and drops them. Clients that never took part have `client_init`. Columns:
        `client_accuracy_...` and `personal_...`. The pass costs no bytes and no virtual time; only
        its `broadcast`, `rules`, `epochs`, `lr`, `trainable` and `personal` count. For fine-tuning
        a user sets `evaluation.finetune_epochs`. A method trains in the pass if its clients do more
        before they deploy.

        Args:
            now: The next round; its cohort are the evaluated clients.
            state: The state to evaluate.

        Returns:
            The pass, with epochs=0 where there is nothing to train; None evaluates clients with the
            deployed global model.
        """
        return None

    @returns(
        "passes, at least one, or None",
        lambda passes, *_: (
            passes is None or (len(passes) > 0 and all(isinstance(pass_, Pass) for pass_ in passes))
        ),
    )
    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Return the passes that make the model which a client deploys after a round's training.

        They are the passes of `round` that train a client, for `evaluation.when=after`. A client
        runs them in order, by itself, as it runs `deployment`: each pass finds the state and round
        state that the passes before it gave back. The evaluation takes the network's tensors after
        the last pass, or the group `model` if the client sends it. A client does not know the
        uploads of others.

        Args:
            now: The next round; its cohort are the evaluated clients.
            state: The state to evaluate.

        Returns:
            The passes. None refuses `evaluation.when=after`: it is the default where clients deploy
            their own models, or a round is more than one pass.
        """
        return None


METHODS: Registry[Method] = Registry("method", Method)  # type: ignore[type-abstract]
