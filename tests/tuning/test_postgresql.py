"""A study in a PostgreSQL server of the test's own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.common import summaries
from tests.tuning.test_dashboard import free_port


def server_programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).parent] if found else []
    folders += [*Path("/usr/lib/postgresql").glob("*/bin"), Path("/usr/local/bin")]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def another_user() -> dict[str, Any]:
    """Return how to be someone else: PostgreSQL's server does not run as root."""
    if os.getuid():
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@dataclass(frozen=True)
class Server:
    """A server's database, and how to start and stop it."""

    url: str
    start: Callable[[], None]
    stop: Callable[[], None]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    """A server that runs."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: raysim[postgresql]")
    programs = server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed")
    user, port = another_user(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chown(folder, user["user"], user["group"])
        data = f"{folder}/data"

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", data, *arguments]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, **user)

        run("initdb", "-U", "raysim", "--auth=trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        start = partial(
            run, "pg_ctl", "-w", "-t", "120", "-l", f"{folder}/log", "-o", options, "start"
        )
        stop = partial(run, "pg_ctl", "-m", "immediate", "stop")
        start()
        try:
            yield Server(f"postgresql://raysim:secret@127.0.0.1:{port}/postgres", start, stop)
        finally:
            stop()


def test_a_study_in_postgresql_completes_and_is_continued(tune, postgresql, tmp_path, local_slots):
    import psycopg

    options = ("--storage", postgresql.url, "--jobs", "1", "--pruner", "none")
    for trials, said in [("2", "2 trials, 0 done; "), ("3", "3 trials, 2 done; ")]:
        code, out, err = tune("--trials", trials, *options)
        assert (code, err) == (0, "") and said in out and "failed" not in out
    with closing(psycopg.connect(postgresql.url)) as connection:
        found = connection.execute("SELECT number, state FROM trials ORDER BY number").fetchall()
        assert [(number, str(state)) for number, state in found] == [
            (number, "COMPLETE") for number in range(3)
        ]
        figures = connection.execute(
            "SELECT number, value FROM trials JOIN trial_values USING (trial_id)"
        ).fetchall()
    runs = summaries(tmp_path)
    assert dict(figures) == {n: run["final_holdout_accuracy"] for n, run in runs.items()}
    assert not list(tmp_path.rglob("study.db"))
    # Settings that cannot be compared: neither started, nor is the password told.
    code, _, err = tune("--trials", "4", *options, "rounds=9")
    assert code == 2 and "differs in settings (rounds: 4, here 9)" in err and "secret" not in err


def test_a_server_that_goes_away_in_mid_study(tune, postgresql, local_slots):
    words = ("--storage", postgresql.url, "--name", "away", "--pruner", "none", "rounds=2")
    local_slots.fault = lambda number: postgresql.stop() if number == 1 else None
    code, _, err = tune("--trials", "2", *words)
    postgresql.start()
    assert code != 0 and err.count("\n") == 1 and "secret" not in err
    assert err.startswith(f"raysim: storage={postgresql.url.replace('secret', '***')}: ")
    assert err.endswith("; fix this, then type the same command to resume the study\n")
    local_slots.fault = lambda number: None
    code, out, err = tune("--trials", "2", *words)
    assert (code, err) == (0, "") and "trial 1 complete" in out and "2 trials, 2 done; " in out
    assert local_slots.started == [0, 1]  # whose run was finished when it could not be recorded


def test_a_server_that_cannot_be_reached(tune, tmp_path):
    pytest.importorskip("psycopg", reason="psycopg is not installed: raysim[postgresql]")
    address = f"127.0.0.1:{free_port()}/studies"
    code, _, err = tune("--storage", f"postgresql://me:secret@{address}")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith(f"raysim: storage=postgresql://me:***@{address}: cannot be used: ")
    assert not (tmp_path / "out").exists()


def test_a_driver_that_is_not_installed(tune, tmp_path, monkeypatch):
    for driver in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    code, _, err = tune("--storage", "postgresql://127.0.0.1/studies")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("raysim: storage=postgresql://127.0.0.1/studies: cannot be used: ")
    assert "pip install 'raysim[postgresql]'" in err
    assert not (tmp_path / "out").exists()
