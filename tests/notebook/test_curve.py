"""Curves of the notebook's view, with places worked out by hand."""

from __future__ import annotations

import math
import re
import sys
from xml.etree import ElementTree

import pytest

from raysim.api.columns import Column
from raysim.api.scoring import ACCURACY, LOSS
from raysim.notebook.curve import MOST_POINTS, curve


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


def named(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in svg.iter() if each.attrib.get("id") == f"curve-{name}"]


def drawn(text: str) -> tuple[list[tuple[float, float]], list[str]]:
    """Return the places of a curve's points, and its texts."""
    svg = parsed(text)
    (line,) = named(svg, "line")
    path = next(each for each in line.iter() if "d" in each.attrib).attrib["d"]
    places = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    return places, [each.text or "" for each in svg.iter() if each.tag.endswith("text")]


def test_places_and_units_of_points():
    """Of rounds 1, 2 and 4, the second is a third of the way, at the largest of the values."""
    places, texts = drawn(curve([(1, 0.1), (2, 0.5), (4, 0.3)], ACCURACY, last=4))
    (x1, y1), (x2, y2), (x3, y3) = places
    assert (x2 - x1) / (x3 - x1) == pytest.approx(1 / 3, abs=1e-3)
    assert (y1 - y3) / (y1 - y2) == pytest.approx(1 / 2, abs=1e-3)
    assert {"accuracy [%]", "round", "10", "50", *"01234"} <= {*texts}


@pytest.mark.parametrize(("last", "rounds"), [(1, ["0", "1"]), (2, ["0", "1", "2"])])
def test_rounds_of_the_axis_are_whole(last, rounds):
    _, texts = drawn(curve([(1, 0.5)], LOSS, last=last))
    assert [text for text in texts if re.fullmatch(r"\d+", text)] == rounds


def test_values_that_are_not_finite_are_left_out():
    places, _ = drawn(curve([(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)], LOSS, last=4))
    assert len(places) == 2
    assert curve([(1, math.nan)], LOSS, last=4) == "" == curve([], LOSS, last=4)


def test_of_many_points_some_are_drawn():
    points = [(number, float(number % 7)) for number in range(1, 10_001)]
    places, _ = drawn(curve(points, LOSS, last=10_000))
    assert 2 < len(places) <= MOST_POINTS


def test_a_goal_is_a_line_on_the_axis():
    svg = parsed(curve([(1, 0.5)], ACCURACY, last=3, goal=0.97))
    assert len(named(svg, "goal")) == 1
    assert not named(parsed(curve([(1, 0.5)], ACCURACY, last=3)), "goal")


def test_names_are_escaped_and_read_out():
    svg = parsed(curve([(3, 0.25)], Column('held-out "a<b" $accuracy$', unit="%"), last=3))
    assert svg.attrib["aria-label"] == 'held-out "a<b" $accuracy$ by round: 25.00% at round 3'


def test_there_is_no_curve_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert curve([(1, 0.5)], LOSS, last=3) == ""
