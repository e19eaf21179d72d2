"""Units of what tables and charts show."""

from __future__ import annotations

from collections.abc import Mapping

SCALES: Mapping[str, float] = {"%": 100.0, "KB": 1e-3, "MB": 1e-6, "GB": 1e-9}
"""Factors from a metric's value to a unit; other units are not scaled."""


def unit_of_column(column: str) -> str:
    """Return the unit in which tables and charts show a column: percent of an accuracy, or none."""
    return "%" if any(word in column for word in ("accuracy", "f1")) else ""
