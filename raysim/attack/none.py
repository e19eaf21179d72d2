"""No attack: all clients are honest."""

from __future__ import annotations

from pydantic import Field

from raysim.api.attack import Attack


class NoAttack(Attack):
    """No attack; the default.

    `attack.fraction` and `.per_round` are left unused, so that a sweep over attacks has a column
    without one.
    """

    fraction: float = Field(default=0.0, ge=0, le=1, description="unused: no client is bad")
