"""Steps of a run that wait for others: generators whose requests are answered from outside."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""What `yield from` returns T of. It yields requests for what workers do, and is sent the answers;
see `raysim.execution.base.NextResult`."""
