"""Database URLs of studies: from option, environment or file; their passwords are not shown."""

from __future__ import annotations

import pytest

import raysim
from raysim.tuning.search.storage import read_url
from tests.cli.test_app import one_line_error, raysim_command

__all__ = ["raysim_command"]

DATABASE = "nonsense://me:secret@db/studies"
REFUSED = "storage=nonsense://me:***@db/studies: cannot be used: "


@pytest.mark.parametrize("source", ["option", "variable", "file", "file in the variable"])
def test_a_url_is_read_and_its_password_masked(raysim_command, monkeypatch, tmp_path, source):
    (tmp_path / "url").write_text(f"{DATABASE}\n", encoding="utf-8-sig")
    given = f"@{tmp_path / 'url'}" if "file" in source else DATABASE
    if "variable" in source:
        monkeypatch.setenv("RAYSIM_STORAGE", given)
    option = [] if "variable" in source else ["--storage", given]
    error = one_line_error(raysim_command("tune", "fedmax-beta", *option))
    assert error.startswith(f"raysim: {REFUSED}") and "secret" not in error


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:ab@c:SECRET@127.0.0.1:1/db",
        "postgresql:/u:SECRET@127.0.0.1/db",
        "u:SECRET@127.0.0.1/db",
        "postgresql://u:\nSECRET@127.0.0.1:1/db",
    ],
    ids=range(4),
)
def test_a_url_that_cannot_be_read_is_not_quoted(raysim_command, monkeypatch, url):
    monkeypatch.setenv("RAYSIM_STORAGE", url)
    error = one_line_error(raysim_command("tune", "fedmax-beta", "--out", "x"))
    assert error.startswith("raysim: storage=") and "SECRET" not in error


def test_the_option_comes_before_the_variable(raysim_command, monkeypatch):
    monkeypatch.setenv("RAYSIM_STORAGE", "nonsense://other")
    error = one_line_error(raysim_command("tune", "fedmax-beta", "--storage", DATABASE))
    assert REFUSED in error


def test_a_dashboard_reads_the_variable(raysim_command, monkeypatch, tmp_path):
    pytest.importorskip("optuna_dashboard")
    monkeypatch.setenv("RAYSIM_STORAGE", f"sqlite:///{tmp_path}/none.db")
    assert "none.db: no such database" in one_line_error(raysim_command("dashboard"))


def test_a_file_that_cannot_be_read(tmp_path):
    for name, content in {"missing": None, "binary": b"\xff"}.items():
        if content:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(raysim.SettingsError, match=f"^storage=@.*{name}: the file cannot be "):
            read_url(f"@{tmp_path / name}")
