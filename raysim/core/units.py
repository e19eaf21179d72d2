"""Units of what tables, charts and terminals show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BYTES: Mapping[str, float] = {"B": 1.0, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9}
"""Factors from bytes to a unit, the smallest first."""
SCALES: Mapping[str, float] = {"%": 100.0, **BYTES}
"""Factors from a metric's value to a unit; other units are not scaled."""


def unit_of_column(column: str) -> str:
    """Return the unit in which tables and charts show a column: percent of an accuracy, or none."""
    return "%" if any(word in column for word in ("accuracy", "f1")) else ""


def unit_of_bytes(values: Iterable[float | None]) -> str:
    """Return the largest unit in which each number of bytes, but for zeros, is at least one."""
    smallest = min((value for value in values if value), default=0)
    return next((unit for unit in reversed([*BYTES]) if smallest * BYTES[unit] >= 1), "B")


def with_unit(value: str, unit: str) -> str:
    """Return a value and its unit, as "24.1%" or "3.5 MB"."""
    return f"{value}{unit}" if unit == "%" else f"{value} {unit}".rstrip()


def with_prefix(value: float, unit: str) -> str:
    """Return a quantity in three digits, as "21.4 kB"; below 1000, in whole units."""
    for prefix in ("", "k", "M", "G", "T"):
        shown = f"{value:.0f}" if not prefix else f"{value:.3g}"
        if value < 999.5 or prefix == "T":
            break
        value /= 1000
    return with_unit(shown, f"{prefix}{unit}")
