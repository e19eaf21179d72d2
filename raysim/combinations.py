"""Table of rules on what goes with what, read as settings are parsed and as passes run.

A rule refuses two kinds of a run's parts that do not go together. A kind finds those parts of a run
that are of it, by what components state or what a pass shows. A concern that does not go with
others adds its kinds and rows here, and no check elsewhere. Limits that are numbers stay with their
component.

`raysim list rules` prints the table, `raysim list rules NAME` the rows of one component.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from raysim.analysis import ANALYSES
from raysim.analysis.base import Analysis
from raysim.api.channel import Stage, with_effect
from raysim.api.components import call, called, calling, set_apart, set_on_classes, why_lost
from raysim.api.differences import moving_names
from raysim.api.method import Method
from raysim.api.own_loop import OWN_LOOP, named_loop
from raysim.api.privacy import Draw, PrivacyClaim
from raysim.api.rules import CHANGE
from raysim.api.selection import Selection
from raysim.api.withheld import SINGLE
from raysim.errors import RuleError
from raysim.numbers.tensors import Groups
from raysim.server.mean import ModelMean
from raysim.user_input import as_typed

if TYPE_CHECKING:
    from raysim.config import Settings

UP, WAYS = ("channel",), ("channel", "downlink")
"""Settings that have stages."""


class Part(NamedTuple):
    """A part of a run that is of some kind.

    Attributes:
        setting: The setting that has it, as it is typed.
        words: Its own words, for the reason or the advice of a rule.
        way: Among stages, the setting that has them.
        place: Its place among them.
        lost: End of a line: why it has lost a promise of its base.
    """

    setting: str
    words: str = ""
    way: str = ""
    place: float = 0
    lost: str = ""


@dataclass(frozen=True)
class Seen:
    """Pass of a run as it is seen, as its method yields it or as its result arrives.

    Attributes:
        settings: The run's settings.
        pass_: The pass, as it is dispatched.
        cohort: Clients of the round.
        is_first: Whether the pass is the first of its round.
        earlier: Number of the round's earlier passes whose means have arrived.
        means: The means that have arrived, by group.
        rows: Names of the rows that clients have sent, without figures of analyses.
        numbers: Names of the numbers that they have sent for the method.
        of_stages: Names of the numbers that they have sent for stages and own loops, by owner.
        keeping: Stages and own loops for which clients or the server keep something.
        keeps: Whether clients keep a state, whoever's.
    """

    settings: Settings
    pass_: Any
    cohort: Collection[int] = ()
    is_first: bool = True
    earlier: int = 0
    means: Groups = field(default_factory=dict)
    rows: Sequence[str] = ()
    numbers: Sequence[str] = ()
    of_stages: Mapping[str, str] = field(default_factory=dict)
    keeping: Collection[str] = ()
    keeps: bool = False


Find = Callable[[Any], Iterable[Part]]
"""Returns the parts of a run that are of a kind, given its settings, or a `Seen`."""
Moment = Literal["settings", "pass", "result", "rehearsed"]
"""When a kind is found: as settings are parsed, a pass is yielded, its result arrives, or a
rehearsal ends."""


class Kind(NamedTuple):
    """A kind of parts: its name, in the plural, what finds them, and when."""

    name: str
    find: Find
    at: Moment = "settings"


@dataclass(frozen=True)
class Rule:
    """Refusal of two kinds of parts in one run.

    Attributes:
        one: The kind of the part that the line names first.
        other: The kind with which it does not go.
        why: The reason, a clause on the other part, with `{words}` of one of the two.
        advice: What to do, with `{words}`; empty where the reason says it.
        how: Whether it goes nowhere with the other, or as a stage not before or after it.
    """

    one: Kind
    other: Kind
    why: str
    advice: str = ""
    how: Literal["with", "before", "after"] = "with"

    @property
    def at(self) -> Moment:
        """The moment at which both of its kinds can be found."""
        return self.other.at if self.one.at == "settings" else self.one.at

    def lines(self, settings: Settings, seen: Seen | None = None) -> Iterator[str]:
        """Yield a line for each pair of parts of a run that breaks the rule."""
        for one in self.one.find(settings if self.one.at == "settings" else seen):
            for other in self.other.find(settings if self.other.at == "settings" else seen):
                if self._refuses(one, other):
                    does = "does not go" if self.how == "with" else "cannot stand"
                    why = self.reason(one.words or other.words) + one.lost + other.lost
                    yield f"{one.setting}: {does} {self.how} {other.setting}, {why}"

    def reason(self, words: str = "...") -> str:
        """Return the reason and the advice, given what one of the two parts says itself."""
        return "; ".join(filter(None, [self.why, self.advice])).format(words=words)

    def _refuses(self, one: Part, other: Part) -> bool:
        if self.how == "with":
            return one.setting != other.setting or self.one is not self.other
        stands = one.place < other.place if self.how == "before" else one.place > other.place
        return stands and one.way == other.way


def check_rules(settings: Settings, at: Moment = "settings", seen: Seen | None = None) -> None:
    """Check that the parts of a run go together, as far as a moment tells.

    Args:
        settings: The run's settings.
        at: The moment.
        seen: The pass, if the moment is one of a pass.

    Raises:
        RuleError: two of them do not.
    """
    for rule in RULES:
        if rule.at == at:
            for line in rule.lines(settings, seen):
                raise RuleError(line)


def _of(name: str, states: Callable[[Settings], Any], promise: str = "") -> Find:
    """Return a function that finds a component by a statement, true or in words.

    Args:
        name: The setting that has it.
        states: Returns that.
        promise: The promise that it lacks.
    """
    return lambda run: [
        Part(
            called(component := getattr(run, name)),
            stated if isinstance(stated, str) else "",
            lost=promise and why_lost(component, promise),
        )
        for stated in filter(None, [states(run)])
    ]


def _setting(*keys: str, holds: Callable[[Any], Any] = bool) -> Find:
    """Return a function that finds settings by their values."""
    return lambda run: [
        Part(f"{key}={as_typed(value)}") for key in keys if holds(value := attrgetter(key)(run))
    ]


def _stages(holds: Callable[[Stage], Any], ways: Iterable[str] = UP, promise: str = "") -> Find:
    """Return a function that finds stages of some ways; a promise is one that they lack."""
    return lambda run: [
        Part(f"{way}.{name}", "", way, place, promise and why_lost(stage, promise))
        for way in ways
        for place, (name, stage) in enumerate(with_effect(getattr(run, way)).items())
        if holds(stage)
    ]


def _claims(
    holds: Callable[[PrivacyClaim, Settings], Any] = lambda *_: True,
    *,
    move: str = "",
    method_at: float = 0,
) -> Find:
    """Return a function that finds claims of privacy.

    Args:
        holds: Returns whether a claim is of the kind.
        move: What to do with a stage that stands wrongly to that of a claim.
        method_at: The place of a method's claim among the stages.
    """

    def claims(run: Settings) -> list[Part]:
        parts: list[tuple[Method | Stage, str, float]] = [
            *((stage, move, place) for place, stage in enumerate(run.stages.values())),
            (run.method, move and "leave it out", method_at),
        ]
        return [
            Part(called(part), said, *UP, place)
            for part, said, place in parts
            if part.privacy and holds(part.privacy, run)
        ]

    return claims


def _of_passes(shows: Callable[[Seen], Any]) -> Find:
    """Return a function that finds a method by a pass: true, words, or names that it sends."""
    return lambda seen: [
        Part(
            called(seen.settings.method.sending),
            repr(shown[0]) if isinstance(shown, list) else shown if isinstance(shown, str) else "",
        )
        for shown in filter(None, [shows(seen)])
    ]


def _telling(holds: Callable[[Stage], Any], promise: str = "") -> Find:
    """Return a function that finds stages for which clients send numbers.

    Args:
        holds: Returns whether a stage is of the kind.
        promise: The promise that it lacks.
    """
    return lambda seen: [
        Part(called(stage), repr(number), lost=promise and why_lost(stage, promise))
        for name, stage in seen.settings.stages.items()
        if (number := seen.of_stages.get(name)) and holds(stage)
    ]


def _measuring(run: Settings) -> list[Part]:
    kinds = {name: ANALYSES.get(name) for name in run.analysis}
    parts = [n for n, kind in kinds.items() if kind.client_part is not Analysis.client_part]
    return [*_setting("evaluation.trained")(run), *(Part(f"analysis={name}") for name in parts)]


def _keeps(stage: Stage) -> bool:
    """Return whether the server keeps something for a stage."""
    with calling(stage, "init"):
        return bool(stage.init())


def _changed(run: Settings) -> Iterator[Part]:
    parts = (run.method, *run.stages.values(), run.selection, run.aggregation, run.temperature)
    for part in parts:
        for name in set_apart(part):
            yield Part(called(part), f"an attribute {name!r} that is no setting")
        for name in set_on_classes(part):
            yield Part(called(part), f"a function {name!r} that was set on its class")


def _unlike_needed(run: Settings) -> list[Part]:
    method, local = run.method, run.local
    of_method = f" with {called(method)}"
    return [
        Part(
            f"local.{name}={as_typed(local_value)}",
            f"local.{name}={as_typed(value)} with {method.key_needing(name)}".removesuffix(
                of_method
            ),
        )
        for name, value in method.needs_local.items()
        if (local_value := getattr(local, name)) != value
    ]


def _needed(run: Settings) -> str:
    needs = run.method.needs_local.items()
    return ", ".join(f"local.{name}={as_typed(value)}" for name, value in needs)


def _unlike_own(run: Settings) -> list[Part]:
    chosen, brought = run.selection, run.method.selection or run.selection
    if type(chosen) is not type(brought):
        return [Part(called(chosen), f"selects clients by {brought.title}")]
    return [
        Part(f"selection.{name}={as_typed(typed)}", f"sets it to {as_typed(value)}")
        for name, value in brought
        if (typed := getattr(chosen, name)) != value
    ]


def _steps_alone(run: Settings) -> Iterator[Part]:
    """Yield the settings that only the engine's own steps follow."""
    names = (
        "accumulate",
        "keep",
        "tail_average",
        "label_smoothing",
        "class_weights",
        "temperature",
    )
    for name in names:
        value, default = getattr(run.local, name), type(run.local).model_fields[name].default
        if value != default:
            yield Part(f"local.{name}={as_typed(value)}")
    if run.temperature != type(run).model_fields["temperature"].default:
        yield Part(called(run.temperature))
    if run.engine.precision == "bf16":
        yield Part("engine.precision=bf16")


