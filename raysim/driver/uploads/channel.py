"""Stages of the channel on a pass: after a client's `finish`, and after the aggregation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raysim.api.channel import (
    Received,
    Stage,
    Stages,
    declared,
    encoded_by,
    sent_bytes,
    with_sharing,
)
from raysim.api.components import call, called, calling, shown
from raysim.api.differences import layout_of, same_shapes
from raysim.api.method import Round
from raysim.api.rules import Reduced, Trained, Upload, View
from raysim.api.state import State, as_arrays, read_only
from raysim.config import Settings
from raysim.driver.rounds.hiding import as_seen
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.driver.uploads.upload_differences import send_changed
from raysim.errors import SettingsError
from raysim.numbers.encoding import Encoded, Encoding
from raysim.numbers.given import Given
from raysim.numbers.seeds import owned_generator
from raysim.numbers.tensors import (
    Groups,
    Layout,
    Tensors,
    flatten,
    unflatten,
)
from raysim.storage.client_states import OF_STAGE, owner_of
from raysim.storage.column_names import OF_CLIENTS, check_metrics, check_names
from raysim.storage.run_state import RunState

SHOWN = 5
"""Most names that an error message lists."""
Named = tuple[tuple[str, Stage], ...]
"""Stages by name, in order."""


def with_stages(
    stages: Stages, dispatch: Dispatch, server: Callable[[Reduced], Reduced] | None = None
) -> Dispatch:
    """Return a pass whose clients send through stages; `server` is the server's part."""
    named, bases, after = tuple(stages.items()), dispatch.moved_from, None
    if any(stage.has_client_part() for stage in stages.values()) and bases:
        after = partial(send_changed, bases, partial(_staged, named))
    elif stages and bases:
        after = partial(_encode, named, tuple(bases.items()))
    return dispatch.with_step(UploadStep(after=after, server=server))


@dataclass
class Channel:
    """Stages of the channel in one round.

    Attributes:
        settings: The run's settings.
        stages: The stages that have an effect.
        now: The input of the method's round.
        states: The server's states of the stages, by their names.
    """

    settings: Settings
    stages: Stages
    now: Round
    states: dict[str, State]
    _metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    _passes: int = 0

    def before_pass(self, dispatch: Dispatch) -> Dispatch:
        """Return a pass whose clients send through the stages."""
        return with_stages(self._present, dispatch, partial(self._received, dispatch))

    @property
    def _present(self) -> dict[str, Stage]:
        """The stages with their current states."""
        return {name: at_state(stage, self.states.get(name)) for name, stage in self.stages.items()}

    def _received(self, dispatch: Dispatch, reduced: Reduced) -> Reduced:
        """Return the result after the server's part of the stages."""
        number = self._passes
        self._passes += 1
        passed_by = not reduced.means.keys() & dispatch.moved_from
        if passed_by and (reduced.means or reduced.rows) and self._changes_what_is_sent:
            self._note_that_nothing_changes(number)
        stages = [(n, s) for n, s in self._present.items() if s.has_server_part()]
        if not stages:
            return reduced
        differences = dispatch.differences(reduced)
        means: Groups = differences.changes
        places = (self.now.number, number)
        for name, stage in stages:
            source = partial(owned_generator, self.settings.seed, f"channel/{name}", places)
            seen_by = partial(as_seen, self.settings, self.stages.get(name, stage))
            of_round = (self.now.number, self.now.cohort, self.now.clients)
            received = seen_by(Received(*of_round, source, self.settings.expected_cohort))
            of_own = of_stage(name, reduced.scalars)
            for_stage = seen_by(replace(reduced, means=means, scalars=of_own))
            seen = replace(for_stage, means=_copies(means))  # `update` gets the means before
            means = received_through(stage, received, seen).means
            if differences.changes:
                self._update(name, stage, received, for_stage)
        scalars = {n: v for n, v in reduced.scalars.items() if not owner_of(n, self.stages)}
        return replace(reduced, means=differences.means_with(means), scalars=scalars)

    def _update(self, name: str, stage: Stage, received: Received, reduced: Reduced) -> None:
        """Update the server's state of a stage.

        Raises:
            SettingsError: the stage fails, or a metric has the name of another stage's.
        """
        state, metrics = updated_by(stage, received, reduced)
        if state:
            self.states[name] = state
        others = [
            metric for owner, names in self._metrics.items() if owner != name for metric in names
        ]
        check_metrics(metrics, others, called(stage))
        self._metrics[name] = metrics

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the round that stages report."""
        return {
            name: value for metrics in self._metrics.values() for name, value in metrics.items()
        }

    @property
    def _changes_what_is_sent(self) -> bool:
        """True if a stage may change differences."""
        return any(s.has_client_part() or s.has_server_part() for s in self.stages.values())

    def _note_that_nothing_changes(self, number: int) -> None:
        """Note, in the first round, that a pass has no differences for the stages."""
        if not self.now.number:
            self.now.note(
                f"channel: {called(self.settings.method)} sends no differences in pass {number + 1}"
                " of a round: no stage changes what is sent"
            )


def of_stage(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named values of a stage, under the names that the stage gave them."""
    prefix = f"{name}{OF_STAGE}"
    return {n.removeprefix(prefix): v for n, v in values.items() if owner_of(n, [name])}


