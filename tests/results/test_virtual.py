"""Virtual time in the page of a report."""

from __future__ import annotations

import pyarrow.parquet as pq

import raysim
from tests.results.test_report import Parser, outside, page_of
from tests.tasks import UNEQUAL, make_settings, make_task


def test_the_page_shows_who_worked_when(tmp_path, write_run):
    settings = make_settings(tmp_path / "timed", rounds=2, **{"clock.name": "devices"})
    raysim.run(settings, make_task(UNEQUAL))
    rows = pq.read_table(tmp_path / "timed" / "clients.parquet")["round"].to_pylist()
    text = page_of([tmp_path / "timed"])
    found = Parser(text)
    assert found.tags.count("svg") == 12  # ten of curves, one of time, one of virtual time
    assert outside(found.addresses) == [] and len({*found.ids}) == len(found.ids)
    assert "against virtual hours" in text and "against J of all clients" in text
    chart = text[text.index('<section id="virtual"') :]
    chart = chart[: chart.index("</section>")]
    bars = [chart.count(f"fill: {colour}") for colour in ("#ff7f0e", "#2ca02c", "#d62728")]
    assert bars == [rows.count(1), rows.count(2), 0]
    assert "virtual seconds" in chart
    assert text == page_of([tmp_path / "timed"])


def test_the_page_shows_how_stale_updates_are(tmp_path):
    buffered = {"method.name": "fedbuff", "method.buffer": 1, "fraction": 0.7, "rounds": 6}
    raysim.run(make_settings(tmp_path / "stale", **buffered), make_task(UNEQUAL))
    rows = pq.read_table(tmp_path / "stale" / "clients.parquet")["staleness"].to_pylist()
    text = page_of([tmp_path / "stale"])
    chart = text[text.index('<section id="virtual"') :]
    chart = chart[: chart.index("</section>")]
    assert "versions between start and aggregation" in chart
    assert chart.count("fill: #1f77b4") == max(rows) + 1 > 1  # a bar each


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
    colours = ("#1f77b4", "#ff7f0e", "#2ca02c")
    expected = [versions.count(number) for number in range(3)]
    assert [chart.count(f"fill: {colour}") for colour in colours] == expected
    assert expected != [rounds.count(number) for number in range(3)]
