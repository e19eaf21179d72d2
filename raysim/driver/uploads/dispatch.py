"""Passes as the engine dispatches them, with the way of their uploads: steps, in one order.

Riders dress a pass before it runs, in the order of `raysim.driver.uploads.order`. Each may change
it, and put a step on the way of its uploads: a part that clients take around the method's `finish`,
and one that the server takes behind the aggregation. A step may also replace samples and kept
updates, add columns of clients and seal sums. What clients do travels: it is small, and depends on
settings, round, cohort and what a checkpoint seals alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, Self

from raysim.api.differences import Differences
from raysim.api.rules import Bases, Batch, Finish, LocalWork, Pass, Reduced, Trained, Upload, View
from raysim.api.state import State
from raysim.execution.messages import AggregationMessage, Forger
from raysim.execution.partial_sum import Columns, Seal
from raysim.numbers.arrays import Floats, Integers

Rider = Callable[["Dispatch"], "Dispatch"]
"""Returns the pass that runs in place of a given one."""
Before = Callable[[View], None]
"""Called before the method makes an upload."""
After = Callable[[View, Trained, Upload], Upload]
"""Returns what the client sends in place of an upload."""
Samples = Callable[[int, Batch, int], Batch]
"""Returns what a client trains on in place of its samples, given C, the number of classes."""

Forge = Callable[[AggregationMessage, State, Callable[[AggregationMessage], Floats]], Forger | None]
"""Returns a forger of the kept updates of a message, given its state, and what measures these."""


class UploadStep(NamedTuple):
    """Step of an upload's way.

    Attributes:
        before: What a client does before the method's `finish`.
        after: What it makes of the upload.
        server: What the server makes of the result.
        samples: What a client trains on.
        columns: Returns columns of `clients.parquet` of some clients [n].
        forge: Returns what replaces updates that are kept one by one.
        seal: Returns what seals the sums of workers, given the pass's number and `asked`.
    """

    before: Before | None = None
    after: After | None = None
    server: Callable[[Reduced], Reduced] | None = None
    samples: Samples | None = None
    columns: Callable[[Integers], Columns] | None = None
    forge: Forge | None = None
    seal: Callable[[int, tuple[int, ...]], Seal] | None = None


@dataclass(frozen=True)
class Dispatch(Pass):
    """Pass as the engine dispatches it.

    Attributes:
        steps: The way of its uploads.
        stored_groups: Groups in uploads, with their bases, of which each client's update is kept
            one by one, for an aggregation or an attack that sees them.
        asked: The clients that begin it, also those that are lost before they have sent anything.
        full_epochs: The epochs before a virtual clock cut those of some clients; None where it cut
            none.
        frozen: Names of the network's frozen parameters, which do not travel.
    """

    steps: tuple[UploadStep, ...] = ()
    stored_groups: Bases = field(default_factory=dict)
    asked: Sequence[int] = ()
    full_epochs: LocalWork | Mapping[int, LocalWork] | None = None
    frozen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pass_: Pass, frozen: frozenset[str]) -> Self:
        """Return a method's pass, to which nothing has been done."""
        return cls(**_parts(pass_), frozen=frozen, asked=pass_.clients)

    def with_step(self, step: UploadStep) -> Self:
        """Return the pass with one more step, the last."""
        return replace(self, steps=(*self.steps, step))

    @property
    def of_clients(self) -> Pass:
        """The pass as clients take it, whose `finish` goes through the clients' parts."""
        parts = tuple((step.before, step.after) for step in self.steps if step.before or step.after)
        pass_ = Pass(**_parts(self))
        if not parts:
            return pass_
        finish = partial(_through, pass_.rules.finish, parts)
        return replace(pass_, rules=replace(pass_.rules, finish=finish))

    @property
    def samples(self) -> tuple[Samples, ...]:
        """The functions that make others of the clients' samples."""
        return tuple(step.samples for step in self.steps if step.samples)

    def columns(self, clients: Integers) -> Columns:
        """Return the columns of `clients.parquet` that its steps have of some clients [n]."""
        found = [step.columns(clients) for step in self.steps if step.columns]
        return {name: values for columns in found for name, values in columns.items()}

    def forger(
        self,
        message: AggregationMessage,
        state: State,
        measure: Callable[[AggregationMessage], Floats],
    ) -> Forger | None:
        """Return what replaces kept updates of the pass; None if nothing does. See `Forge`."""
        forges = (step.forge(message, state, measure) for step in self.steps if step.forge)
        return next(filter(None, forges), None)

    def sealed(self, pass_number: int) -> Seal | None:
        """Return what seals the sums of workers; None if nothing does."""
        asked = tuple(map(int, self.asked))
        return next((step.seal(pass_number, asked) for step in self.steps if step.seal), None)

    def differences(self, reduced: Reduced) -> Differences:
        """Return the differences of the means of a result from what was broadcast."""
        return Differences.of(reduced.means, self.moved_from, self.broadcast, frozen=self.frozen)

    def received(self, reduced: Reduced) -> Reduced:
        """Return what the server goes on with, from the result of the pass."""
        for step in reversed(self.steps):
            reduced = step.server(reduced) if step.server else reduced
        return reduced


def _parts(pass_: Pass) -> dict[str, Any]:
    return {each.name: getattr(pass_, each.name) for each in fields(Pass)}


def _through(
    finish: Finish,
    parts: Sequence[tuple[Before | None, After | None]],
    view: View,
    trained: Trained,
) -> Upload:
    """Return what a client sends, from the upload that the method makes of its training."""
    for before, _ in parts:
        if before:
            before(view)
    upload = finish(view, trained)
    for _, after in parts:
        if after:
            upload = after(view, trained, upload)
    return upload
