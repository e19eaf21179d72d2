"""Rounds of a method: their inputs and their passes."""

from __future__ import annotations

import dis
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import CO_GENERATOR
from typing import Any

from torch import nn

from raysim.api.components import called, calling, cause, checked, shown
from raysim.api.method import Method, Metrics, Passes, Round, ServerState
from raysim.api.next_state import (
    ASKED,
    StateOfRound,
    check_deployed,
    check_model,
    check_state,
    given_state,
    moved,
)
from raysim.api.rules import CHANGE, Pass, Reduced
from raysim.api.withheld import opened
from raysim.config import LocalSettings, Settings
from raysim.driver.rounds.hiding import as_seen
from raysim.driver.rounds.rates import rates_of
from raysim.driver.uploads.dispatch import Dispatch, PassHook
from raysim.errors import RuleError, SettingsError
from raysim.numbers.arrays import Integers
from raysim.numbers.seeds import owned_generator, sample_cohort, stream
from raysim.numbers.tensors import Tensors, zeros_like
from raysim.samples.participants import Participants
from raysim.storage.run_state import RunState
from raysim.training.job import batch_bounds, steps_of
from raysim.training.network import has_batch_norm

RunPass = Callable[[Dispatch], Reduced]
"""Runs a pass."""
_UNYIELDED: Mapping[type, str] = {
    Pass: "a pass has a result where it is yielded: reduced = yield Pass(...)",
    Generator: "passes of a generator are yielded by it: state = yield from ...",
}
"""Advice for a round that uses a pass or a generator as if it were the result."""
_FROM = "write `state, metrics = yield from super().round(now, state)`, which yields its passes"
"""Advice for a round that uses its base class's generator as if it were the result."""


def resumed(passes: Passes, result: Any, error: BaseException | None) -> Any:
    """Send a pass's result to a method's round, or raise an error in it; return the next pass.

    Callers must drop both afterwards: an error whose traceback refers to it is freed late.
    """
    try:
        return passes.send(result) if error is None else passes.throw(error)
    finally:
        del result, error


def round_inputs(
    settings: Settings,
    network: nn.Module,
    before: RunState,
    *,
    sizes: Integers,
    note: Callable[[str], None],
    cohort: tuple[int, ...],
) -> Round:
    """Return the input of `Method.round`; it depends only on seed, round and committed state.

    Args:
        settings: The run's settings.
        network: The network as it was built.
        before: The committed state before the round.
        sizes: Samples that each client trains on [K].
        note: Shows the user one line.
        cohort: The selected clients, ascending.
    """
    number, participants = before.number, settings.participants
    rates = rates_of(settings)
    lr_at = rates["local"].by_round(before)
    rate = rates["server"].by_round(before)(number)
    return Round(
        number=number,
        cohort=cohort,
        clients=len(participants),
        epochs=settings.local.work,
        lr=lr_at(number),
        lr_at=lr_at,
        weighting=settings.weighting,
        network=network,
        steps=partial(_steps, settings.local, sizes, has_batch_norm(network)),
        sample=partial(_sample, settings.seed, number, participants, settings.cohort_size),
        generator=partial(owned_generator, settings.seed, "server", (number,)),
        note=note,
        everyone=participants.listed,
        samples=sizes,
        size=settings.cohort_size,
        expected=settings.expected_cohort,
        server_lr=rate if settings.server.rate is None else settings.method.server_lr or 1.0,
        server_rule=settings.server_rule.model_copy(update={"lr": rate}),
    )


def _steps(local: LocalSettings, sizes: Integers, joins: bool, client: int) -> int:
    return steps_of(local.work, len(batch_bounds(int(sizes[client]), local.batching, joins)))


def _sample(
    seed: int, number: int, participants: Participants, size: int, *keys: int
) -> tuple[int, ...]:
    generator = stream(seed, "sample", number, *keys)
    ranks = sample_cohort(generator, len(participants), size)
    return tuple(participants.at(ranks).tolist())


def passes_of(settings: Settings, now: Round, state: ServerState) -> Passes:
    """Yield the passes of a method's round; return the next state and metrics.

    Args:
        settings: The run's settings.
        now: The input of the round; the method sees the fields that the run grants.
        state: The committed state before the round.

    Raises:
        SettingsError: the round fails, yields or returns something else, or changes the given
            state in place.
        RunError: a value of the next state is not finite.
    """
    method, guarded, left = settings.method, StateOfRound(state), given_state(state)
    seen_by = partial(as_seen, settings, method)
    with _in_round(method):
        passes: Any = method.round(seen_by(now), guarded.given)
        if not isinstance(passes, Generator):
            raise _no_passes(method, f"returned {shown(passes)}", passes)
    value: Reduced | None = None
    error: BaseException | None = None
    while True:
        left.check_left(ASKED, called(method))
        with _in_round(method):
            try:
                pass_ = resumed(passes, value, error)
            except StopIteration as end:
                after, metrics = _checked_next(method, end.value)
                guarded.check_left(method, ended=True)
                return _next_state(method, now, state, after), metrics
            finally:
                value = error = None
            guarded.check_left(method)
            if not isinstance(pass_, Pass):
                passes.close()
                raise _no_passes(method, f"yielded {shown(pass_)}", pass_)
            for group, base in pass_.moved_from.items():
                if base != CHANGE and base not in pass_.broadcast:
                    passes.close()
                    raise SettingsError(
                        f"{called(method)}: the base of {group!r} in Pass.bases is {base!r}, which"
                        " is not broadcast"
                    )
        try:
            value = seen_by((yield opened_pass(pass_, now)))
        except GeneratorExit:
            with calling(method, "round"):
                passes.close()
            raise
        except BaseException as raised:  # the method may catch it, or clean up
            error = raised


