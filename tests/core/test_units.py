"""Units of bytes, in texts and of columns."""

from __future__ import annotations

import pytest

from raysim.core.units import unit_of_bytes, with_prefix


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (21_449, "21.4 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (2.1e6, "2.1 MB"),
        (3.456e9, "3.46 GB"),
        (5e15, "5e+03 TB"),
    ],
)
def test_quantities_have_three_digits(value, shown):
    assert with_prefix(value, "B") == shown


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([999, 0, None], "B"),
        ([1000, 3e9], "kB"),
        ([1e6, 999e6, 1e6], "MB"),
        ([2e9], "GB"),
        ([7e15], "GB"),
        ([], "B"),
    ],
)
def test_no_run_of_a_column_shows_nothing(values, unit):
    assert unit_of_bytes(values) == unit
