"""A study in a PostgreSQL server of the test's own."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from tests.tuning.common import summaries
from tests.tuning.test_dashboard import free_port


@pytest.mark.ci
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


@pytest.mark.full
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
    pytest.importorskip("psycopg", reason="psycopg is not installed: raysim-fl[postgresql]")
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
    assert "pip install 'raysim-fl[postgresql]'" in err
    assert not (tmp_path / "out").exists()
