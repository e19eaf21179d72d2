"""Messages between driver and workers: a pass or an evaluation out, a worker's result back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from raysim.api.aggregation import Updates
from raysim.api.rules import Bases, Batch, ClientValues, Pass
from raysim.api.state import State
from raysim.execution.partial_sum import Seal, Sums
from raysim.numbers.arrays import Array, Floats, Integers
from raysim.numbers.tensors import Groups
from raysim.numbers.tensors.packed import PackedTensors
from raysim.storage.client_states import StateVersion
from raysim.storage.trace import Span

NO_GROUPS: Groups = MappingProxyType({})
Score = tuple[tuple[float, ...], tuple[Array, ...]]
"""Sums of the losses of samples, and their predictions [n, ...]; outputs, too, where wanted."""
Scores = dict[tuple[int, ...], Score]
"""Per (set, batch), the score of its samples."""


class Entry(NamedTuple):
    """Place of a client's update among asynchronous rounds.

    Attributes:
        round_number: Round that aggregates its update.
        total_weight: Weight of all clients of that round.
        discount: Factor of its update.
    """

    round_number: int
    total_weight: int
    discount: float = 1.0


@dataclass(frozen=True)
class PassMessage:
    """A pass as it travels to the workers, once.

    Attributes:
        pass_: The pass; its groups are packed separately.
        round_number: The round, or the version that clients of asynchronous rounds start from.
        pass_number: The pass within the round.
        uniform: Whether clients weigh alike, or by their samples.
        total_weight: Weight of all clients of the pass.
        broadcast: Groups for all clients.
        initial_state: State of a client that has none yet.
        personal: Groups for one client.
        values: The clients' values of local training.
        versions: The versions of each client's state and round state, where it has any.
        needed_from: Oldest round whose client states a checkpoint needs.
        retry: Whether clients have failed once. In the first attempt a stack is trained whole or
            not at all, so that a transient fault cannot change its bits; in the second, without
            the clients that fail.
        arrived: Clients with uploads that the driver has: if their stack is trained again, they are
            trained with it and not counted twice.
        entries: Of asynchronous rounds, the place of each client's update.
        seal: Seals the sums of workers; None if nothing does.
        weights: The clients' weights, if they have individual ones.
        stored_groups: Groups in uploads, with their bases; each client's update of them is kept.
        samples: Functions that replace a client's samples, given the number of classes.
        root: Whether the server trains, on its root samples in place of the client's; see
            `Aggregation.root_samples`.
    """

    pass_: Pass
    round_number: int
    pass_number: int
    uniform: bool
    total_weight: int
    broadcast: PackedTensors
    initial_state: PackedTensors
    personal: Mapping[int, PackedTensors]
    values: ClientValues
    versions: Mapping[int, tuple[StateVersion, ...]] = field(default_factory=dict)
    needed_from: int = 0
    retry: bool = False
    arrived: frozenset[int] = frozenset()
    entries: Mapping[int, Entry] = field(default_factory=dict)
    seal: Seal | None = None
    weights: Mapping[int, int] = field(default_factory=dict)
    stored_groups: Bases = field(default_factory=dict)
    samples: tuple[Callable[[int, Batch, int], Batch], ...] = ()
    root: bool = False

    @classmethod
    def of(cls, pass_: Pass, *, initial_state: Groups = NO_GROUPS, **more: Any) -> Self:
        """Return the message of a pass, with its groups packed.

        Args:
            pass_: The pass.
            initial_state: State of a client that has none yet.
            more: The other attributes.
        """
        return cls(
            pass_=replace(
                pass_, clients=(), broadcast={}, personal={}, bytes_down=None, bytes_up=None
            ),
            broadcast=PackedTensors.of(pass_.broadcast),
            initial_state=PackedTensors.of(initial_state),
            personal={
                client: PackedTensors.of(groups) for client, groups in pass_.personal.items()
            },
            **more,
        )

    def weight(self, client: int, samples: int) -> int:
        """Return the weight of a client with some training samples."""
        if self.weights:
            return self.weights[client]
        return 1 if self.uniform else samples

    def entry(self, client: int) -> Entry:
        """Return the place of a client's update: in this round, if rounds do not overlap."""
        return self.entries.get(client, Entry(self.round_number, self.total_weight))


