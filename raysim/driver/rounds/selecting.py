"""Selection of a round's clients: the component's input, and checks of the selected clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from raysim.api.components import call, called
from raysim.api.rules import Trained, Upload, View, samples_of
from raysim.api.selection import History, Sampling, Selection
from raysim.api.state import State, as_arrays, read_only
from raysim.config import Settings
from raysim.driver.clock.clock import VirtualClock, VirtualRound
from raysim.driver.rounds.hiding import as_seen
from raysim.driver.rounds.round_log import RoundLog
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import SettingsError
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.seeds import stream
from raysim.samples.participants import Participants
from raysim.storage.column_names import OF_CLIENTS, check_names
from raysim.storage.run_state import RunState

SHOWN = 10
"""Most clients that an error message lists."""


def generator(seed: int, keys: Sequence[int], purpose: str = "") -> np.random.Generator:
    """Return a generator for a selection's draws.

    Args:
        seed: The run's seed.
        keys: Keys of the draw: the round, and in asynchronous rounds the number of a further draw
            of the round.
        purpose: A further key.
    """
    return stream(seed, f"cohort/{purpose}" if purpose else "cohort", *keys)


def sampling_of(
    settings: Settings,
    before: RunState,
    sizes: Integers,
    clock: VirtualClock | None,
    tick: int = 0,
) -> Sampling:
    """Return the input of a selection before a round.

    Args:
        settings: The run's settings.
        before: The committed state before the round.
        sizes: Samples that each client trains on [K].
        clock: The run's clock, if it has one.
        tick: Virtual time at which the round begins.
    """
    local = settings.local
    plain = Sampling(
        number=before.number,
        clients=len(sizes),
        fraction=settings.fraction,
        size=settings.cohort_size,
        wanted=settings.cohort_size,
        samples=sizes,
        generator=partial(generator, settings.seed, [before.number]),
        seconds=lambda clients: _as_floats(samples_of(local.work, sizes[clients], local.batching)),
        state=read_only(before.kept("selection")),
        history=before.history.for_reading(),
    )
    if clock is None:
        return plain
    deployed = partial(settings.method.deployed, before.state)
    return replace(
        plain,
        wanted=plain.size + clock.policy.extra,
        seconds=lambda clients: clock.plain_seconds(deployed(), clients),
        available=partial(clock.fleet.available, tick=tick),
        waits=clock.policy.waits,
    )


def _as_floats(samples: Integers) -> Floats:
    return samples.astype(np.float64)


def select(selection: Selection, sampling: Sampling) -> list[int]:
    """Return the clients that a selection selects, in its order.

    Raises:
        SettingsError: the selection fails, or returns clients that it may not select.
    """
    chosen = [int(client) for client in call(selection, Selection.select, sampling)]
    if len({*chosen}) < len(chosen) or not all(0 <= c < sampling.clients for c in chosen):
        raise _bad(
            selection,
            sampling,
            f"must be distinct clients from 0 to {sampling.clients - 1}",
            chosen,
        )
    if sampling.members is not None and not _may_start(sampling.members, sampling.busy, chosen):
        raise _bad(selection, sampling, "must be clients of the tier that are not busy", chosen)
    if len(chosen) > sampling.wanted and not selection.may_be_empty:
        raise _bad(selection, sampling, f"must be at most {sampling.wanted} clients", chosen)
    if not sampling.waits and chosen and not (here := sampling.available(np.array(chosen))).all():
        away = chosen[int(np.argmin(here))]
        raise _bad(selection, sampling, f"must be available; client {away} is away", chosen)
    return chosen


def _may_start(members: Integers, busy: Collection[int], chosen: Sequence[int]) -> bool:
    """Return whether clients are members and idle; takes log time in the number of members."""
    places = np.searchsorted(members, chosen).clip(max=len(members) - 1)
    are_members = bool((members[places] == chosen).all())
    return are_members and not any(client in busy for client in chosen)


def _bad(
    selection: Selection, sampling: Sampling, rule: str, chosen: Sequence[int]
) -> SettingsError:
    what = f"the clients that it selects for round {sampling.number + 1} {rule}"
    return SettingsError(f"{called(selection)}: {what}; got {chosen[:SHOWN]}")


@dataclass(frozen=True)
class RoundSelection:
    """Selection of one round; clients report to it in passes that train.

    If some clients are kept out of training, the selection does not know them: it numbers the
    others from 0.

    Attributes:
        settings: The run's settings.
        sampling: The input of the selection.
        selected: The selected clients by the selection's numbers, in its order.
    """

    settings: Settings
    sampling: Sampling
    selected: Sequence[int]

    @classmethod
    def of(
        cls,
        settings: Settings,
        sampling: Sampling,
        clock: VirtualClock | None = None,
        timed: VirtualRound | None = None,
    ) -> RoundSelection:
        """Select the clients of a round; if none is available, wait until one is.

        Args:
            settings: The run's settings.
            sampling: The clients as the run knows them before the round.
            clock: The run's clock, if it has one.
            timed: The round in virtual time; waiting advances it.

        Raises:
            SettingsError: the selection fails, or selects no client although one is available.
        """
        selection, tick = settings.selection, timed.tick if timed else 0
        participants = settings.participants
        selected = select(selection, seen := _as_seen(settings, sampling))
        if not selected and clock:
            later = clock.fleet.first_available(participants.numbers, tick)
            if later > tick:
                available = partial(clock.fleet.available, tick=later)
                seen = _as_seen(settings, replace(sampling, available=available))
                selected = select(selection, seen)
                if timed:
                    timed.tick = later
        if not selected and not selection.may_be_empty:
            raise _bad(selection, seen, "must be at least one client", selected)
        chosen = cls(settings, seen, selected)
        if timed:
            wanted = len(selected) if selection.may_be_empty else sampling.size
            timed.ask(participants.at(selected).tolist(), wanted)
        return chosen

    @property
    def cohort(self) -> tuple[int, ...]:
        """The selected clients, ascending."""
        return tuple(self.settings.participants.at(sorted(self.selected)).tolist())

    def after(self, log: RoundLog) -> tuple[State, Mapping[str, float]]:
        """Return the selection's state after the round, and its metrics.

        Args:
            log: Figures of the round's passes.

        Raises:
            SettingsError: the selection fails.
        """
        selection = self.settings.selection
        if type(selection).update is Selection.update:  # it uses no results
            return self.sampling.state, {}
        results = log.results()
        results = replace(results, clients=self.settings.participants.ranks(results.clients))
        seen = as_seen(self.settings, selection, results)
        state, metrics = call(selection, Selection.update, self.sampling, self.selected, seen)
        return as_arrays(state), metrics


def _as_seen(settings: Settings, sampling: Sampling) -> Sampling:
    """Return a selection's input: the participants, without the values that the run withholds."""
    return as_seen(settings, settings.selection, _among(settings.participants, sampling))


def _among(participants: Participants, sampling: Sampling) -> Sampling:
    """Return a selection's input restricted to the participants, which it knows by rank."""
    if not len(participants.new):
        return sampling
    history = sampling.history and History(
        *map(participants.of, (sampling.losses, sampling.last_round, sampling.times))
    )
    return replace(
        sampling,
        clients=len(participants),
        samples=participants.of(sampling.samples),
        seconds=lambda ranks: sampling.seconds(participants.at(ranks)),
        available=lambda ranks: sampling.available(participants.at(ranks)),
        history=history,
    )


def with_report(selection: Selection, dispatch: Dispatch) -> Dispatch:
    """Return a pass in which clients report to the selection, if they train in it."""
    if type(selection).report is Selection.report or not dispatch.epochs or dispatch.label:
        return dispatch
    return dispatch.with_step(UploadStep(after=partial(_reported, selection)))


def _reported(selection: Selection, view: View, trained: Trained, upload: Upload) -> Upload:
    """Return the method's upload with a client's report to the selection."""
    report = selection.report(view, trained)
    method_names = {*upload.scalars, *upload.metrics}
    check_names(method_names, OF_CLIENTS, [*report], "its number")
    return replace(upload, metrics={**upload.metrics, **report})