def at_state(stage: Stage, state: State | None) -> Stage:
    """Return a stage with its state on the server.

    Raises:
        SettingsError: the stage fails, or returns something else.
    """
    if not state:
        return stage
    return call(stage, Stage.at, read_only(state))


def first_states(stages: Stages) -> dict[str, State]:
    """Return the server's states of stages before the first round; empty states are left out.

    Raises:
        SettingsError: a stage fails, or returns something else.
    """
    states: dict[str, State] = {}
    for name, stage in stages.items():
        if state := call(stage, Stage.init):
            states[name] = as_arrays(state)
    return states


def states_of(run: RunState, stages: Iterable[str]) -> dict[str, State]:
    """Return the server's states of a run's stages, by their names."""
    kept = {name: run.kept(_owner(name)) for name in stages}
    return {name: state for name, state in kept.items() if state}


def by_owner(states: Mapping[str, State]) -> dict[str, State]:
    """Return states of stages by their owners in a run's state."""
    return {_owner(name): state for name, state in states.items()}


def _owner(stage: str) -> str:
    return f"channel.{stage}"


def updated_by(
    stage: Stage, received: Received, reduced: Reduced
) -> tuple[State, Mapping[str, float]]:
    """Return the server's next state of a stage after a pass, and its metrics.

    Raises:
        SettingsError: the stage fails, or returns something else.
    """
    state, metrics = call(stage, Stage.update, received, reduced)
    return as_arrays(state), metrics


def _staged(
    stages: Named, view: View, upload: Upload, changed: Upload, layout: Layout
) -> tuple[Groups, Mapping[str, Any]]:
    """Return a client's differences after the last stage, and the stages' other values."""
    sent = through_stages(stages, view, changed, layout, taken={*upload.scalars, *upload.metrics})
    return sent.changes, {
        "scalars": {**upload.scalars, **sent.scalars},
        "metrics": {**upload.metrics, **sent.metrics},
        "state": {**upload.state, **sent.state},
        "bytes_up": sent_bytes(sent.encoded, upload.sent_bytes()),
    }


def _encode(
    stages: Named, bases: Sequence[tuple[str, str]], view: View, trained: Trained, upload: Upload
) -> Upload:
    """Return an unchanged upload with the bytes that the stages declare."""
    layout = layout_of(upload.sums, dict(bases), view.broadcast, params=view.params)
    encoded = declared(dict(stages), Encoded.of(layout, view.buffers), view.client)
    return replace(upload, bytes_up=sent_bytes(encoded, upload.sent_bytes()))


