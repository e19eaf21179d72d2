"""Verdicts on tables: who won, by how much, and whether it is certain."""

from __future__ import annotations

import re

import pytest
from scipy import stats

from raysim.results.statistics import SEEDS_FOR_TEST
from raysim.results.tables import ResultCell, ResultTable
from raysim.results.verdict import verdicts
from tests.results.cells import declared

SEEDS = range(5)
FIRST = [0.80, 0.82, 0.81, 0.84, 0.83]
BEHIND = [0.01, 0.02, 0.03, 0.02, 0.02]
"""Differences of five seeds; 0.02 in the mean."""


def only(rows, metric="final(test_accuracy)", unit="%", **fields):
    cells = {
        (row, "x"): cell if isinstance(cell, ResultCell) else ResultCell(dict(enumerate(cell)))
        for row, cell in rows.items()
    }
    table = ResultTable("t", metric, unit, (*rows,), ("x",), declared(cells, metric), **fields)
    (verdict,) = verdicts([table])
    return verdict


def test_the_best_row_its_lead_and_the_paired_test():
    second = [a - b for a, b in zip(FIRST, BEHIND, strict=True)]
    found = only({"b": second, "a": FIRST})
    assert (found.heading, found.certainty) == ("a is best", "told apart at 5%")
    reach = stats.t.ppf(0.975, 4) * stats.sem(BEHIND)
    low, high = 100 * (0.02 - reach), 100 * (0.02 + reach)
    p = stats.ttest_rel(FIRST, second).pvalue
    assert found.text == (
        f"Its mean is 82.00%, 2.00 percentage points above b, the next one (95% interval {low:.2f}"
        f" to {high:.2f} for this pair alone; p = {p:.3f} by Holm over all pairs). The paired"
        " t-test over 5 seeds tells b from it at a level of 5%."
    )


def test_the_smaller_is_better_and_the_lead_is_below():
    worse = [a + b for a, b in zip(FIRST, BEHIND, strict=True)]
    found = only({"b": worse, "a": FIRST, "c": [9.0] * 5}, "final(test_loss)", "")
    assert found.heading == "a is best"
    assert "Its mean is 0.82, 0.02 below b, the next one" in found.text
    assert re.search(r"interval 0\.011\d+ to 0\.028\d+ for", found.text)
    assert "tells all 2 other rows from it" in found.text


def test_rows_that_the_test_does_not_tell_apart_are_named():
    near = [0.84, 0.78, 0.82, 0.80, 0.84]
    found = only({"a": FIRST, "near": near, "far": [0.1] * 5, "few": FIRST[:3]})
    assert found.certainty == "not told apart at 5%"
    assert found.heading.startswith("a has the best mean, not told apart from ")
    assert "does not tell near from it" in found.text
    assert found.text.endswith("Not compared: few.")


def test_below_five_seeds_nothing_is_compared():
    assert SEEDS_FOR_TEST == 5  # the words say five
    found = only({"a": FIRST[:4], "b": [0.1] * 4})
    assert (found.heading, found.certainty) == ("No winner yet", "not compared")
    assert found.text == (
        "Below five seeds nothing is compared, and these rows have 4. The best mean so far is that"
        " of a, 81.75%."
    )
    rounds = only({"a": [9.0, 7.0], "b": [8.0, 7.0]}, "rounds_to(test_accuracy, 0.9)", "rounds")
    assert "that of b, 7.5 rounds." in rounds.text


def test_rows_of_the_same_values_are_equal():
    """Also where sums in another order have rounded them; a third row is tested against both."""
    rounded = [value + 1e-16 for value in FIRST]
    found = only({"b": FIRST, "a": rounded})
    assert (found.heading, found.certainty) == ("a and b are equal", "equal")
    assert found.text == "They have the same value for each of 5 seeds; the mean is 82.00%."
    near = [0.84, 0.78, 0.82, 0.80, 0.84]
    found = only({"a": FIRST, "b": FIRST, "near": near, "far": [0.1] * 5, "few": FIRST[:3]})
    assert found.heading == "a and b have the best mean, and are equal"
    assert found.text.endswith(
        " The paired t-test tells far from them and does not tell near from them at a level of 5%."
        " Not compared: few."
    )
    behind = only({"a": FIRST, "b": [0.1] * 5, "c": [0.1] * 5})
    assert (behind.heading, behind.certainty) == ("a is best", "told apart at 5%")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            {"a": FIRST[:2], "b": [0.1] * 2, "c": FIRST[:2]},
            "Below five seeds nothing is compared, and these rows have 2. The best mean so far is"
            " that of a and c, 81.00%.",
        ),
        ({"a": FIRST}, "There is one row, and nothing to compare it with. Its mean is 82.00%."),
        (
            {"a": FIRST, "b": ResultCell({**dict(enumerate(FIRST[:4])), 4: None})},
            "Only a has a value for every seed. The best mean so far is that of a, 82.00%.",
        ),
        (
            {row: ResultCell(dict.fromkeys(SEEDS)) for row in "ab"},
            "No row has a value for every seed. No run has a value.",
        ),
        (
            {row: ResultCell(dict(enumerate(FIRST)), in_progress=True) for row in "ab"},
            "Runs in progress are not compared. The best mean so far is that of a and b, 82.00%.",
        ),
        (
            {"a": FIRST, "b": ResultCell(dict(zip(range(5, 10), FIRST, strict=True)))},
            "That takes two rows with the same 5 seeds or more. The best mean so far is that of a"
            " and b, 82.00%.",
        ),
    ],
)
def test_why_nothing_is_compared(rows, text):
    found = only(rows)
    assert found.certainty == "not compared" and found.text == text


def test_columns_without_runs_have_no_verdict():
    cells = [ResultCell({0: 0.5}, "a", "x"), ResultCell({}, "a", "y", lacking="images")]
    table = ResultTable("t", "final(test_accuracy)", "%", ("a",), ("x", "y"), cells)
    assert [verdict.column for verdict in verdicts([table])] == ["x"]
