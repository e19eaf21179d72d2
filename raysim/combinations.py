"""Table of rules on what goes with what, read as settings are parsed and as passes run.

A rule refuses two kinds of a run's parts that do not go together. A kind finds those parts of a run
that are of it, by what components state or what a pass shows. A concern that does not go with
others adds its kinds and rows here, and no check elsewhere. Limits that are numbers stay with their
component.

`raysim list rules` prints the table, `raysim list rules NAME` the rows of one component.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raysim.analysis import ANALYSES
from raysim.analysis.base import Analysis
from raysim.core.channel import Stage
from raysim.core.components import called, calling, set_apart, set_on_classes, why_lost
from raysim.core.errors import RuleError
from raysim.core.privacy import PrivacyClaim
from raysim.core.selection import Selection
from raysim.core.user_input import as_typed
from raysim.server.mean import ModelMean

if TYPE_CHECKING:
    from raysim.config import Settings

UP, WAYS = ("channel",), ("channel", "downlink")
"""Settings that have stages."""


class Part(NamedTuple):
    """A part of a run that is of some kind.

    Attributes:
        setting: The setting that has it, as it is typed.
        words: What it says itself, for the reason or the advice of a rule.
        way: Among stages, the setting that has them.
        place: Its place among them.
        lost: Behind a line: why it has lost a promise of its base.
    """

    setting: str
    words: str = ""
    way: str = ""
    place: float = 0
    lost: str = ""


Find = Callable[["Settings"], Iterable[Part]]
"""Returns the parts of a run that are of a kind."""


class Kind(NamedTuple):
    """A kind of parts: its name, in the plural, and what finds them."""

    name: str
    found: Find


@dataclass(frozen=True)
class Rule:
    """Refusal of two kinds of parts in one run.

    Attributes:
        one: The kind of the part that the line names first.
        other: The kind with which it does not go.
        why: The reason, a clause on the other part, with `{words}` of one of the two.
        advice: What to do, with `{words}`; empty where the reason says it.
        how: Whether it goes nowhere with the other, or as a stage not before or behind it.
    """

    one: Kind
    other: Kind
    why: str
    advice: str = ""
    how: Literal["with", "before", "behind"] = "with"

    def lines(self, settings: Settings) -> Iterator[str]:
        """Yield a line for each pair of parts of a run that breaks the rule."""
        for one in self.one.found(settings):
            for other in self.other.found(settings):
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


def check_rules(settings: Settings) -> None:
    """Check that the parts of a run go together, as far as its settings tell.

    Raises:
        RuleError: two of them do not.
    """
    for rule in RULES:
        for line in rule.lines(settings):
            raise RuleError(line)


def _of(name: str, states: Callable[[Settings], Any], promise: str = "") -> Find:
    """Return what finds a component by what is stated of it, true or in words.

    Args:
        name: The setting that has it.
        states: Returns that.
        promise: The promise that it lacks.
    """

    def found(settings: Settings) -> Iterator[Part]:
        if stated := states(settings):
            component = getattr(settings, name)
            words = stated if isinstance(stated, str) else ""
            yield Part(called(component), words, lost=promise and why_lost(component, promise))

    return found


def _setting(*keys: str, of: Callable[[Any], Any] = bool) -> Find:
    """Return what finds settings by their values."""

    def found(settings: Settings) -> Iterator[Part]:
        for key in keys:
            if of(value := attrgetter(key)(settings)):
                yield Part(f"{key}={as_typed(value)}")

    return found


def _stages(of: Callable[[Stage], Any], ways: Iterable[str] = UP, promise: str = "") -> Find:
    """Return what finds stages of some ways; a promise is one that they lack."""

    def found(settings: Settings) -> Iterator[Part]:
        for way in ways:
            stages = settings.stages if way in UP else settings.down_stages
            for place, (name, stage) in enumerate(stages.items()):
                if of(stage):
                    lost = promise and why_lost(stage, promise)
                    yield Part(f"{way}.{name}", way=way, place=place, lost=lost)

    return found


def _claims(
    of: Callable[[PrivacyClaim, Settings], Any] = lambda *_: True,
    *,
    move: str = "",
    method_at: float = 0,
) -> Find:
    """Return what finds claims of privacy.

    Args:
        of: Whether a claim is of the kind.
        move: What to do with a stage that stands wrongly to that of a claim.
        method_at: The place of a method's claim among the stages.
    """

    def found(settings: Settings) -> Iterator[Part]:
        for place, stage in enumerate(settings.stages.values()):
            if stage.privacy and of(stage.privacy, settings):
                yield Part(called(stage), move, *UP, place)
        claim = settings.method.privacy
        if claim and of(claim, settings):
            yield Part(called(settings.method), "leave it out", *UP, method_at)

    return found


def _measuring(settings: Settings) -> Iterator[Part]:
    yield from _setting("evaluation.trained")(settings)
    for name in settings.analysis:
        if ANALYSES.get(name).client_part is not Analysis.client_part:
            yield Part(f"analysis={name}")


def _keeps(stage: Stage) -> bool:
    with calling(stage, "init"):
        return bool(stage.keeps_residual or stage.init())


def _changed(settings: Settings) -> Iterator[Part]:
    parts = (settings.method, *settings.stages.values(), settings.selection)
    for part in (*parts, settings.aggregation, settings.temperature):
        for name in set_apart(part):
            yield Part(called(part), f"an attribute {name!r} that is no setting")
        for name in set_on_classes(part):
            yield Part(called(part), f"a function {name!r} that was set on its class")


def _unlike_needed(settings: Settings) -> Iterator[Part]:
    method = settings.method
    for name, value in method.needs_local.items():
        if (given := getattr(settings.local, name)) != value:
            key = method.needing(name)
            more = f" with {key}" if key != called(method) else ""
            yield Part(f"local.{name}={as_typed(given)}", f"local.{name}={as_typed(value)}{more}")


def _needed(settings: Settings) -> str:
    needs = settings.method.needs_local.items()
    return ", ".join(f"local.{name}={as_typed(value)}" for name, value in needs)


def _unlike_own(settings: Settings) -> Iterator[Part]:
    given, own = settings.selection, settings.method.selection or settings.selection
    if type(given) is not type(own):
        yield Part(called(given), f"selects clients by {own.title}")
    for name, value in own if type(given) is type(own) else ():
        if (typed := getattr(given, name)) != value:
            yield Part(f"selection.{name}={as_typed(typed)}", f"sets it to {as_typed(value)}")


def _scheduled(settings: Settings) -> Iterator[Part]:
    for name, value in settings.server.scheduled.items():
        yield Part(f"server.{name}={as_typed(value)}")


def _draws_unaccounted(settings: Settings) -> bool:
    claims = [settings.method.privacy, *(stage.privacy for stage in settings.stages.values())]
    return any(claim and settings.selection.draw not in claim.draws for claim in claims)


def _is_fixed(claim: PrivacyClaim, settings: Settings) -> bool:
    return settings.selection.draw == "fixed" and claim.population is None


def _is_pld(claim: PrivacyClaim, settings: Settings) -> bool:
    return claim.accountant == "pld" and claim.population is None


OVERLAPPING = Kind("methods whose rounds overlap", _of("method", lambda run: run.asynchrony))
MASKS = Kind("masks", _stages(lambda stage: stage.secure_sum))
CLAIMS = Kind("claims of privacy", _claims())
CLIPS = Kind("claims of privacy", _claims(move="put it before", method_at=-1))
NOISES = Kind("claims of privacy", _claims(move="put it behind", method_at=inf))
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
DOWN = Kind("the down-link", lambda settings: [Part("downlink")] if settings.down_stages else [])
OVERLAP = "whose rounds overlap"
MEAN = "choose aggregation.name=mean"

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
        Kind("`fraction` below 1", _setting("fraction", of=lambda value: value < 1)),
        Kind("methods of all clients", _of("method", lambda run: run.method.needs_everyone)),
        "in which all clients take part in every round",
        "for sampled clients choose method.name={words}",
    ),
    Rule(
        Kind(
            "`evaluation.when=after`", _setting("evaluation.when", of=lambda when: when == "after")
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
        Kind("schedules of the server's learning rate", _scheduled),
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
        Kind("stages that are no contraction", _stages(lambda s: not s.goes_down, WAYS[1:])),
        *(DOWN, "which needs contractions: at its settings it is none", "leave it out"),
    ),
    Rule(
        Kind("stages that are no contraction", _stages(lambda s: not s.is_contraction, WAYS)),
        RESIDUAL,
        "which would send again what it changes, as it is no contraction at its settings",
        *("put it before", "behind"),
    ),
    Rule(
        Kind("stages with a part at the client", _stages(lambda s: s.has_client_part())),
        *(MASKS, "which sends words that hide what it would change", "put it before", "behind"),
    ),
    Rule(
        Kind(
            "stages that encode coordinates",
            _stages(lambda s: s.declares_bytes() and not s.secure_sum, WAYS),
        ),
        Kind("stages that send none", _stages(lambda s: not s.sends_coordinates, WAYS)),
        "which sends no coordinates that it could encode",
        *("put it before, or leave it out", "behind"),
    ),
    # rounds that overlap
    Rule(Kind("`keep_clients`", _setting("keep_clients")), OVERLAPPING, OVERLAP),
    Rule(KEEPING, OVERLAPPING, f"{OVERLAP}: their order would change what clients keep"),
    Rule(
        Kind("stages for which something is kept", _stages(_keeps)),
        *(OVERLAPPING, f"{OVERLAP}: their order would change what is kept for it"),
    ),
    Rule(
        Kind(
            "selections that wait for results",
            _of("selection", lambda run: not run.selection.plans_ahead),
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
    Rule(
        Kind(
            "aggregations with a divisor of their own",
            _of("aggregation", lambda run: run.aggregation.weights),
        ),
        *(OVERLAPPING, OVERLAP, f"{MEAN} aggregation.weighting=arrived"),
    ),
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
        Kind("methods whose clients have parts", _of("method", lambda run: run.method.has_parts)),
        *("whose clients have {words}", "leave it out"),
    ),
    Rule(MASKS, MASKS, "of which a run may have one", "leave one out"),
    Rule(MASKS, OVERLAPPING, OVERLAP),
    Rule(MASKS, SEEING, "which sees updates one by one", MEAN),
    Rule(MASKS, KNOWING, "whose clients know the updates of others"),
    Rule(
        MASKS,
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
        CLAIMS,
        Kind(
            "selections whose draws are not accounted",
            _of("selection", _draws_unaccounted, "draw"),
        ),
        "whose cohorts cannot be accounted",
        "choose selection.name=poisson, or uniform for fixed cohorts",
    ),
    Rule(
        Kind("claims by `accountant=pld`", _claims(_is_pld)),
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
        CLAIMS,
        Kind(
            "aggregations that divide by who arrives",
            _of("aggregation", lambda run: not run.aggregation.bounds_share, "bounds_share"),
        ),
        "which so set does not divide by the expected clients alone",
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
            _setting("local.schedule", "server.schedule", of=lambda name: name == "plateau"),
        ),
        "by which lr would follow the clients' data",
    ),
    Rule(
        Kind("stages with a part at the server", _stages(lambda s: s.has_server_part())),
        *(NOISES, "as it would read the sum without noise", "{words}", "before"),
    ),
    Rule(
        RESIDUAL, CLIPS, "as it keeps what is not sent, without a bound", "leave it out", "behind"
    ),
    Rule(
        Kind(
            "stages that may lengthen a change",
            _stages(lambda s: not s.bounds_norm, promise="bounds_norm"),
        ),
        *(CLIPS, "whose clip it may exceed", "{words}", "behind"),
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
            _setting("local.class_weights", of=lambda weights: weights == "balanced"),
        ),
        *("which counts the samples of all clients", "give the weights"),
    ),
    Rule(
        Kind("claims for fixed cohorts", _claims(_is_fixed)),
        *(KEEPING, "which tells in which of them a client was", "choose selection.name=poisson"),
    ),
)
