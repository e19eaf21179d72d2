"""Table of the concerns of an upload, in order: the hook of each and its check before a run.

A new concern is a file in this folder and a row of the table. The engine calls the hooks before a
pass, in this order. Clients do their parts in the same order, the server does its parts in reverse.
The virtual clock charges the work and the bytes of the rows before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.config import Settings
from raysim.driver.clock.clock import in_no_time
from raysim.driver.rounds.selecting import with_report
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.aggregating import check_aggregation, with_aggregation
from raysim.driver.uploads.attacking import check_attack, of_version, recorded, with_attack
from raysim.driver.uploads.channel import with_stages
from raysim.driver.uploads.client_models import with_kept_models
from raysim.driver.uploads.dispatch import Dispatch, PassHook
from raysim.driver.uploads.masking import check_masks, with_masks
from raysim.driver.uploads.optimizer_state import with_kept_optimizers
from raysim.driver.uploads.own_loop import with_late_loop, with_own_loop
from raysim.federation.federation import Federation

if TYPE_CHECKING:
    from raysim.driver.rounds.run import OpenRound

Note = Callable[[str], None]
"""Shows the user one line."""


class Concern(NamedTuple):
    """Row of the table.

    Attributes:
        name: Its name.
        hook: Returns the hook for a round; None where the concern does nothing in it.
        check: Checks the concern before a run starts.
        late: Where rounds overlap, changes the pass from a version, given the version's number and
            cohort.
        recorded: Returns the values that a run's records hold of it.
        on_empty_rounds: Whether the hook is called for rounds without clients, too.
    """

    name: str
    hook: Callable[[OpenRound], PassHook | None]
    check: Callable[[RunParts, Federation, Note], None] = lambda *parts: None
    late: Callable[[Settings, int, Sequence[int], Dispatch], Dispatch] = (
        lambda run, number, cohort, dispatch: dispatch
    )
    recorded: Callable[[Settings], Mapping[str, Any]] = lambda settings: {}
    on_empty_rounds: bool = False


ORDER = (
    Concern("downlink", lambda begun: begun.downlink.before_pass if begun.downlink else None),
    Concern("masks", lambda begun: partial(with_masks, begun.runner), check_masks),
    Concern(
        "clock",
        lambda begun: begun.clock.before_pass if begun.clock else partial(in_no_time, begun.runner),
    ),
    Concern(
        "report",
        lambda begun: partial(with_report, begun.settings.selection) if begun.selection else None,
        late=lambda run, number, cohort, dispatch: with_report(run.selection, dispatch),
    ),
    Concern("analyses", lambda begun: begun.analyses.before_pass if begun.is_due else None),
    Concern(
        "models",
        lambda begun: (
            partial(with_kept_models, begun.models, begun.now.number + 1) if begun.models else None
        ),
    ),
    Concern(
        "channel",
        lambda begun: begun.channel.before_pass if begun.channel else None,
        late=lambda run, number, cohort, dispatch: with_stages(run.stages, dispatch),
        on_empty_rounds=True,
    ),
    Concern("optimizer", lambda begun: partial(with_kept_optimizers, begun.runner)),
    Concern(
        "own loop",
        lambda begun: partial(with_own_loop, begun.runner),
        late=lambda run, number, cohort, dispatch: with_late_loop(run, dispatch),
    ),
    Concern(
        "attack",
        lambda begun: partial(with_attack, begun.runner, begun.now.cohort),
        check_attack,
        of_version,
        recorded,
    ),
    Concern(
        "aggregation",
        lambda begun: partial(
            with_aggregation, begun.settings.aggregation, begun.settings.expected_cohort
        ),
        check_aggregation,
        on_empty_rounds=True,
    ),
)