def _loops(words: Callable[[Any], Any] = lambda run: True, of_seen: bool = False) -> Find:
    """Return a function that finds a loop of the user's own."""

    def find(run: Any) -> list[Part]:
        train = (run.settings if of_seen else run).local.train
        said = train and words(run)
        return [Part(named_loop(train), said if isinstance(said, str) else "")] if said else []

    return find


def _loses_rounds(claim: PrivacyClaim, run: Settings) -> bool:
    """Return whether masks may lose a round for want of the client that is added or removed."""
    is_poisson = run.selection.draw == "poisson" or claim.population
    sums = [stage.secure_sum for stage in run.stages.values()]
    return bool(is_poisson and any(secure_sum and secure_sum.threshold for secure_sum in sums))


def _dropping_out(run: Settings) -> list[Part]:
    failing = _setting("on_client_error", holds=lambda then: then == "drop")(run)
    return [*_of("clock", lambda run: run.clock.drops_out)(run), *failing]


def _draws_but(*draws: Draw) -> Kind:
    """Return the kind of selections without one of some draws."""
    find = _of("selection", lambda run: run.selection.draw not in draws, "draw")
    return Kind("selections whose draws are not accounted", find)


def _unmoved(seen: Seen) -> list[str]:
    """Return the names that clients have sent in a pass if no mean of it has moved from a base."""
    moved = {*seen.means} & {*seen.pass_.moved_from}
    return [] if moved else [*sorted(seen.means), *seen.rows]


