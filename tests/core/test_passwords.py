"""Passwords in texts for the user."""

from __future__ import annotations

import pytest

import raysim
from raysim.core.errors import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@db/x", "postgresql://me:***@db/x"),
        ("at mysql+pymysql://me:se:c/r@et@db:1/x, and", "at mysql+pymysql://me:***@db:1/x, and"),
        ("http://:secret@host:8265", "http://:***@host:8265"),
        ("a://u:secret@h b://u:secret@h", "a://u:***@h b://u:***@h"),
        (
            "postgresql://db/x?user=me&password=secret&sslmode=on",
            "postgresql://db/x?user=me&password=***&sslmode=on",
        ),
        ("a://db?PWD=secret", "a://db?PWD=***"),
        *[(text, text) for text in ("postgresql://me@db:5432/x", "sqlite:///a:b@c.db", "x:y@z")],
    ],
)
def test_passwords_of_urls_are_masked(text, shown):
    assert without_passwords(text) == shown
    assert str(raysim.SettingsError(text)) == shown
