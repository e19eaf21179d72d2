"""Changes of tables and figures, by hand."""

from __future__ import annotations

import pytest

from raysim.errors import SettingsError
from raysim.tuning.changes import changed_settings, check_overrides, shortened


def test_rounds_are_shortened_in_proportion():
    assert shortened({"pre-pass": 5, "run": 8}, 4) == {"pre-pass": 2, "run": 4}
    assert shortened({"pre-pass": 5, "run": 8}, 1) == {"pre-pass": 1, "run": 1}
    assert shortened({"a": 5, "b": 5}, 9) == {"a": 5, "b": 5}
    # 0.1 x 30 is below 3 in floating point.
    assert shortened({"a": 30, "b": 300}, 30) == {"a": 3, "b": 30}


REFUSED = {
    "out": "out=x: use the option --out for a table",
    "rounds": "rounds=x: use the option --rounds for a table, which says that it shortens",
    "reference": "reference=x: follows from the row a; leave it out",
}


@pytest.mark.parametrize("key", REFUSED)
def test_settings_that_are_options_or_settled_are_refused(key):
    with pytest.raises(SettingsError, match=f"^{REFUSED[key]}$"):
        check_overrides("table", {"local.lr": 1, key: "x"}, {"reference": "the row a"})


def test_other_settings_are_taken():
    check_overrides("table", {"local.lr": 1, "reference": "x"}, {})


def test_only_settings_that_change_a_result_are_noted():
    given = {"trace": True, "local.lr": 0.5, "analysis": ("cka",), "dataset.name": "a b"}
    assert changed_settings(given) == [
        "Settings changed for all runs: local.lr=0.5, 'dataset.name=a b'."
    ]
    assert changed_settings({"trace": True}) == []
    dropped = ["Settings changed for all runs: on_client_error=drop."]
    assert changed_settings({"on_client_error": "drop"}) == dropped
