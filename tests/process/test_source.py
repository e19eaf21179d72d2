"""The commit of raysim's sources: of a clone by git, of what is built and uploaded by a record."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from raysim.process import source as module
from raysim.process.source import git_source

RECORD = {"commit": "0123abc", "changed": False}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a clone with one commit, of which this process is believed to run."""
    folder = tmp_path / "clone"
    (folder / "raysim").mkdir(parents=True)
    (folder / "raysim/code.py").write_text("1")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.setattr(module, "CLONE", folder)
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module, "source", module.source.__wrapped__)  # without the cache
    return folder


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        (None, False),
        ("raysim/code.py", True),
        ("raysim/new.py", True),
        ("tuning/new.py", True),
        ("runs/config.json", False),
        ("notes.md", False),
    ],
)
def test_a_clone_says_its_commit_and_whether_code_was_changed(clone, path, changed):
    if path:
        (clone / path).parent.mkdir(exist_ok=True)
        (clone / path).write_text("2")
    assert module.source() == {"commit": git(clone, "rev-parse", "HEAD"), "changed": changed}


def test_variables_of_a_hook_do_not_lead_to_another_clone(clone, tmp_path, monkeypatch):
    commit = git(clone, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_source(clone)["commit"] == commit


@pytest.mark.parametrize(
    ("break_git", "unknown"),
    [
        (lambda clone, patch: patch.setenv("PATH", ""), "git is not installed"),
        (lambda clone, patch: (clone / ".git/HEAD").unlink(), "git failed: fatal: not a git"),
    ],
)
def test_where_git_does_not_say_it_the_reason_is_said(clone, monkeypatch, break_git, unknown):
    break_git(clone, monkeypatch)
    found = module.source()
    assert found["commit"] is None and found["unknown"].startswith(unknown)
    assert "\n" not in found["unknown"]


def test_the_record_of_a_wheel_goes_before_a_clone_around_it_and_a_job(clone, monkeypatch):
    (clone / module.FILE).write_text(json.dumps(RECORD))
    monkeypatch.setenv(module.VARIABLE, json.dumps({"commit": "other"}))
    assert module.source() == RECORD


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        (None, {"commit": None, "unknown": "built from sources without git"}),
        (json.dumps(RECORD), RECORD),
        ('{"commit": null, "unknown": "why"}', {"commit": None, "unknown": "why"}),
        ("{", {"commit": None, "unknown": "its record is damaged"}),
        ("[1]", {"commit": None, "unknown": "its record is damaged"}),
        ("{}", {"commit": None, "unknown": "its record is damaged"}),
    ],
)
def test_a_job_has_the_commit_of_the_clone_that_was_uploaded(clone, monkeypatch, variable, found):
    (clone / ".git").rename(clone / "git")
    if variable:
        monkeypatch.setenv(module.VARIABLE, variable)
    assert module.source() == found
