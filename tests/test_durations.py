"""Seconds of the tests' files and functions, from a record as pytest writes it."""

from __future__ import annotations

from tests.durations import durations

RECORD = """<testsuites><testsuite name="pytest">
<testcase classname="tests.core.test_a" name="test_x[1]" time="0.5" />
<testcase classname="tests.core.test_a" name="test_x[2]" time="1.0" />
<testcase classname="tests.test_b.TestScaffold" name="test_y" time="2.0" />
</testsuite></testsuites>"""


def test_seconds_are_added_up_by_hand(tmp_path):
    (tmp_path / "record.xml").write_text(RECORD)
    files, functions, cases = durations(tmp_path / "record.xml")
    assert files == {"tests.core.test_a": 1.5, "tests.test_b": 2.0}
    assert functions == {"tests.core.test_a.test_x": 1.5, "tests.test_b.test_y": 2.0}
    assert cases["tests.core.test_a"] == cases["tests.core.test_a.test_x"] == 2
