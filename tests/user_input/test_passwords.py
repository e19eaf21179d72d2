"""Passwords in texts for the user."""

from __future__ import annotations

import pytest

import raysim
from raysim.errors import remember_password, without_passwords


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
        ("a://db?sslpassword=secret&token=s", "a://db?sslpassword=***&token=***"),
        *[(text, text) for text in ("postgresql://me@db:5432/x", "sqlite:///a:b@c.db", "x:y@z")],
    ],
    ids=range(10),  # pytest has the name of a test in a variable
)
def test_passwords_of_urls_are_masked(text, shown):
    assert without_passwords(text) == shown
    assert str(raysim.SettingsError(text)) == shown


SHAPES = {
    "postgresql://u:ab@c:TAIL@127.0.0.1:1/db": "invalid literal for int(): 'TAIL@127.0.0.1:1'",
    "postgresql:/u:WHOLE@127.0.0.1/db": "cannot parse postgresql:/u:WHOLE@127.0.0.1/db",
    "u:WHOLE@127.0.0.1/db": "cannot parse u:WHOLE@127.0.0.1/db",
    "postgresql://u:\nTAIL@127.0.0.1:1/db": "at postgresql://u:\nTAIL@127.0.0.1:1/db",
    "postgresql://u:%54AI%4C/X@127.0.0.1/db": "no role with TAIL/X, no database X@127.0.0.1",
    "mysql://u:x TAIL@h/db": "Access denied (using password: 'TAIL')",
    "postgresql://db/x?user=u&sslpassword=TAIL%21": "the key cannot be read with 'TAIL!'",
}


@pytest.mark.parametrize("url", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("source", ["word", "option", "variable", "other variable", "read"])
def test_pieces_of_a_given_password_are_masked(monkeypatch, url, source):
    """A library that cannot read a URL quotes what it took for the port, the host or the path."""
    word = f"--storage={url}" if source == "option" else url
    monkeypatch.setattr("sys.argv", ["raysim", *([word] if source in ("word", "option") else [])])
    if source == "variable":
        monkeypatch.setenv("RAYSIM_STORAGE", url)
    if source == "other variable" and ":/" in url:
        monkeypatch.setenv("SOME_URL", url)
    elif source in ("read", "other variable"):
        remember_password(url)
    shown = str(raysim.RunError(SHAPES[url]))
    assert "***" in shown and "TAIL" not in shown and "WHOLE" not in shown


LISTS = {
    "PATH": "bin:/usr/bin:/work/data:/opt/python@3.11/bin",
    "LD_LIBRARY_PATH": "/work/lib:/work/data/gcc@12/lib",
    "XDG_DATA_DIRS": "/work/data:/opt/share@2/data",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_folders_has_no_password(monkeypatch, name):
    monkeypatch.setattr("sys.argv", ["raysim", "/work/data:x@y", "--out=/work/data:1@2"])
    monkeypatch.setenv(name, LISTS[name])
    text = "/work/data/settings.toml: cannot be read; /opt/python/usr/share"
    assert without_passwords(text) == text


def test_what_is_like_a_password_by_chance_stays(monkeypatch):
    monkeypatch.setattr("sys.argv", ["raysim", "postgresql://u:ab@c@db/x", "model.name=a:B"])
    assert without_passwords("a table abc; tab, B, ab") == "a table abc; tab, B, ab"
