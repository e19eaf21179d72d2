"""Curves of the notebook's view, with places worked out by hand."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from raysim.notebook.curve import BOTTOM, LEFT, MOST_POINTS, RIGHT, TOP, curve


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


def drawn(text: str) -> tuple[list[tuple[float, float]], list[str]]:
    """Return the places of a curve's points, and its texts."""
    svg = parsed(text)
    (line,) = svg.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    return places, [each.text or "" for each in svg.iter("text")]


def test_places_of_points():
    """Values from 0.1 to 0.5 with 5% room: 0.08 to 0.52 from bottom to top, rounds 0 to 4."""
    places, texts = drawn(curve([(1, 0.1), (2, 0.5), (4, 0.3)], "accuracy", last=4))
    across = [LEFT + (RIGHT - LEFT) * share for share in (1 / 4, 2 / 4, 1)]
    up = [BOTTOM - (BOTTOM - TOP) * share for share in (0.02 / 0.44, 0.42 / 0.44, 0.22 / 0.44)]
    expected = [*zip(across, up, strict=True)]
    assert [x for pair in places for x in pair] == pytest.approx(
        [x for pair in expected for x in pair], abs=0.051
    )
    assert texts == ["20%", "40%", *"01234", "round", "accuracy"]


@pytest.mark.parametrize(
    ("points", "name", "ticks"),
    [
        ([(1, 0.9712), (2, 0.9731)], "accuracy", ["97.2%", "97.3%"]),
        ([(1, 2.0), (2, 1.0)], "loss", ["1.0", "1.5", "2.0"]),
        ([(1, 1200.0), (2, 3900.0)], "loss", ["2000", "3000", "4000"]),
        ([(1, 3e-6), (2, 5e-6)], "loss", ["0.000003", "0.000004", "0.000005"]),
        ([(1, 3e-9), (2, 5e-9)], "loss", ["3e-09", "4e-09", "5e-09"]),
        ([(1, 0.15), (2, 0.9)], "accuracy", ["25%", "50%", "75%"]),
        ([(1, 0.15)], "accuracy", ["14.5%", "15.0%", "15.5%"]),
    ],
)
def test_ticks_are_round_values_in_the_digits_they_need(points, name, ticks):
    _, texts = drawn(curve(points, name, last=2))
    assert texts == [*ticks, "0", "1", "2", "round", name]


def test_rounds_of_the_axis_are_whole():
    _, texts = drawn(curve([(1, 0.5)], "loss", last=1))
    assert [text for text in texts if re.fullmatch(r"\d+", text)] == ["0", "1"]


def test_values_that_are_not_finite_are_left_out():
    places, _ = drawn(curve([(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)], "loss", last=4))
    assert len(places) == 2
    assert curve([(1, math.nan)], "loss", last=4) == "" == curve([], "loss", last=4)


def test_of_many_points_some_are_drawn_and_the_last_one():
    points = [(number, float(number)) for number in range(1, 10_001)]
    places, _ = drawn(curve(points, "loss", last=10_000))
    assert len(places) == MOST_POINTS
    assert (places[0][0], places[-1][0]) == (pytest.approx(LEFT, abs=0.1), RIGHT)


def test_a_goal_is_a_dashed_line_on_the_axis():
    svg = parsed(curve([(1, 0.5)], "accuracy", last=3, goal=0.97))
    (goal,) = [each for each in svg.iter("line") if "stroke-dasharray" in each.attrib]
    assert TOP < float(goal.attrib["y1"]) < TOP + 0.1 * (BOTTOM - TOP)


def test_names_are_escaped_and_read_out():
    svg = parsed(curve([(3, 0.25)], 'held-out "a<b" accuracy', last=3))
    assert svg.attrib["aria-label"] == 'held-out "a<b" accuracy by round: 25.00% at round 3'
