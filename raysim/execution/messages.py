"""What travels between driver and workers in a pass: orders out, chunks of results back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.core.exact import ExactSum
from raysim.core.packed import Buffers, PackedTensors
from raysim.core.rules import Rules
from raysim.core.tensors import Layout
from raysim.storage.client_states import StateVersion
from raysim.storage.trace import Span, Stopwatch

Scores = dict[tuple[int, ...], tuple[float, npt.NDArray[Any]]]
"""Per (set, batch): the sum of the losses, and the predictions [n, ...]."""


@dataclass(frozen=True)
class Order:
    """A pass as it travels to the workers, once.

    Attributes:
        round_number: The round.
        index: The pass within the round.
        rules: What each client does.
        epochs: Local epochs.
        lr: Local learning rate.
        trainable: Names of the parameters that are trained.
        uniform: Whether clients count alike, or by their samples.
        total: The weight of all clients of the pass.
        broadcast: Groups for all clients.
        fresh: State of a client that keeps none yet.
        kept: The version of the state that each of the others has kept.
        personal: Groups for one client.
        keep_from: Oldest round whose client state a checkpoint needs.
    """

    round_number: int
    index: int
    rules: Rules
    epochs: int
    lr: float
    trainable: frozenset[str] | None
    uniform: bool
    total: int
    broadcast: PackedTensors
    fresh: PackedTensors
    kept: Mapping[int, StateVersion]
    personal: Mapping[int, PackedTensors]
    keep_from: int


@dataclass(frozen=True)
class Failure:
    """A client that could not be trained, or that was among `together` which could not.

    Attributes:
        client: The client.
        cause: Why, in one line.
        trace: The traceback, or what else there is to read.
        together: Clients that were trained together.
        final: Whether there is no use in trying again.
    """

    client: int
    cause: str
    trace: str
    together: int
    final: bool = False


@dataclass(frozen=True)
class Chunk:
    """What a worker hands over after some clients of a pass: one exact sum, and figures.

    Attributes:
        clients: Those whose uploads are in the sum.
        weight: Their total weight.
        layout: Layout of the sum.
        totals: The sum's int64 buffers, per dtype of the summed tensors.
        columns: Per name, one number per client.
        scalars: Names of the columns that the method's server reads.
        rows: Per client, what it sends as it is.
        keepers: Those who have kept state.
        bytes_up: Bytes that the clients sent.
        failures: Clients that failed.
        refusal: Why steps could not be recorded as a CUDA graph, or None.
        worker: Who hands it over.
        spans: What the worker did when, where a trace is asked for.
    """

    clients: list[int]
    weight: int
    layout: Layout
    totals: Buffers
    columns: dict[str, npt.NDArray[np.float64]]
    scalars: frozenset[str]
    rows: dict[int, PackedTensors]
    keepers: list[int]
    bytes_up: int
    failures: list[Failure]
    refusal: str | None
    worker: str
    spans: list[Span]


@dataclass(frozen=True)
class Scored:
    """What a worker hands over after some batches of evaluated samples.

    Attributes:
        scores: Of these batches.
        worker: Who hands them over.
        spans: What the worker did when, where a trace is asked for.
    """

    scores: Scores
    worker: str
    spans: list[Span]


@dataclass
class Tally:
    """What a worker adds up while it goes through clients."""

    sum: ExactSum | None = None
    weight: int = 0
    clients: list[int] = field(default_factory=list)
    records: list[dict[str, float]] = field(default_factory=list)
    scalars: frozenset[str] = frozenset()
    rows: dict[int, PackedTensors] = field(default_factory=dict)
    keepers: list[int] = field(default_factory=list)
    bytes_up: int = 0
    failures: list[Failure] = field(default_factory=list)
    refusal: str | None = None

    def chunk(self, worker: str, watch: Stopwatch) -> Chunk:
        """Return what was added up, to be handed over by a worker with its watch's spans."""
        names = dict.fromkeys(name for record in self.records for name in record)
        total = self.sum or ExactSum(Layout(()))
        with watch("reduction"):  # on a GPU, what is under way ends before this can
            totals = {dtype: flat.cpu().numpy() for dtype, flat in total.totals().items()}
        return Chunk(
            clients=self.clients,
            weight=self.weight,
            layout=total.layout,
            totals=totals,
            columns={n: np.array([r.get(n, np.nan) for r in self.records]) for n in names},
            scalars=self.scalars,
            rows=self.rows,
            keepers=self.keepers,
            bytes_up=self.bytes_up,
            failures=self.failures,
            refusal=self.refusal,
            worker=worker,
            spans=watch.take(),
        )