@dataclass(frozen=True)
class Sent:
    """Differences after the last stage, with the stages' other values.

    Attributes:
        changes: The differences.
        encoded: Their encoding.
        metrics: Numbers of the client that stages report.
        state: Groups that the client keeps for stages.
        scalars: Numbers that the client sends for stages.
    """

    changes: Groups
    encoded: Encoded
    metrics: Mapping[str, float | Tensor]
    state: Groups
    scalars: Mapping[str, float]


def through_stages(
    stages: Named, view: View, sent: Upload, layout: Layout, *, taken: Collection[str] = ()
) -> Sent:
    """Send a client's differences through stages.

    Args:
        stages: The stages, in order.
        view: The client, with its state for the stages.
        sent: The differences, and the number of the client's samples.
        layout: Layout of the differences before the stages.
        taken: Names of the numbers that the method reports.

    Raises:
        SettingsError: a stage fails, or returns something else.
    """
    encoded, metrics = Encoded.of(layout, view.buffers), dict[str, float | Tensor]()
    returned: list[tuple[str, Stage, View, Upload]] = []
    scalars, state = dict[str, float](), dict[str, Tensors]()
    for name, stage in stages:
        leaves, stage_view = stage.leaves_buffers, _view_of(name, view)
        encoding, sizes = encoded.seen_by(leaves_buffers=leaves)
        sums, left = _parted(sent.sums, view.buffers if leaves else ())
        seen = replace(sent, sums=sums, encoding=encoding)
        after = _sent_through(stage, stage_view, seen)
        encoding = _encoding_behind(stage, seen, after, sizes, view.client)
        encoded = encoded.behind(encoding, leaves_buffers=leaves)
        sent = replace(sent, sums=unflatten(flatten(after.sums) | left) if left else after.sums)
        _check_metrics(stage, after, {*taken, *metrics})
        metrics |= after.metrics
        scalars |= {f"{name}{OF_STAGE}{key}": value for key, value in after.scalars.items()}
        if type(stage).remember is not Stage.remember:  # a later stage may change `after` in place
            after = replace(after, sums=_copies(after.sums))
        returned.append((name, stage, stage_view, after))
    for name, stage, stage_view, after in returned:
        sums, _ = _parted(sent.sums, view.buffers if stage.leaves_buffers else ())
        kept = {**after.state, **_remembered(stage, stage_view, after, sums)}
        state |= {f"{name}{OF_STAGE}{group}": tensors for group, tensors in kept.items()}
    return Sent(sent.sums, encoded, metrics, state, scalars)


def _copies(sums: Groups) -> Groups:
    return {group: {n: d.clone() for n, d in tensors.items()} for group, tensors in sums.items()}


def _parted(sums: Groups, names: Collection[str]) -> tuple[Groups, dict[str, Tensor]]:
    """Return differences without named tensors, and these tensors by `group/name`."""
    if not names:
        return sums, {}
    parted: Groups = {
        group: {name: d for name, d in tensors.items() if name not in names}
        for group, tensors in sums.items()
    }
    left = {f"{g}/{n}": d for g, tensors in sums.items() for n, d in tensors.items() if n in names}
    return {group: tensors for group, tensors in parted.items() if tensors}, left


def _encoding_behind(
    stage: Stage, before_it: Upload, after: Upload, layout: Layout, client: int
) -> Encoding:
    """Return the encoding of differences after a stage: as returned, or else as declared."""
    before = before_it.encoding or Encoding.of(layout)
    expected = encoded_by(stage, before, layout, client)
    if after.encoding is None or after.encoding is before_it.encoding:
        return expected
    return with_sharing(stage, before, after.encoding)


def _check_metrics(stage: Stage, after: Upload, taken: Collection[str]) -> None:
    """Check the names of the numbers that a stage reports of a client.

    Raises:
        SettingsError: a name is a column of the engine, or a number of the method or another stage.
    """
    check_names(after.metrics, OF_CLIENTS, (), f"{called(stage)}: its number")
    if both := sorted(after.metrics.keys() & taken):
        raise SettingsError(
            f"{called(stage)}: its number {both[0]!r} has the name of one that the method or"
            " another stage reports; choose another name"
        )


