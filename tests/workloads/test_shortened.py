"""Shortening in proportion, by hand."""

from __future__ import annotations

from raysim.workloads.shortened import shortened


def test_rounds_are_shortened_in_proportion():
    assert shortened({"pre-pass": 5, "run": 8}, 4) == {"pre-pass": 2, "run": 4}
    assert shortened({"pre-pass": 5, "run": 8}, 1) == {"pre-pass": 1, "run": 1}
    assert shortened({"a": 5, "b": 5}, 9) == {"a": 5, "b": 5}
    # 0.1 x 30 is below 3 in floating point.
    assert shortened({"a": 30, "b": 300}, 30) == {"a": 3, "b": 30}
