"""Dates of a column, in one of the forms that people and programs write.

A column has one form. If all its values are dates in several forms (day, month or year first), with
different dates, raysim does not guess the form.

Legend: n values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from raysim.workloads.datasets.files.source import as_words, is_text

ISO = ""
"""Form 2024-02-29 or 2024-02-29 13:30, and the form of columns that are stored as dates."""
ZONE = r"(:\d\d)([.,]\d+)?(Z|[+-]\d\d(:?\d\d)?)?$"
"""End of a time: fractions of seconds and the zone."""
DAY_FIRST, MONTH_FIRST, YEAR_FIRST = "%d{0}%m{0}{1}", "%m{0}%d{0}{1}", "{1}{0}%m{0}%d"
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
IN_WORDS = {
    **{"%d": "DD", "%m": "MM", "%b": "Mon", "%Y": "YYYY", "%y": "YY"},
    **{"%H": "hh", "%I": "hh", "%M": "mm", "%S": "ss", "%p": "PM"},
}
WRITTEN = (
    (r"(\d)t(\d)", r"\1 \2"),  # 29.2.2024T13:30
    (r"(\d)([ap]m)$", r"\1 \2"),
    (r"([a-z]{3})[a-z]*", r"\1"),  # February
    (r"([a-z]{3})\. ", r"\1 "),
    (r"\b0(\d)", r"\1"),
)
"""What is written in several ways within a form, in lower case, and the way that is kept."""


def _forms() -> Iterator[str]:
    yield ISO
    for time in TIMES:
        for mark in "./-":
            for year in ("%Y", "%y"):
                for first in (DAY_FIRST, MONTH_FIRST, YEAR_FIRST):
                    yield f"{first.format(mark, year)}{time}"
        for year in ("%Y", "%y"):
            yield from (f"%d{mark}%b{mark}{year}{time}" for mark in " -/.")
            yield from (f"%b %d{mark}{year}{time}" for mark in (", ", " "))


First = Literal["day", "month", "year"]
Readings = tuple[tuple[str, ...], ...]
"""Forms that read all values of a column as dates, grouped by the dates that they give."""
FORMS: Readings = (tuple(_forms()),)
"""All forms of dates: ISO's, and formats of strptime."""


def readings_of(values: pa.Array, among: Readings) -> Readings:
    """Return the forms that read all values [n] of a column as dates; empty if there is none."""
    readings: list[tuple[str, ...]] = []
    if not is_text(values.type):
        return among if among and as_dates(values, ISO) is not None else ()
    for forms in among:
        alike: list[tuple[pa.Array, list[str]]] = []
        for form in forms:
            if as_dates(values[:1], form) is None:  # few forms suit the first value
                continue
            if (dates := as_dates(values, form)) is not None:
                same = next(
                    (alike_forms for known, alike_forms in alike if known.equals(dates)), None
                )
                if same is None:
                    alike.append((dates, same := []))
                same.append(form)
        readings += (tuple(alike_forms) for _, alike_forms in alike)
    return tuple(readings)


def firsts_of(readings: Readings) -> list[str]:
    """Return the possible first parts of ambiguous dates: day, month or year."""
    names = {"d": "day", "m": "month", "y": "year"}
    firsts = [names[form[1].lower()] for forms in readings for form in forms if "%m" in form]
    return [name for name in names.values() if name in firsts]


def chosen(readings: Readings, first: First | None) -> str | None:
    """Return the form of a column; None if several forms give different dates.

    Args:
        readings: The column's forms.
        first: The first part of dates, to choose among several forms.
    """
    if len(readings) > 1:
        readings = tuple(r for r in readings if first in firsts_of((r,)))
    return readings[0][0] if len(readings) == 1 else None


def shown_forms(readings: Readings) -> str:
    """Return forms as they stand in a message: `DD.MM.YYYY or MM.DD.YYYY`."""
    told = []
    for form, *_ in readings:
        for code, words in IN_WORDS.items():
            form = form.replace(code, words)  # noqa: PLW2901
        told.append(form or "YYYY-MM-DD")
    return " or ".join(dict.fromkeys(told))


def as_dates(values: pa.Array, form: str) -> pa.Array | None:
    """Return the dates [n] of a column as times, as a clock there shows them; None if one is none.

    Args:
        values: The column.
        form: Form of its words.
    """
    if pa.types.is_timestamp(values.type):
        return values if values.type.tz is None else pc.local_timestamp(values)
    try:
        if not is_text(values.type):
            is_date = pa.types.is_date(values.type) or pa.types.is_null(values.type)
            return pc.cast(values, pa.timestamp("s")) if is_date else None
        words = pc.replace_substring_regex(as_words(values), ZONE, r"\1")
        if form == ISO:
            return pc.cast(words, pa.timestamp("s"))
        words = _as_written(words)
        dates = pc.strptime(words, format=form, unit="s")
        again = _as_written(pc.strftime(dates, format=form))  # 31.2. became 2.3., 24 the year 0024
        return dates if again.equals(words) else None
    except pa.ArrowInvalid:
        return None


def _as_written(words: pa.Array) -> pa.Array:
    words = pc.utf8_lower(words)
    for several, one in WRITTEN:
        words = pc.replace_substring_regex(words, several, one)
    return words