def _in_whole_numbers(seen: Seen) -> list[Part]:
    pass_ = seen.pass_
    return [
        Part(f"a model whose clients send {name!r} in whole numbers")
        for sent in (pass_.broadcast.get(base, {}) for base in pass_.moved_from.values())
        for name in sorted(sent.keys() - {*moving_names(sent, None)})
    ]


def _not_accounted(seen: Seen) -> str:
    """Return the uploads other than one bounded change of each client, in words."""
    pass_, beside = seen.pass_, [*seen.rows, *seen.numbers]
    for group, tensors in seen.means.items():
        base = pass_.moved_from.get(group)
        start = None if base == CHANGE else pass_.broadcast.get(base or "", {})
        moving = {*moving_names(tensors, start)}
        beside += [f"{group}/{name}" for name in sorted(tensors.keys() - moving)]
    selected = {*pass_.clients} <= {*seen.cohort}
    faults = {
        f"{next(iter(beside), '')!r} beside the change of their tensors": beside,
        "changes in more than one pass of a round": seen.means and seen.earlier,
        "changes in a pass in which they do not train": seen.means and not pass_.epochs,
        "changes though they were not selected": seen.means and not selected,
    }
    return next((said for said, fault in faults.items() if fault), "")


def _replacing(seen: Seen) -> list[Part]:
    attack, pass_ = seen.settings.attack, seen.pass_
    replaces = attack.changes_uploads and pass_.epochs and _unmoved(seen)
    bad = pass_.columns(np.array(pass_.clients)).get("bad", np.zeros(0))
    acts = bad.any() and (attack.knows_updates or replaces)
    return [Part(called(attack))] if acts else []


