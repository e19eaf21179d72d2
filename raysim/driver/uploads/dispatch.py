"""Passes as the engine dispatches them, with the steps that their uploads go through.

The engine calls hooks before a pass, in the order of `raysim.driver.uploads.order`. A hook may
change the pass and may add a step: one part for clients, around the method's `finish`, and one for
the server, after the aggregation. A step may also replace samples and kept updates, add columns of
clients and seal sums. The clients' part is sent to workers. It is small and depends only on
settings, round, cohort and the state in a checkpoint.
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

PassHook = Callable[["Dispatch"], "Dispatch"]
"""Returns the pass to run in place of the given one."""
Before = Callable[[View], None]
"""Called before the method makes an upload."""
After = Callable[[View, Trained, Upload], Upload]
"""Returns the upload that the client sends in place of the given one."""
Samples = Callable[[int, Batch, int], Batch]
"""Returns the samples that a client trains on instead, given client, samples and C classes."""

Forge = Callable[[AggregationMessage, State, Callable[[AggregationMessage], Floats]], Forger | None]
"""Returns a forger of a message's kept updates, given the state and a function to measure them."""


class UploadStep(NamedTuple):
    """Step that the uploads of a pass go through.

    Attributes:
        before: The client calls it before the method's `finish`.
        after: The client calls it with the upload.
        server: The server calls it with the result of the pass.
        samples: Replaces the samples that a client trains on.
        columns: Returns columns of `clients.parquet` for clients [n].
        forge: Returns the forger of kept updates.
        seal: Returns the seal of workers' sums, given the pass's number and `asked`.
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
        steps: The steps that its uploads go through, in order.
        stored_groups: Groups in uploads, with their bases. Each client's update of these groups is
            kept, for an aggregation or an attack that sees updates one by one.
        asked: The clients that begin the pass, even if they are lost before they send anything.
        full_epochs: The epochs before a virtual clock cut some clients' epochs; None if it cut
            none.
    """

    steps: tuple[UploadStep, ...] = ()
    stored_groups: Bases = field(default_factory=dict)
    asked: Sequence[int] = ()
    full_epochs: LocalWork | Mapping[int, LocalWork] | None = None

    @classmethod
    def of(cls, pass_: Pass) -> Self:
        """Return a method's pass as a dispatch without steps."""
        return cls(**_parts(pass_), asked=pass_.clients)

    def with_step(self, step: UploadStep) -> Self:
        """Return the pass with a further step at the end."""
        return replace(self, steps=(*self.steps, step))

    @property
    def of_clients(self) -> Pass:
        """The pass for clients; its `finish` includes the clients' parts of the steps."""
        parts = tuple((step.before, step.after) for step in self.steps if step.before or step.after)
        pass_ = Pass(**_parts(self))
        if not parts:
            return pass_
        finish = partial(_through, pass_.rules.finish, parts)
        return replace(pass_, rules=replace(pass_.rules, finish=finish))

    @property
    def samples(self) -> tuple[Samples, ...]:
        """The functions that replace clients' samples."""
        return tuple(step.samples for step in self.steps if step.samples)

    def columns(self, clients: Integers) -> Columns:
        """Return the steps' columns of `clients.parquet` for clients [n]."""
        step_columns = [step.columns(clients) for step in self.steps if step.columns]
        return {name: values for columns in step_columns for name, values in columns.items()}

    def forger(
        self,
        message: AggregationMessage,
        state: State,
        measure: Callable[[AggregationMessage], Floats],
    ) -> Forger | None:
        """Return the forger of the pass's kept updates; None if no step has one. See `Forge`."""
        forges = (step.forge(message, state, measure) for step in self.steps if step.forge)
        return next(filter(None, forges), None)

    def sealed(self, pass_number: int) -> Seal | None:
        """Return the seal of workers' sums; None if no step has one."""
        asked = tuple(map(int, self.asked))
        return next((step.seal(pass_number, asked) for step in self.steps if step.seal), None)

    def differences(self, reduced: Reduced) -> Differences:
        """Return the differences between a result's means and the broadcast."""
        return Differences.of(reduced.means, self.moved_from, self.broadcast)

    def received(self, reduced: Reduced) -> Reduced:
        """Return the result after the server's parts of the steps."""
        for step in reversed(self.steps):
            reduced = step.server(reduced) if step.server else reduced
        return reduced


def _parts(pass_: Pass) -> dict[str, Any]:
    return {part.name: getattr(pass_, part.name) for part in fields(Pass)}


def _through(
    finish: Finish,
    parts: Sequence[tuple[Before | None, After | None]],
    view: View,
    trained: Trained,
) -> Upload:
    """Return the upload of a client: the method's, after the clients' parts."""
    for before, _ in parts:
        if before:
            before(view)
    upload = finish(view, trained)
    for _, after in parts:
        if after:
            upload = after(view, trained, upload)
    return upload
