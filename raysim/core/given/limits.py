"""Limits of numbers that a user gives."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST = 10**9
"""Upper limit of counts: the product of two, as of samples and epochs, fits in 64 bits."""
Count = Annotated[int, Field(ge=1, le=MOST)]
"""A number of clients, samples, rounds, epochs or steps."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A seed; tables and other tools read it as a 64-bit integer."""
