"""Interface of a stage of the channel, which changes an upload on its way to the server.

A stage has a part at the client, after the method's `finish`, and one at the server, after the
aggregation. It changes differences. The difference of a group with a base (`Pass.bases`) is the
client's tensors less the base; a group that is a change already is its own difference. Stages leave
integers, rows and groups without a base as they are.

Legend: d a difference.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from raysim.api.columns import Recording
from raysim.api.components import Registry, call, returns
from raysim.api.privacy import PrivacyClaim
from raysim.api.rules import Reduced, Upload, View
from raysim.api.state import State, are_arrays
from raysim.api.withheld import COHORT, SINGLE, Tells, closed
from raysim.numbers.encoding import Encoded, Encoding, Traffic
from raysim.numbers.masking import SecureSum
from raysim.numbers.tensors import Groups, Layout


@dataclass(frozen=True)
class Received:
    """Input of `Stage.receive`: the pass of the result.

    Attributes:
        number: Rounds committed before this one.
        cohort: The clients of the round, ascending; withheld by a claim of privacy of another.
        clients: K, the number of clients in all.
        generator: `generator(purpose)`: a generator on the CPU, keyed by seed, round, pass, stage
            and purpose.
        expected: Expected number of clients of a round; the divisor of
            `aggregation.weighting=fixed`.
    """

    number: int
    cohort: tuple[int, ...] = field(
        metadata=closed("the clients of a round", COHORT, instead="leave it out")
    )
    clients: int
    generator: Callable[[str], torch.Generator]
    expected: float


class Stage(Recording, ABC):
    """A stage of the channel; its fields are its settings.

    Tensors are in float64, complex ones as pairs of reals [..., 2]. A stage may change them in
    place. If it returns a tensor with unchanged values, the server receives the same bits as
    without the stage. It must not change the view's tensors (`start`, `broadcast`, `state`,
    `personal`).
    """

    _lasting: ClassVar[str] = "what lasts belongs in the state of a client, or of the stage"
    _promises: ClassVar[tuple[str, ...]] = (
        *("bounds_norm", "is_contraction", "fits_downlink", "shares_places", "sums_numbers"),
    )
    _claims: ClassVar[tuple[str, ...]] = ("privacy", "secure_sum")
    acts_on_empty_rounds: ClassVar[bool] = False
    """Whether the server runs `receive` for a round without clients, or with none that arrives; the
    mean differences are 0."""

    keeps_residual: ClassVar[bool] = False
    """Whether a client adds its residual, the part of earlier changes that it has not sent.

    Its differences then have no bound. Every later stage must be a contraction."""
    sends_coordinates: ClassVar[bool] = True
    """Whether clients send coordinates of the differences, which later stages can encode."""
    leaves_buffers: ClassVar[bool] = False
    """Whether the stage leaves buffers, such as BatchNorm's running statistics, as they are.

    Coders do so, because the decoded value of a variance may be below 0. Clients then send
    buffers with all their bytes."""
    sums_numbers: ClassVar[bool] = False
    """Whether its server part reads only the sum of the `scalars` that clients send.

    Stages that read the `scalars` of single clients do not go with masks."""

    @property
    def bounds_norm(self) -> bool:
        """True if the stage never increases the Euclidean norm of differences.

        Stages after a clip that a claim of privacy rests on must have it. The default is True for
        stages without a part at the client. A subclass that overrides code must state it again.
        """
        return type(self).send is Stage.send

    @property
    def is_contraction(self) -> bool:
        """True if ||x - c(x)|| <= s ||x|| with s < 1, in expectation, as error feedback needs.

        The default is True for stages without a part at the client.
        """
        return type(self).send is Stage.send

    @property
    def fits_downlink(self) -> bool:
        """True if it can be a stage of the down-link: a contraction with its own `send`.

        On the down-link the server sends: `view` has no client state, and its client is -1.
        """
        return self.is_contraction and type(self).send is not Stage.send

    @property
    def shares_places(self) -> bool:
        """True if all clients of a pass send values of the same places.

        Masks let the server see sums alone, and only sums of such values stay sparse.
        """
        return False

    @property
    def secure_sum(self) -> SecureSum | None:
        """Secure sum, which shows the server only sums over clients; None for other stages.

        The engine then masks the uploads, counts the cost of the masks, and refuses components that
        need the uploads of single clients.
        """
        return None

    @property
    def privacy(self) -> PrivacyClaim | None:
        """The differential privacy of clients that it claims; None claims none.

        The engine accounts it, refuses components that the accountant does not cover, and ends a
        run before the round that would exceed its epsilon. A subclass that overrides code of a
        class with a claim must state its own claim; else it is refused.
        """
        return None

    @returns(
        "a list of Tells", lambda hidden, *_: all(isinstance(tells, Tells) for tells in hidden)
    )
    def hides(self) -> Collection[Tells]:
        """Return the kinds of values that the server cannot see, which no component may read."""
        return (SINGLE,) if self.secure_sum else ()

    @returns("a Traffic", Traffic)
    def beside(self, clients: int) -> Traffic:
        """Return the traffic of each of n clients of a pass in addition to values."""
        return self.secure_sum.beside(clients) if self.secure_sum else Traffic()

    def with_noise(self, noise: float) -> Stage:
        """Return this stage with the noise multiplier that fits the epsilon of its claim."""
        return self

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether the stage does anything at its settings; one that does not is left out.

        Args:
            behind: The later stages with an effect, in order.
        """
        return True

    @returns("a dict of numbers or arrays", are_arrays)
    def init(self) -> State:
        """Return the stage's state on the server before the first round: numbers, or arrays."""
        return {}

    @returns("a stage of its class", lambda returned, stage, _: isinstance(returned, type(stage)))
    def at(self, state: State) -> Stage:
        """Return this stage as clients and server apply it next.

        Args:
            state: Its state on the server.
        """
        return self

    def send(self, view: View, upload: Upload) -> Upload:
        """Return the upload of a client.

        Args:
            view: The client; `view.generator` is keyed by the stage, too, and `view.state` has the
                groups that this stage last returned for the client, none at first.
            upload: Differences, as `sums`, with the client's `samples` and the `encoding` so far;
                its other parts are empty.

        Returns:
            An upload; its `sums` must have the same groups, names and shapes. It may have `state`,
            groups that the client keeps for this stage until the stage returns others; `metrics`,
            which are columns of `clients.parquet`; `scalars`, which are sent, and are columns, too;
            and another `encoding`, which has the bytes of the scalars.
        """
        return upload

    def remember(self, view: View, returned: Upload, sent: Groups) -> Groups:
        """Return groups that the client keeps for this stage, once all stages have run.

        Args:
            view: The client, as `send` saw it.
            returned: The upload that `send` returned.
            sent: The differences after the last stage, as the server will decode them.
        """
        return {}

    @returns("an Encoding", Encoding)
    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return the encoding of a client's differences after this stage.

        The engine counts its bytes as sent, and a virtual clock charges them before clients train.
        Where they depend on the differences, `send` also returns `Upload.encoding`. The engine then
        counts that one; the clock still charges this one.

        Args:
            sent: Their encoding before this stage.
            layout: Names (`group/name`), dtypes and shapes of the differences, as they would be
                sent without stages.
            client: The client.
        """
        return sent

    def receive(self, received: Received, reduced: Reduced) -> Reduced:
        """Return the result that the server goes on with.

        Args:
            received: The pass.
            reduced: Its result. The `means` of groups that stages change are differences, in
                asynchronous rounds from the newest model, wherever clients started. `scalars` are
                this stage's, one value for each client that arrived.

        Returns:
            A result; its `means` must have the same groups, names and shapes.
        """
        return reduced

    @returns(
        "its state, a dict of numbers or arrays, and a dict of metrics",
        lambda pair, *_: are_arrays(pair[0]) and isinstance(pair[1], Mapping),
    )
    def update(self, received: Received, reduced: Reduced) -> tuple[State, Mapping[str, float]]:
        """Return the stage's next state on the server, and metrics of the round.

        It has the arguments of `receive`, which runs first. Asynchronous rounds keep nothing.
        """
        return {}, {}

    def has_client_part(self) -> bool:
        """Return whether it changes uploads, or clients keep anything for it."""
        kind = type(self)
        return (kind.send, kind.remember) != (Stage.send, Stage.remember)

    def declares_bytes(self) -> bool:
        """Return whether the stage changes how differences are encoded."""
        return type(self).encoded is not Stage.encoded

    def has_server_part(self) -> bool:
        """Return whether it has a `receive` or an `update`."""
        kind = type(self)
        return (kind.receive, kind.update) != (Stage.receive, Stage.update)


STAGES: Registry[Stage] = Registry("stage", Stage, key="channel.{}")
Stages = Mapping[str, Stage]
"""Stages by name, in the order in which clients apply them."""


def with_effect(stages: Stages) -> dict[str, Stage]:
    """Return the stages that have an effect, in order."""
    effective: dict[str, Stage] = {}
    for name, stage in reversed([*stages.items()]):
        if stage.has_effect([*effective.values()][::-1]):
            effective[name] = stage
    return dict(reversed([*effective.items()]))


def encoded_by(stage: Stage, sent: Encoding, layout: Layout, client: int) -> Encoding:
    """Return the encoding that a stage declares for a client.

    Raises:
        SettingsError: it fails, or declares something else.
    """
    return with_sharing(stage, sent, call(stage, Stage.encoded, sent, layout, client))


def with_sharing(stage: Stage, before: Encoding, encoding: Encoding) -> Encoding:
    """Return the encoding after a stage, marked by whether clients share the places of values.

    Args:
        stage: The stage.
        before: The encoding before it.
        encoding: The encoding that the stage returned.
    """
    if encoding.values == before.values or stage.shares_places:
        return encoding
    return replace(encoding, is_shared=False)


def beside_of(stages: Stages, clients: int) -> Traffic:
    """Return the traffic of each of n clients of a pass for stages, in addition to values."""
    traffics = [Traffic(), *(call(stage, Stage.beside, clients) for stage in stages.values())]
    up, down = (sum(getattr(traffic, way) for traffic in traffics) for way in ("up", "down"))
    return Traffic(up, down, max(traffic.trips for traffic in traffics))


def declared(stages: Stages, encoded: Encoded, client: int) -> Encoded:
    """Return the encoding of a client's differences after stages, as these declare it.

    Args:
        stages: The stages.
        encoded: The encoding without stages.
        client: The client.
    """
    for stage in stages.values():
        before, seen = encoded.seen_by(leaves_buffers=stage.leaves_buffers)
        after = encoded_by(stage, before, seen, client)
        encoded = encoded.behind(after, leaves_buffers=stage.leaves_buffers)
    return encoded


def sent_bytes(encoded: Encoded, total: int) -> int:
    """Return the bytes that a client sends, given the encoding of its differences.

    Args:
        encoded: The encoding, declared or as it was sent.
        total: Bytes that it would send without stages.
    """
    encoding, layout = encoded.whole, encoded.layout
    if encoding == Encoding.of(layout):  # the method may send less than its tensors
        return total
    return max(total - layout.nbytes, 0) + encoding.nbytes