def _next_state(method: Method, now: Round, before: ServerState, after: ServerState) -> ServerState:
    """Check the state that a round returned, and return it as moved by the server's rule."""
    check_state(method, "round", after)
    check_model(method, "round", after, before)
    if now.server_rule:
        after = moved(now.server_rule, now.network, before, after)
    check_deployed(method, after, now.network)
    return after.in_order


def opened_pass(pass_: Pass, now: Round) -> Pass:
    """Return a pass with readable clients and with learning rates by client.

    Args:
        pass_: The pass.
        now: The input of the method's round.
    """
    clients, lr = opened(pass_.clients), pass_.lr
    if callable(lr):
        lr = {client: lr(now.steps(client)) for client in clients}
    return replace(pass_, clients=clients, lr=lr)


def run_without_clients(pass_: Pass) -> Reduced:
    """Return the result of a pass in a round without clients, in which no tensor moves.

    Raises:
        SettingsError: the pass has clients, although none were selected.
    """
    if len(pass_.clients):
        raise SettingsError("it has a pass over clients that were not selected")
    means: dict[str, Tensors] = {}
    for group, base in pass_.moved_from.items():
        if base != CHANGE:
            sent = pass_.broadcast[base]
            trained = pass_.trainable if group == "model" else None
            means[group] = {n: t for n, t in sent.items() if trained is None or n in trained}
        elif group in pass_.broadcast:
            means[group] = zeros_like(pass_.broadcast[group])
    return Reduced((), means, {}, {})


def run_round(
    passes: Passes,
    run: RunPass,
    hooks: Sequence[PassHook] = (),
    check: Callable[..., None] = lambda *seen: None,
) -> tuple[ServerState, Metrics]:
    """Run the passes of a round; return the next state and metrics.

    An error in a pass is raised at the method's `yield`, except a broken rule, which ends the run.

    Args:
        passes: The passes, by `passes_of`.
        run: Runs a pass.
        hooks: Called before each pass, in this order.
        check: Checks each pass when it is yielded, and again with its result.

    Raises:
        RuleError: a pass or an upload breaks a rule.
    """
    value: Reduced | None = None
    error: BaseException | None = None
    while True:
        try:
            pass_ = resumed(passes, value, error)
        except StopIteration as end:
            result: tuple[ServerState, Metrics] = end.value
            return result
        finally:
            value = error = None
        try:
            sent = Dispatch.of(pass_)
            check(sent)
            for hook in hooks:
                sent = hook(sent)
            reduced = run(sent)
            check(sent, reduced)
            value = sent.received(reduced)
        except RuleError:
            raise
        except BaseException as raised:  # raised at the method's yield, by `resumed`
            error = raised


@contextmanager
def _in_round(method: Method) -> Iterator[None]:
    """Turn errors of a method's round in the body into one line that says what to yield.

    Raises:
        SettingsError: the round failed.
    """
    with calling(method, "round"):
        try:
            yield
        except Exception as error:
            if line := _unpacks(error):
                raise SettingsError(
                    f"{called(method)}: round takes a generator for what it returns (line {line});"
                    f" {_FROM}"
                ) from error
            taken = getattr(error, "obj", None)  # of an AttributeError
            if used := next((a for kind, a in _UNYIELDED.items() if isinstance(taken, kind)), ""):
                raise SettingsError(
                    f"{called(method)}: round failed: {cause(error)}; {used}"
                ) from error
            raise


def _unpacks(error: BaseException) -> int:
    """Return the line in which a round unpacks another round's generator; 0 if none does."""
    at = error.__traceback__
    while at and (below := at.tb_next):
        does, code = at.tb_frame.f_code.co_code[at.tb_lasti], below.tb_frame.f_code
        if dis.opname[does].startswith("UNPACK") and code.co_name == "round":
            return at.tb_lineno if code.co_flags & CO_GENERATOR else 0
        at = below
    return 0


def _no_passes(method: Method, what: str, value: Any = None) -> SettingsError:
    parts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(part, Generator) for part in parts):
        return SettingsError(f"{called(method)}: round {what}; {_FROM}")
    return SettingsError(
        f"{called(method)}: round {what}; must yield each pass, `reduced = yield Pass(...)`, and"
        " return the next ServerState and a dict of metrics"
    )


def _checked_next(method: Method, returned: Any) -> tuple[ServerState, Metrics]:
    """Check and return the next state and metrics of a method's round.

    Raises:
        SettingsError: the round returned something else.
    """
    if isinstance(returned, tuple) and any(isinstance(part, Generator) for part in returned):
        raise _no_passes(method, f"returned {shown(returned)}", returned)
    result: tuple[ServerState, Metrics] = checked(method, Method.round, returned)
    return result
