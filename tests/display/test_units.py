"""Units of bytes, joules and seconds, in texts and of columns."""

from __future__ import annotations

import pytest

from raysim.display.units import fitting_unit, in_fitting_unit


@pytest.mark.parametrize(
    ("value", "measured", "shown"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (1000, "B", "1 kB"),
        (21_449, "B", "21.4 kB"),
        (999_499, "B", "999 kB"),
        (999_500, "B", "1 MB"),
        (2.1e6, "B", "2.1 MB"),
        (3.456e9, "B", "3.46 GB"),
        (5e15, "B", "5e+03 TB"),
        (1_234_567, "J", "1.23 MJ"),
        (0.25, "s", "0.25 s"),
        (59.96, "s", "60 s"),
        (90, "s", "1.5 min"),
        (3725.4, "s", "1.03 h"),
        (1e6, "s", "11.6 d"),
    ],
)
def test_quantities_have_three_digits(value, measured, shown):
    assert in_fitting_unit(value, measured) == shown


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([999, 0, None], "B"),
        ([1000, 3e9], "kB"),
        ([1e6, 999e6, 1e6], "MB"),
        ([2e9], "GB"),
        ([7e15], "TB"),
        ([], "B"),
    ],
)
def test_no_run_of_a_column_shows_nothing(values, unit):
    assert fitting_unit(values, "B") == unit
