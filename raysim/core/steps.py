"""Steps of a run: generators that yield requests and are sent the answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""Generator that returns T; it yields requests to workers and is sent their answers, see
`raysim.execution.base.NextResult`."""


def resumed(steps: Generator[Any, Any, Any], value: Any, error: BaseException | None) -> Any:
    """Send a value to steps, or raise an error in them; return what they yield next.

    Callers must drop both: a traceback that holds its own error lives until it is collected.
    """
    try:
        return steps.send(value) if error is None else steps.throw(error)
    finally:
        del value, error
