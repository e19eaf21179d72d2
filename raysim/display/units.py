"""Units of values in tables, charts and terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNITS: Mapping[str, Mapping[str, float]] = {
    "B": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "J": {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "TJ": 1e12},
    "s": {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0},
}
"""Per measured unit, the sizes of the shown units, the smallest first."""
SCALES: Mapping[str, float] = {
    "%": 100.0,
    **{unit: 1 / size for units in UNITS.values() for unit, size in units.items()},
}
"""Factors from a metric's value to a unit; other units are not scaled."""


def fitting_unit(values: Iterable[float | None], measured: str) -> str:
    """Return the largest unit in which each value, except zeros, is at least one.

    Args:
        values: The values; None is left out.
        measured: The unit of the values, one of UNITS.
    """
    smallest, units = min((abs(value) for value in values if value), default=0), UNITS[measured]
    fitting = (unit for unit in reversed([*units]) if float(f"{smallest / units[unit]:.3g}") >= 1)
    return next(fitting, measured)


def with_unit(value: str, unit: str) -> str:
    """Return a value and its unit, as "24.1%" or "3.5 MB"."""
    return f"{value}{unit}" if unit == "%" else f"{value} {unit}".rstrip()


def in_fitting_unit(value: float, measured: str) -> str:
    """Return a value in three digits and in the unit that fits, as "21.4 kB" or "1.5 h".

    Args:
        value: The value.
        measured: The unit of the value, one of UNITS.
    """
    unit = fitting_unit([value], measured)
    return with_unit(f"{value / UNITS[measured][unit]:.3g}", unit)


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, as "1 round" and "2 rounds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
