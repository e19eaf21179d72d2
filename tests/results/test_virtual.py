"""Virtual time in the page of a report."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest

import raysim
from tests.results.test_report import Parser, outside, page_of
from tests.tasks import UNEQUAL, make_settings, make_task


def test_the_page_shows_who_worked_when(tmp_path, write_run):
    settings = make_settings(tmp_path / "timed", rounds=2, **{"clock.name": "devices"})
    raysim.run(settings, make_task(UNEQUAL))
    rows = pq.read_table(tmp_path / "timed" / "clients.parquet")["round"].to_pylist()
    text = page_of([tmp_path / "timed"])
    found = Parser(text)
    assert found.tags.count("svg") == 12  # 10 of curves, time, virtual time
    assert outside(found.addresses) == [] and len({*found.ids}) == len(found.ids)
    assert "against virtual time" in text and "against energy" in text
    chart = text[text.index('<section id="virtual"') :]
    chart = chart[: chart.index("</section>")]
    bars = [chart.count(f"fill: {colour}") for colour in ("var(--c1)", "var(--c2)", "var(--c3)")]
    assert bars == [rows.count(1), rows.count(2), 0]
    (unit,) = re.findall(r">virtual time \[(\w+)\]</text>", chart)
    assert text.count(f">virtual time [{unit}]<") > 2  # the Gantt chart, curves and the table
    assert text == page_of([tmp_path / "timed"])


def test_the_page_shows_how_stale_updates_are(tmp_path):
    buffered = {"method.name": "fedbuff", "method.buffer": 1, "fraction": 0.7, "rounds": 6}
    raysim.run(make_settings(tmp_path / "stale", **buffered), make_task(UNEQUAL))
    rows = pq.read_table(tmp_path / "stale" / "clients.parquet")["staleness"].to_pylist()
    text = page_of([tmp_path / "stale"])
    chart = text[text.index('<section id="virtual"') :]
    chart = chart[: chart.index("</section>")]
    assert "versions between start and aggregation" in chart
    assert chart.count("fill: var(--c0)") == max(rows) + 1 > 1  # a bar each


def test_the_page_shows_from_which_version_who_worked(tmp_path):
    own = {"method.name": "fedbuff", "method.buffer": 2, "fraction": 0.7, "rounds": 6}
    settings = make_settings(tmp_path / "timed", **own, **{"clock.name": "devices"})
    raysim.run(settings, make_task(UNEQUAL))
    table = pq.read_table(tmp_path / "timed" / "clients.parquet")
    versions, rounds = (table[name].to_pylist() for name in ("version", "round"))
    text = page_of([tmp_path / "timed"])
    section = text[text.index('<section id="virtual"') :]
    chart, _, after = section.partition("</svg>")
    assert "colours are the versions they start from" in chart + after
    colours = ("var(--c0)", "var(--c1)", "var(--c2)")
    expected = [versions.count(number) for number in range(3)]
    assert [chart.count(f"fill: {colour}") for colour in colours] == expected
    assert expected != [rounds.count(number) for number in range(3)]


def test_charts_of_virtual_time_share_a_scale(tmp_path):
    """A bar twice as long took twice the time, in whichever chart it is."""
    ends = {}
    for name, rounds in {"short": 2, "long": 5}.items():
        own = {"rounds": rounds, "clock.name": "devices"}
        raysim.run(make_settings(tmp_path / name, **own), make_task(UNEQUAL))
        table = pq.read_table(tmp_path / name / "clients.parquet")
        pairs = zip(table["virtual_start"], table["virtual_seconds"], strict=True)
        ends[name] = max(start.as_py() + seconds.as_py() for start, seconds in pairs)
    text = page_of([tmp_path / "long", tmp_path / "short"])
    section = text[text.index('<section id="virtual"') :]
    parts = section.split("</svg>")[:2]
    bars = [re.findall(r'<path d="([^"]*)"[^>]*style="fill: var', part) for part in parts]
    rights = [
        max(float(x) for bar in each for x in re.findall(r"L ([\d.]+)", bar)) for each in bars
    ]
    left = 0.13 * 72 * 5.4  # of the axes, in points
    widths = [right - left for right in rights]
    assert ends["long"] > 1.5 * ends["short"]
    assert widths[0] / widths[1] == pytest.approx(ends["long"] / ends["short"], rel=0.01)
