"""Interface of an aggregation of a pass's updates into one update.

The mean is an exact sum, and needs no single update. Other aggregations see the updates one by one,
in blocks of coordinates: each worker writes the updates of its clients into files, and reads blocks
of all clients afterwards, so that no process ever holds all updates. There are three steps:

1. `measure`, on the workers: numbers of a block that add up over blocks, such as inner products of
   updates. They are added in an order that does not depend on workers. Only for aggregations that
   look at updates as a whole.
2. `decide`, on the server, once: checks of the updates that have arrived, and weights of the
   clients.
3. `combine`, on the workers: the aggregate of a block.

Legend: m clients of a pass, n coordinates of a block, N of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raysim.api.columns import Recording
from raysim.api.components import Registry, returns
from raysim.api.rules import Weighting
from raysim.api.withheld import SINGLE, closed
from raysim.numbers.arrays import Floats, Integers

MEAN = "choose aggregation.name=mean"
NO_CLIENTS: Integers = np.empty(0, dtype=np.int64)


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class Updates:
    """Updates of a pass, in a block of coordinates.

    Attributes:
        differences: Changes of the clients' tensors, in float64 [m, n]; complex values are pairs of
            reals. Rows are by client, ascending.
        samples: The clients' samples [m].
        clients: The clients [m].
        last: For an aggregation that `keeps_last`, its aggregate of the round before, zeros before
            the first [n]; else empty.
        root: For an aggregation with `root_samples`, the update that the server has trained on them
            [n]; else empty.
        weights: For `combine`, the weights that `decide` returned [m]; empty without any.
    """

    differences: Tensor
    samples: Integers
    clients: Integers = field(default_factory=NO_CLIENTS.copy)
    last: Tensor = field(default_factory=_nothing)
    root: Tensor = field(default_factory=_nothing)
    weights: Tensor = field(default_factory=_nothing)


@dataclass(frozen=True)
class ArrivedUpdates:
    """Input of `Aggregation.decide`: the updates of a pass that have arrived.

    A claim of privacy withholds samples and shares, and the samples of `Updates`.

    Attributes:
        clients: Their clients, ascending [m].
        samples: The clients' samples [m].
        shares: Weights of the clients in the mean, by `weighting`; their sum is 1 [m].
        measured: Sum of `measure` over all blocks; empty without it.
    """

    clients: Integers
    samples: Integers = field(metadata=closed("the sizes of clients", SINGLE, instead=MEAN))
    shares: Floats = field(metadata=closed("the weights of clients", SINGLE, instead=MEAN))
    measured: Tensor = field(default_factory=_nothing)


@dataclass(frozen=True)
class AggregationPlan:
    """Result of `Aggregation.decide`.

    Attributes:
        weights: Weights of the updates in the aggregate [m], for `combine`; None without any. A
            client with weight 0 was cut.
        metrics: Numbers of the round, columns of `metrics.parquet`.
        columns: Numbers of the clients [m], by name, columns of `clients.parquet`.
    """

    weights: Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Floats] = field(default_factory=dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


class Aggregation(Recording):
    """Aggregation; its fields are its settings.

    The least that one needs is `combine`, a function of a block.
    """

    _promises: ClassVar[tuple[str, ...]] = ("bounds_share",)
    _lasting: ClassVar[str] = "set `keeps_last`, and find the last aggregate in `Updates.last`"
    sees_updates: ClassVar[bool] = True
    """Whether `combine` replaces the mean, at the cost of a file per update."""
    keeps_last: ClassVar[bool] = False
    """Whether it needs its aggregate of the round before, which is then part of checkpoints."""

    @returns("a tensor in float64", lambda returned, *_: returned.dtype == torch.float64)
    def measure(self, updates: Updates) -> Tensor:
        """Return numbers of a block in float64, of any shape, that add up over blocks.

        The shape may depend on m, not on n. The cost is one more pass over the files of updates.
        """
        raise NotImplementedError

    @returns(
        "an AggregationPlan, with a number for each client in weights and columns",
        lambda plan, _, arrived: (
            isinstance(plan, AggregationPlan)
            and (plan.weights is None or plan.weights.shape == arrived.clients.shape)
            and all(np.shape(column) == arrived.clients.shape for column in plan.columns.values())
            and all(np.asarray(column).dtype.kind in "biuf" for column in plan.columns.values())
            and all(np.isfinite(float(number)) for number in plan.metrics.values())
        ),
    )
    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Return the weights of the updates, and numbers for the tables.

        Raises:
            SettingsError: too few updates have arrived; it names the setting and the bound.
        """
        return AggregationPlan()

    @returns(
        lambda _, updates: (
            f"a tensor of real numbers of the shape {[*updates.differences.shape[1:]]}"
        ),
        lambda returned, _, updates: (
            returned.is_floating_point() and returned.shape == updates.differences.shape[1:]
        ),
    )
    def combine(self, updates: Updates) -> Tensor:
        """Return the aggregate of a block [n]: by default the sum of the weighted updates."""
        if not len(updates.weights):
            raise NotImplementedError
        return updates.weights @ updates.differences

    @property
    def measures(self) -> bool:
        """True if it has a `measure`."""
        return type(self).measure is not Aggregation.measure

    @property
    def root_samples(self) -> int:
        """Number of samples on which the server itself trains, as a client would; 0 for none.

        The seed draws them from the clients' samples; clients train without them.
        """
        return 0

    @property
    def weights(self) -> Weighting | None:
        """Weights of the mean; None takes the weights of the pass."""
        return None

    @property
    def bounds_share(self) -> bool:
        """True if a client moves the aggregate by at most its difference over M, in any cohort.

        M is the expected number of clients of a round: accountants and noise take it for the
        divisor. A subclass that overrides code must state it again.
        """
        return False

    @returns(
        "a number of clients, or None",
        lambda returned, *_: returned is None or _is_number(returned),
    )
    def tolerates(self, arrived: int) -> int | None:
        """Return the most bad clients that it tolerates among `arrived`; None: no bound."""
        return None

    @returns("a finite number", lambda returned, *_: _is_number(returned))
    def factor(self, arrived: int, expected: float) -> float:
        """Return the factor of the mean differences.

        Args:
            arrived: Clients whose updates arrived.
            expected: Expected number of clients of a round.
        """
        return 1.0


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", Aggregation, default="mean")