OVERLAPPING = Kind("methods whose rounds overlap", _of("method", lambda run: run.asynchrony))
MASKS = Kind("masks", _stages(lambda stage: stage.secure_sum))
HIDING = Kind(
    "stages that hide single uploads, such as masks",
    _stages(lambda stage: SINGLE in call(stage, Stage.hides)),
)
CLAIMS = Kind("claims of privacy", _claims())
CLIPS = Kind("claims of privacy", _claims(move="put it before", method_at=-1))
NOISES = Kind("claims of privacy", _claims(move="put it after", method_at=inf))
FIXED = Kind(
    "claims for fixed cohorts",
    _claims(lambda claim, run: run.selection.draw == "fixed" and not claim.population),
)
SEEING = Kind(
    "aggregations that see updates one by one",
    _of("aggregation", lambda run: run.aggregation.sees_updates),
)
KNOWING = Kind(
    "attacks that know the updates of others", _of("attack", lambda run: run.attack.knows_updates)
)
KEEPING = Kind("`local.keep`", _setting("local.keep"))
RESIDUAL = Kind(
    "stages that add what they have not sent so far",
    _stages(lambda stage: stage.keeps_residual, WAYS),
)
NOT_WAITING = Kind(
    "clocks by whose policy the server does not wait",
    _of("clock", lambda run: not run.clock.server_policy.waits),
)
DOWN = Kind("the down-link", lambda run: [Part("downlink")] * bool(run.down_stages))
DIVIDING = Kind(
    "aggregations with a divisor of their own",
    _of("aggregation", lambda run: run.aggregation.weights),
)
TABLE = Kind(
    "weights by a table or by tokens",
    _setting("weighting", holds=lambda weighting: weighting not in ("examples", "uniform")),
)
POOLED = Kind(
    "methods with all samples in one place", _of_passes(lambda seen: seen.pass_.pooled), "pass"
)
WIDE = Kind(
    "methods with passes over more clients than the cohort",
    _of_passes(
        lambda seen: (
            seen.is_first
            and len(seen.pass_.clients) > max(seen.settings.cohort_size, len(seen.cohort))
        )
    ),
    "pass",
)
ROOT = Kind(
    "aggregations with samples of the server",
    _of("aggregation", lambda run: run.aggregation.root_samples),
)
UNBASED = Kind(
    "methods whose clients send more than what has moved",
    _of_passes(lambda seen: [*seen.rows] or _unmoved(seen)),
    "result",
)
STACKS = Kind(
    "`engine.vectorize`",
    _setting("engine.vectorize", holds=lambda size: size not in ("auto", 0, 1)),
)
OWN_LOOPS = Kind("loops of your own", _loops())
RETURNING = Kind(
    "loops of your own that return numbers",
    _loops(lambda seen: repr(told) if (told := seen.of_stages.get(OWN_LOOP)) else "", True),
    "result",
)
OVERLAP = "whose rounds overlap"
UNACCOUNTED = "which is not accounted"
UNSEEN = "whose clients send {words} without a base from which it has moved"
BY_ITSELF = "which at its settings weighs clients by itself"
MEAN = "choose aggregation.name=mean"
ARRIVED = f"{MEAN} aggregation.weighting=arrived"
POISSON = "choose selection.name=poisson"

