"""A method whose work is waiting: a slot's device is at work, and the cores are not."""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field

import raysim
from raysim.methods.fedprox import FedProx


class Waiting(FedProx):
    """FedProx whose rounds take time, as on a GPU of its own."""

    seconds: float = Field(default=0.25, ge=0, description="of a round")

    def round(self, now: Any, state: raysim.ServerState) -> Any:
        time.sleep(self.seconds)
        return super().round(now, state)
