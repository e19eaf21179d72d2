"""Dates of a column, in one of the forms in which people and programs write them.

A column has one form. Where all its values are dates with the day first and with the month first,
neither is guessed.

Legend: n values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raysim.workloads.datasets.files.source import as_words, is_text

ISO = ""
"""Form 2024-02-29 or 2024-02-29 13:30, and that of columns which are stored as dates."""
ZONE = r"(:\d\d)([.,]\d+)?(Z|[+-]\d\d(:?\d\d)?)?$"
"""End of a time: fractions of seconds and the zone."""
DAY_FIRST, MONTH_FIRST = "%d{0}%m{0}", "%m{0}%d{0}"
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
                yield f"{DAY_FIRST.format(mark)}{year}{time}"
                yield f"{MONTH_FIRST.format(mark)}{year}{time}"
            yield f"%Y{mark}%m{mark}%d{time}"
        for year in ("%Y", "%y"):
            yield from (f"%d{mark}%b{mark}{year}{time}" for mark in " -/.")
            yield from (f"%b %d{mark}{year}{time}" for mark in (", ", " "))


FORMS = tuple(_forms())
"""Forms of dates: ISO's, and formats of strptime."""


def forms_of(values: pa.Array, among: Sequence[str]) -> tuple[str, ...]:
    """Return which of some forms all dates [n] of a column have; none if one is no date."""
    if among and is_text(values.type):  # few forms suit the first value
        among = [form for form in among if as_dates(values[:1], form) is not None]
    return tuple(form for form in among if as_dates(values, form) is not None)


def is_ambiguous(forms: Sequence[str]) -> bool:
    """Say whether dates of these forms may have the day or the month first."""
    starts = {form[:2] for form in forms if "%m" in form}
    return {"%d", "%m"} <= starts


def shown_forms(forms: Sequence[str]) -> str:
    """Return forms as they stand in a message: `DD.MM.YYYY or MM.DD.YYYY`."""
    told = []
    for form in forms:
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