def _view_of(name: str, view: View) -> View:
    """Return a client's view for a stage, with the stage's own generators and state.

    Args:
        name: The stage's name.
        view: The client, with its state for all stages.
    """
    prefix = f"{name}{OF_STAGE}"
    return replace(
        view,
        generator=partial(_of_stage, view.generator, name),
        pass_generator=partial(_of_stage, view.pass_generator, name),
        state={g.removeprefix(prefix): t for g, t in view.stages.items() if owner_of(g, [name])},
        stages={},
    )


def _sent_through(stage: Stage, view: View, before: Upload) -> Upload:
    """Send a client's differences through one stage.

    Args:
        stage: The stage.
        view: The client, as the stage sees it.
        before: Differences and their encoding.

    Raises:
        SettingsError: the stage fails, or returns something else or other groups.
        ChangedInputError: the stage changes the client's input or state in place.
    """
    left = Given.of_view(vars(view))
    with calling(stage, "send"):
        after = stage.send(view, before)
    left.check_left("send", called(stage))
    if not isinstance(after, Upload) or not same_shapes(after.sums, before.sums):
        raise _other_groups(stage, "send", after, "sums", before.sums)
    _check_state(stage, "send", after.state)
    if not isinstance(after.encoding, Encoding | None):
        raise SettingsError(
            f"{called(stage)}: the encoding that send returns must be an Encoding; is"
            f" {shown(after.encoding)}"
        )
    return after


def _remembered(stage: Stage, view: View, returned: Upload, sent: Groups) -> Groups:
    """Return a client's state for a stage, given the differences after the last stage.

    Raises:
        SettingsError: the stage fails, or returns something else.
    """
    with calling(stage, "remember"):
        kept = stage.remember(view, returned, sent)
    _check_state(stage, "remember", kept)
    return kept


def _check_state(stage: Stage, function: str, state: Any) -> None:
    """Check that a client can keep the state that a stage returns.

    Raises:
        SettingsError: the client cannot.
    """
    if not _are_groups(state):
        raise SettingsError(
            f"{called(stage)}: the state that {function} returns must map names of groups, without"
            f" {OF_STAGE!r} and '/', to mappings from names to tensors; is {shown(state)}"
        )


def _are_groups(state: Any) -> bool:
    """Return whether a state is groups of tensors, with names that files can have."""
    return isinstance(state, Mapping) and all(
        isinstance(group, str)
        and not {OF_STAGE, "/"} & {*group}
        and isinstance(tensors, Mapping)
        and all(isinstance(n, str) and isinstance(t, Tensor) for n, t in tensors.items())
        for group, tensors in state.items()
    )


def received_through(stage: Stage, received: Received, before: Reduced) -> Reduced:
    """Return the result after the server's part of one stage.

    Raises:
        SettingsError: the stage fails, or returns other groups than it received.
    """
    with calling(stage, "receive"):
        after = stage.receive(received, before)
    if not isinstance(after, Reduced) or not same_shapes(after.means, before.means):
        raise _other_groups(stage, "receive", after, "means", before.means)
    return after


def _other_groups(
    stage: Stage, function: str, after: Any, part: str, expected: Groups
) -> SettingsError:
    groups = getattr(after, part, None)
    names = sorted(flatten(groups)) if isinstance(groups, Mapping) else shown(after)
    return SettingsError(
        f"{called(stage)}: the {part} that {function} returns must have the same names and shapes"
        f" as its input, {sorted(flatten(expected))[:SHOWN]}; has {names[:SHOWN]}"
    )


def _of_stage(generator: Callable[[str], torch.Generator], stage: str, purpose: str) -> Any:
    return generator(f"channel/{stage}/{purpose}")
