"""Steps of a run that wait for others: generators whose requests are answered from outside."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""What `yield from` returns T of. It yields requests for what workers do, and is sent the answers;
see `raysim.execution.base.NextResult`."""


def resumed(steps: Generator[Any, Any, Any], value: Any, error: BaseException | None) -> Any:
    """Send a value to steps, or raise an error in them; return what they yield next.

    Callers let go of both: a traceback that holds its own error lives until it is collected.
    """
    try:
        return steps.send(value) if error is None else steps.throw(error)
    finally:
        del value, error
