"""Interface of an attack by clients that cannot be trusted.

An attack changes one or more of three things:

1. `poison`, on the worker: the training samples of a bad client.
2. `send`, on the worker: the upload of a bad client, after all stages of the channel.
3. `forge`, where updates are aggregated: the updates of the bad clients, which know all others,
   block by block, before the aggregation measures or combines anything. Attacks that need whole
   updates define `measure` and `decide`, as aggregations do.

A backdoor also has a `trigger`. The run measures its success on the test set.

Legend: m clients of a pass, f of them bad, n coordinates of a block, N test samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.components import Acting, Registry, returns
from raysim.api.rules import Batch, Upload, View
from raysim.numbers.arrays import Integers


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class KnownUpdates:
    """Updates of a pass in a block of coordinates, as bad clients know them, in float64.

    Attributes:
        honest: Changes of the tensors of the clients that are not bad [m - f, n]; one or more.
        own: Updates that the bad clients would send if they were honest [f, n]; one or more.
        decided: For `forge` and `keep`, the result of `decide`; else empty.
        kept: For an attack with `vectors`, its vectors of the previous round [vectors, n], zeros in
            the first; else empty.
    """

    honest: Tensor
    own: Tensor
    decided: Tensor = field(default_factory=_nothing)
    kept: Tensor = field(default_factory=_nothing)


@dataclass(frozen=True)
class MeasuredUpdates:
    """Input of `Attack.decide`.

    Attributes:
        numbers: Sum of `measure` over all blocks.
        clients: The clients that are not bad, ascending [m - f].
        last: The result of `decide` in the round before, if the attack has `vectors`; else empty.
    """

    numbers: Tensor
    clients: Integers
    last: Tensor = field(default_factory=_nothing)


def _kept_shape(attack: Attack, known: KnownUpdates) -> tuple[int, int]:
    return attack.vectors, known.own.shape[1]


class Attack(Acting):
    """Attack; its fields are its settings.

    The least that one needs is `poison`, `send` or `forge`.
    """

    _lasting: ClassVar[str] = "set `vectors`, and return it from `keep` or `decide`"
    vectors: ClassVar[int] = 0
    """Number of vectors of the size of an update that it keeps from round to round; see `keep`."""
    needs_classes: ClassVar[bool] = False
    """Whether targets must be class numbers."""

    fraction: float = Field(
        default=0.2, ge=0, le=1, description="share of all clients that is bad, drawn by the seed"
    )
    per_round: int | None = Field(
        default=None,
        ge=0,
        description="bad clients of each round, drawn from its cohort; none: by fraction",
    )

    @returns(
        lambda _, samples, *arguments: (
            f"a Batch of inputs {[*samples.x.shape]} and targets {[*samples.y.shape]}"
        ),
        lambda returned, _, samples, *arguments: (
            returned.x.shape == samples.x.shape and returned.y.shape == samples.y.shape
        ),
    )
    def poison(self, samples: Batch, classes: int, generator: torch.Generator) -> Batch:
        """Return the samples that a bad client trains on, as many as it has.

        Args:
            samples: Its training samples, a copy.
            classes: C, the largest label of all training samples + 1.
            generator: A generator on the CPU, the same for a client in all rounds.
        """
        return samples

    def send(self, view: View, upload: Upload, clients: int) -> Upload:
        """Return the upload of a bad client.

        Args:
            view: The client; `view.generator` is keyed by the attack, too.
            upload: Differences, as `sums`, in float64, and the client's `samples`, after the last
                stage of the channel.
            clients: m, the clients of the pass.

        Returns:
            An upload; its `sums` must have the same groups, names and shapes.
        """
        return upload

    @returns("a tensor in float64", lambda returned, *_: returned.dtype == torch.float64)
    def measure(self, known: KnownUpdates) -> Tensor:
        """Return numbers of a block in float64, of any shape, that add up over blocks."""
        raise NotImplementedError

    @returns(
        "a tensor in float64 of one dimension",
        lambda returned, *_: returned.dtype == torch.float64 and returned.dim() == 1,
    )
    def decide(self, measured: MeasuredUpdates) -> Tensor:
        """Return the input of `forge`, once in a pass, in float64 of one dimension."""
        raise NotImplementedError

    @returns(
        lambda attack, known: f"a tensor in float64 of the shape {[*_kept_shape(attack, known)]}",
        lambda returned, *arguments: (
            returned.dtype == torch.float64 and returned.shape == _kept_shape(*arguments)
        ),
    )
    def keep(self, known: KnownUpdates) -> Tensor:
        """Return the vectors for the next round in a block [vectors, n]; they are checkpointed."""
        raise NotImplementedError

    @returns(
        lambda _, known: (
            f"a tensor in float64 of the shape {[*known.own.shape]} or {[*known.own.shape[1:]]}"
        ),
        lambda returned, _, known: (
            returned.dtype == torch.float64
            and returned.shape in (known.own.shape, known.own.shape[1:])
        ),
    )
    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the updates of the bad clients in a block [f, n], or one for them all [n]."""
        raise NotImplementedError

    def trigger(self, x: Tensor) -> Tensor:
        """Return inputs with the trigger of a backdoor [B, ...]."""
        return x

    def success(self, predicted: Integers, targets: Integers) -> float | None:
        """Return the success rate of a backdoor on the test set; None without one.

        Args:
            predicted: Predicted classes of the inputs with the trigger [N].
            targets: The labels [N].
        """
        return None

    @property
    def changes_samples(self) -> bool:
        """True if it has a `poison`."""
        return _defines(self.poison, Attack.poison)

    @property
    def changes_uploads(self) -> bool:
        """True if it has a `send`."""
        return _defines(self.send, Attack.send)

    @property
    def knows_updates(self) -> bool:
        """True if it has a `forge`, at the cost of a file per update."""
        return _defines(self.forge, Attack.forge)

    @property
    def measures(self) -> bool:
        """True if it has a `measure`, at the cost of one more pass over the files of updates."""
        return _defines(self.measure, Attack.measure)

    @property
    def triggers(self) -> bool:
        """True if it has a `trigger`."""
        return _defines(self.trigger, Attack.trigger)

    @property
    def acts(self) -> bool:
        """True if bad clients do anything."""
        return self.changes_samples or self.changes_uploads or self.knows_updates


def _defines(function: Callable[..., object], base: Callable[..., object]) -> bool:
    return getattr(function, "__func__", function) is not base


ATTACKS: Registry[Attack] = Registry("attack", Attack, default="none")