RULES = (
    Rule(
        Kind("settings of local training at other values", _unlike_needed),
        Kind("methods that need them at one", _of("method", _needed)),
        "which needs {words}",
    ),
    Rule(
        Kind("selections at other settings", _unlike_own),
        Kind("methods that bring their own", _of("method", lambda run: run.method.selection)),
        *("which {words}", "leave it out"),
    ),
    Rule(
        Kind("`fraction` below 1", _setting("fraction", holds=lambda value: value < 1)),
        Kind("methods of all clients", _of("method", lambda run: run.method.needs_everyone)),
        "in which all clients take part in every round",
        "for sampled clients choose method.name={words}",
    ),
    Rule(
        Kind(
            "`evaluation.when=after`",
            _setting("evaluation.when", holds=lambda when: when == "after"),
        ),
        *(KEEPING, "whose state the training before a deployment would change"),
    ),
    Rule(
        Kind(
            "rules of the server but the mean",
            _of("server", lambda run: not isinstance(run.server, ModelMean)),
        ),
        Kind(
            "methods with a server of their own", _of("method", lambda run: run.method.own_server)
        ),
        *("whose server {words}", "leave it out"),
    ),
    Rule(
        Kind(
            "schedules of the server's learning rate",
            lambda run: [
                Part(f"server.{name}={as_typed(value)}")
                for name, value in run.server.scheduled.items()
            ],
        ),
        Kind("servers without one", _of("method", lambda run: run.server_lr is None)),
        "whose server has no learning rate of its own",
        "leave it out, or choose one that has: server.name=momentum server.beta=0",
    ),
    # stages in their order
    Rule(
        Kind(
            "stages that keep what they have not sent",
            _stages(lambda s: s.keeps_residual, WAYS[1:]),
        ),
        *(DOWN, "whose server keeps what it has not sent as it is", "leave it out"),
    ),
    Rule(
        Kind(
            "stages that are no contraction",
            _stages(lambda s: not s.fits_downlink, WAYS[1:], "is_contraction"),
        ),
        *(DOWN, "which needs contractions: at its settings it is none", "leave it out"),
    ),
    Rule(
        Kind(
            "stages with a part at the server, or a state",
            _stages(lambda s: s.has_server_part() or _keeps(s), WAYS[1:]),
        ),
        *(DOWN, "which has no server's part behind it", "leave it out"),
    ),
    Rule(
        Kind(
            "stages that are no contraction",
            _stages(lambda s: not s.is_contraction, WAYS, "is_contraction"),
        ),
        RESIDUAL,
        "which would send again what it changes, as it is no contraction at its settings",
        *("put it before", "after"),
    ),
    Rule(
        Kind("stages with a part at the client", _stages(lambda s: s.has_client_part())),
        *(MASKS, "which sends words that hide what it would change", "put it before", "after"),
    ),
    Rule(
        Kind(
            "stages that encode coordinates",
            _stages(lambda s: s.declares_bytes() and not s.secure_sum, WAYS),
        ),
        Kind("stages that send none", _stages(lambda s: not s.sends_coordinates, WAYS)),
        "which sends no coordinates that it could encode",
        *("put it before, or leave it out", "after"),
    ),
    # loops of your own
    Rule(
        STACKS,
        *(OWN_LOOPS, "which trains one client at a time", "leave it out"),
    ),
    Rule(
        STACKS,
        Kind("`local.accumulate`", _setting("local.accumulate", holds=lambda parts: parts > 1)),
        *("whose parts of a batch are trained one after another", "leave it out"),
    ),
    Rule(
        Kind("settings of the engine's own steps", _steps_alone),
        *(OWN_LOOPS, "whose loss and steps are its own", "write it into the loop"),
    ),
    Rule(
        Kind(
            "methods that change a client's steps",
            _of_passes(lambda seen: seen.pass_.epochs and seen.pass_.rules.change_steps),
            "pass",
        ),
        *(
            OWN_LOOPS,
            "which takes its own steps",
            "write the change into the loop, and choose method.name=fedavg",
        ),
    ),
    Rule(
        Kind(
            "loops of your own that keep `client.state`",
            _loops(lambda seen: seen.keeps, True),
            "result",
        ),
        *(OVERLAPPING, f"{OVERLAP}: their order would change what it keeps"),
    ),
    Rule(HIDING, RETURNING, "which returns the number {words} of single clients"),
    Rule(CLAIMS, RETURNING, f"which returns the number {{words}}, {UNACCOUNTED}"),
    # rounds that overlap
    Rule(Kind("`keep_clients`", _setting("keep_clients")), OVERLAPPING, OVERLAP),
    Rule(KEEPING, OVERLAPPING, f"{OVERLAP}: their order would change what clients keep"),
    Rule(
        Kind(
            "stages for which something is kept", _stages(lambda s: s.keeps_residual or _keeps(s))
        ),
        *(OVERLAPPING, f"{OVERLAP}: their order would change what is kept for it"),
    ),
    Rule(
        Kind(
            "selections that wait for results",
            _of("selection", lambda run: not run.selection.plans_ahead, "plans_ahead"),
        ),
        OVERLAPPING,
        "whose clients start one by one, before there are results",
        "choose selection.name=uniform, or weighted",
    ),
    Rule(NOT_WAITING, OVERLAPPING, "whose rounds wait for no client", "choose clock.policy=wait"),
    Rule(
        Kind("measurements of a round's clients", _measuring),
        *(OVERLAPPING, f"{OVERLAP}: it measures the cohort of one"),
    ),
    Rule(SEEING, OVERLAPPING, OVERLAP, MEAN),
    Rule(DIVIDING, OVERLAPPING, OVERLAP, ARRIVED),
    Rule(TABLE, DIVIDING, BY_ITSELF, "leave it out"),
    Rule(
        *(KNOWING, OVERLAPPING, f"{OVERLAP}: nobody knows the updates of others"),
        "choose attack.name=sign_flip attack.of=own",
    ),
    Rule(DOWN, OVERLAPPING, OVERLAP, "leave it out"),
    # single uploads
    Rule(
        SEEING,
        Kind("methods that need the mean", _of("method", lambda run: run.method.needs_mean)),
        *("whose clients send {words}: of these the mean alone is a step", MEAN),
    ),
    Rule(
        DOWN,
        Kind(
            "methods with rounds of several trips", _of("method", lambda run: run.method.own_round)
        ),
        *("whose round is {words}", "leave it out"),
    ),
    Rule(
        DOWN,
        Kind(
            "methods whose clients have parts",
            _of("method", lambda run: run.method.already_on_clients),
        ),
        *("whose clients have {words}", "leave it out"),
    ),
    Rule(MASKS, MASKS, "of which a run may have one", "leave one out"),
    Rule(MASKS, OVERLAPPING, OVERLAP),
    Rule(
        Kind(
            "stages with traffic beside values",
            _stages(lambda stage: type(stage).beside is not Stage.beside),
        ),
        *(OVERLAPPING, f"{OVERLAP}: it is counted for the clients of one pass"),
    ),
    Rule(HIDING, SEEING, "which sees updates one by one", MEAN),
    Rule(HIDING, KNOWING, "whose clients know the updates of others"),
    Rule(
        HIDING,
        Kind(
            "selections to which clients report",
            _of("selection", lambda run: type(run.selection).report is not Selection.report),
        ),
        *("to which single clients report", "choose selection.name=uniform"),
    ),
    # differential privacy
    Rule(CLAIMS, CLAIMS, "which claims privacy, too", "leave one out"),
    Rule(
        CLAIMS,
        Kind("components that are not what their class says", _changed),
        "which has {words}, and may change what the claim rests on",
        "define it in a subclass",
    ),
    Rule(CLAIMS, OVERLAPPING, OVERLAP),
    Rule(
        Kind("claims for noise in trees", _claims(lambda claim, run: claim.tree)),
        _draws_but("once"),
        *("whose cohorts cannot be accounted", "choose selection.name=reshuffled"),
    ),
    Rule(
        Kind("claims for other noise", _claims(lambda claim, run: not claim.tree)),
        _draws_but("poisson", "fixed"),
        "whose cohorts cannot be accounted",
        "choose selection.name=poisson, or uniform for fixed cohorts",
    ),
    Rule(
        Kind(
            "claims by `accountant=pld`",
            _claims(lambda claim, run: claim.accountant == "pld" and not claim.population),
        ),
        Kind(
            "selections that draw fixed cohorts",
            _of("selection", lambda run: run.selection.draw != "poisson"),
        ),
        "for whose cohorts there is no accountant=pld",
        "choose rdp, or selection.name=poisson",
    ),
    Rule(
        CLAIMS,
        NOT_WAITING,
        "by whose policy the clients of a round depend on each other",
        "choose clock.policy=wait",
    ),
    Rule(
        Kind("claims for Poisson cohorts under masks with a threshold", _claims(_loses_rounds)),
        Kind("clients that may drop out", _dropping_out),
        "by which a round may be lost with or without one of its clients",
        "choose channel.masks.threshold=0",
    ),
    Rule(
        CLAIMS,
        Kind(
            "aggregations that divide by who arrives",
            _of("aggregation", lambda run: not run.aggregation.bounds_share, "bounds_share"),
        ),
        "which at its settings does not divide by the expected clients alone",
        f"{MEAN} aggregation.weighting=fixed",
    ),
    Rule(
        CLAIMS,
        Kind(
            "temperatures that follow clients",
            _of("temperature", lambda run: run.temperature.follows_clients),
        ),
        "by which T would follow the clients' data",
    ),
    Rule(
        CLAIMS,
        Kind(
            "rates that follow results",
            _setting("local.schedule", "server.schedule", holds=lambda name: name == "plateau"),
        ),
        "by which lr would follow the clients' data",
    ),
    Rule(
        Kind("stages with a part at the server", _stages(lambda s: s.has_server_part())),
        *(NOISES, "as it would read the sum without noise", "{words}", "before"),
    ),
    Rule(RESIDUAL, CLIPS, "as it keeps what is not sent, without a bound", "leave it out", "after"),
    Rule(
        Kind(
            "stages that may lengthen a change",
            _stages(lambda s: not s.bounds_norm, promise="bounds_norm"),
        ),
        *(CLIPS, "whose clip it may exceed", "{words}", "after"),
    ),
    Rule(
        CLAIMS,
        Kind(
            "attacks that replace uploads",
            _of("attack", lambda run: run.attack.changes_uploads or run.attack.knows_updates),
        ),
        "whose bad clients send what is not clipped",
        "choose an attack on samples, such as attack.name=label_flip",
    ),
    Rule(
        CLAIMS,
        Kind(
            "attacks by bad clients of each round",
            _of("attack", lambda run: run.attack.acts and run.attack.per_round is not None),
        ),
        "of whose attack.per_round each client of a round decides which others are bad",
        "choose attack.fraction",
    ),
    Rule(
        CLAIMS,
        Kind(
            "balanced weights of classes",
            _setting("local.class_weights", holds=lambda weights: weights == "balanced"),
        ),
        *("which counts the samples of all clients", "give the weights"),
    ),
    Rule(FIXED, KEEPING, "which tells in which of them a client was", POISSON),
    # seen
    Rule(
        Kind("clocks with virtual time", _of("clock", lambda run: run.clock.has_time)),
        *(POOLED, "under which the samples of all clients are in one place"),
        "choose clock.name=none",
    ),
    Rule(HIDING, POOLED, "whose clients' samples are in one place"),
    Rule(
        Kind("attacks", _of("attack", lambda run: run.attack.acts)),
        *(POOLED, "whose clients' samples are pooled in one place", "choose attack.name=none"),
    ),
    Rule(SEEING, WIDE, "whose passes are over more clients than the cohort", MEAN),
    Rule(KNOWING, WIDE, "whose passes are over more clients than the cohort"),
    Rule(
        ROOT,
        Kind(
            "methods whose clients send another model, or more",
            _of_passes(
                lambda seen: seen.is_first and {**seen.pass_.moved_from} != {"model": "model"}
            ),
            "pass",
        ),
        "whose clients send more than a model, or no model: the server cannot train as they do",
        "choose aggregation.name=median, or mean",
    ),
    Rule(
        ROOT,
        Kind(
            "methods whose clients send what an earlier pass has trained",
            _of_passes(
                lambda seen: not seen.pass_.epochs and {*seen.means} & {*seen.pass_.moved_from}
            ),
            "result",
        ),
        "whose clients send what they have trained in an earlier pass: the server cannot train as"
        " they do",
        "choose aggregation.name=median, or mean",
    ),
    Rule(
        DOWN,
        Kind(
            "methods whose clients send nothing that has moved from a broadcast model",
            _of_passes(
                lambda seen: (
                    seen.is_first
                    and seen.pass_.epochs
                    and "model" not in {*seen.pass_.moved_from.values()} & {*seen.pass_.broadcast}
                )
            ),
            "pass",
        ),
        "whose clients send nothing that has moved from a model which the server broadcasts",
        "leave it out",
    ),
    Rule(
        TABLE,
        Kind(
            "methods with weights of their own",
            _of_passes(lambda seen: seen.pass_.epochs and seen.pass_.weighting),
            "pass",
        ),
        *(BY_ITSELF, "leave it out"),
    ),
    Rule(
        Kind(
            "methods that weigh each client",
            _of_passes(
                lambda seen: seen.pass_.epochs and isinstance(seen.pass_.weighting, Mapping)
            ),
            "pass",
        ),
        *(DIVIDING, "which at its settings gives all the same weight", ARRIVED),
    ),
    Rule(
        CLAIMS,
        Kind("models with whole numbers, such as BatchNorm's counter", _in_whole_numbers, "pass"),
        *("which pass by the clip", "use one without them, such as one with GroupNorm"),
    ),
    Rule(SEEING, UNBASED, UNSEEN, MEAN),
    Rule(
        Kind("attacks that replace uploads", _replacing, "result"),
        *(UNBASED, UNSEEN, "choose an attack on samples, such as attack.name=label_flip"),
    ),
    Rule(
        DOWN,
        Kind(
            "methods whose clients send a model without a base",
            _of_passes(lambda seen: "model" in {*seen.means} - {*seen.pass_.moved_from}),
            "result",
        ),
        *("whose clients send a model without a base from which it has moved", "leave it out"),
    ),
    Rule(
        HIDING,
        Kind(
            "methods whose clients send more than means",
            _of_passes(lambda seen: [*seen.rows, *seen.numbers]),
            "result",
        ),
        "whose server reads {words} of single clients",
    ),
    Rule(
        HIDING,
        Kind(
            "methods with a pass over one client of several",
            _of_passes(lambda seen: seen.means and len(seen.pass_.clients) == 1 < len(seen.cohort)),
            "result",
        ),
        "whose pass is over one client of several: the sum is what that client sends",
    ),
    Rule(
        HIDING,
        Kind(
            "stages that read numbers of single clients",
            _telling(lambda stage: not stage.sums_numbers, "sums_numbers"),
            "result",
        ),
        *("which reads numbers of single clients", "leave it out"),
    ),
    Rule(CLAIMS, POOLED, f"whose clients send all their samples, {UNACCOUNTED}"),
    Rule(
        CLAIMS,
        Kind(
            "stages whose clients send numbers",
            _telling(lambda stage: not stage.privacy),
            "result",
        ),
        f"whose clients send the number {{words}}, {UNACCOUNTED}",
    ),
    Rule(
        CLAIMS,
        Kind("methods whose clients send more than a change", _of_passes(_not_accounted), "result"),
        f"whose clients send {{words}}, {UNACCOUNTED}",
    ),
    Rule(
        Kind(
            "methods that send more than what has moved",
            _of_passes(
                lambda seen: (
                    seen.pass_.epochs and not seen.pass_.pooled and ([*seen.rows] or _unmoved(seen))
                )
            ),
            "result",
        ),
        DIVIDING,
        "which at its settings divides changes; clients send {words}, which is no change",
        ARRIVED,
    ),
    Rule(
        FIXED,
        Kind(
            "clients that keep a state",
            lambda seen: (
                [Part("a method or stage whose clients keep a state between rounds")] * seen.keeps
            ),
            "result",
        ),
        *("in fixed cohorts", POISSON),
    ),
    Rule(
        Kind(
            "stages for which something is kept",
            lambda seen: [
                Part(f"channel.{name}") for name in seen.settings.stages if name in seen.keeping
            ],
            "rehearsed",
        ),
        *(OVERLAPPING, f"{OVERLAP}: their order would change what is kept for it"),
    ),
)
