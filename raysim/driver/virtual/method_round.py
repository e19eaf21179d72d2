"""Round of the method; one in which no client's result arrives leaves the server as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raysim.core.components import calling, checked
from raysim.core.errors import RunError
from raysim.core.method import Method, Metrics, Round, ServerState

NEXT_STATE = "the next ServerState and a dict of metrics"


class LostRoundError(RunError):
    """Error of a pass of which no client's result arrives."""


def method_round(
    method: Method, now: Round, state: ServerState, note: Callable[[str], None]
) -> tuple[ServerState, Metrics]:
    """Run a method's round; return the next state and its metrics, of a lost round the same state.

    Args:
        method: The method.
        now: Input of its round.
        state: The state before the round.
        note: Shows the user one line.

    Raises:
        RaysimError: the method fails, or returns something else.
    """
    try:
        with calling(method, "round"):
            found = method.round(now, state)
    except LostRoundError as error:
        note(str(error))
        return state, {}
    next_state: tuple[ServerState, Metrics]
    next_state = checked(method, "round", found, _is_next_state, NEXT_STATE)
    return next_state


def _is_next_state(found: Any) -> bool:
    state, metrics = found
    return isinstance(state, ServerState) and isinstance(metrics, Mapping)