@dataclass(frozen=True)
class EvaluationMessage(PassMessage):
    """An evaluation as it travels to the workers, once: the pass of `Method.deployment`, and more.

    Attributes:
        deployed: The deployed global model's tensors, as a group.
        own_models: Numbers of the sets that are evaluated with the models that clients would send
            in the last pass; others than `finetuned` are evaluated with the deployed model.
        later: The passes after it, which clients run one after another.
        finetuned: By number of a set with fine-tuned models, the number of the set of the same
            samples that is also scored before the fine-tuning; 0 for none.
        finetuning: The pass for the fine-tuning.
        divisors: Divisor of the outputs for each of the losses.
        outputs: Whether the outputs are wanted, next to the predictions.
    """

    deployed: PackedTensors = field(kw_only=True)
    own_models: frozenset[int] = frozenset()
    later: tuple[PassMessage, ...] = ()
    finetuned: Mapping[int, int] = field(default_factory=dict)
    finetuning: PassMessage | None = None
    divisors: tuple[float, ...] = (1.0,)
    outputs: bool = False

    @property
    def passes(self) -> tuple[PassMessage, ...]:
        """The passes in which a client makes its own model."""
        return (self, *self.later)


class Forger(Protocol):
    """Replacement of the updates of some clients by others, before they are aggregated."""

    def measured(self, updates: Updates, block: int) -> Floats:
        """Return the numbers that it needs of a block, which add up over blocks."""

    def forged(self, updates: Updates, block: int) -> Updates:
        """Return the updates of a block, some of them replaced."""

    def kept(self, updates: Updates, block: int) -> Floats:
        """Return the vectors of a block that it keeps for the next round [vectors, n]."""

    def state(self, vectors: Floats) -> State:
        """Return the server's state for the forger, given all blocks' vectors [vectors, N]."""


@dataclass(frozen=True)
class AggregationMessage:
    """An aggregation of kept updates as it travels to the workers, once.

    Attributes:
        round_number: The round.
        pass_number: The pass within the round.
        clients: The clients, ascending [m].
        samples: Their samples [m].
        digests: For each client, the digests of its blocks.
        start: Values that the clients' tensors have moved from [N].
        last: The aggregate of the round before [N], if it is kept; else empty.
        root: The update of the server's root samples [N], if there are any; else empty.
        weights: The clients' weights as the aggregation decided them [m]; empty without any.
        forger: Replaces the updates of some clients; None if no attack does.
        of_forger: Whether it measures, not the aggregation.
    """

    round_number: int
    pass_number: int
    clients: tuple[int, ...]
    samples: Integers
    digests: tuple[tuple[bytes, ...], ...]
    start: Array
    last: Floats = field(default_factory=partial(np.empty, 0))
    root: Floats = field(default_factory=partial(np.empty, 0))
    weights: Floats = field(default_factory=partial(np.empty, 0))
    forger: Forger | None = None
    of_forger: bool = False


@dataclass(frozen=True)
class Failure:
    """A client that failed, alone or with its stack.

    Attributes:
        client: The client.
        cause: One line.
        trace: The traceback, or another text.
        stack: The clients that were trained stacked with it, itself included.
        final: Whether the client is not tried again.
    """

    client: int
    cause: str
    trace: str
    stack: tuple[int, ...]
    final: bool = False


@dataclass
class WorkerResult:
    """Everything that a worker holds, handed over at once.

    Attributes:
        worker: Host and process of the worker.
        sums: Sum and records of the clients with accepted uploads.
        scores: Scores of the batches that it evaluated.
        blocks: By block number, aggregates, or sums of measurements.
        failures: Clients that failed.
        failing: Whether the last stacks, two or more, failed in a row: the process may be broken.
        notes: Lines for the user; the driver shows each once.
        spans: Its phases, where a trace is asked for.
    """

    worker: str
    sums: Sums = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    blocks: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    failing: bool = False
    notes: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class FailedItem:
    """Item that failed because its worker died every time.

    Attributes:
        item: The item.
        cause: One line.
    """

    item: tuple[int, ...]
    cause: str


@dataclass(frozen=True)
class Directions:
    """Directions to all foremen for a call of the executor, sent once.

    Attributes:
        costs: Work of each item.
        failed_at: Items that failed, and the worker.
        hold_seconds: Seconds of work after which a foreman hands over.
        order: Places of the items in the line, if they are not to be dealt.
    """

    costs: Mapping[tuple[int, ...], float]
    failed_at: Mapping[tuple[int, ...], str]
    hold_seconds: float
    order: Mapping[tuple[int, ...], float] | None = None


@dataclass(frozen=True)
class ForemanResult:
    """Everything that a foreman holds, handed over at once.

    Attributes:
        items: Its items.
        results: What its workers handed over; the first has the sum of them all.
        workers: Where its workers run.
        given_back: Items that none of its workers was handed, because its node is left.
    """

    items: list[tuple[int, ...]]
    results: list[WorkerResult | FailedItem]
    workers: list[dict[str, Any]]
    given_back: list[tuple[int, ...]] = field(default_factory=list)
