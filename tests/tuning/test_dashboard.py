"""`raysim dashboard` as a user meets it: a page on this machine, in a browser."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

import raysim
from raysim.cli.app import main
from raysim.tuning.command import serve
from tests.browser import document
from tests.tuning.common import make_search

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which the dashboard has taken too long."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory) -> Iterator[tuple[psutil.Process, int]]:
    """The command for a storage with one study, and its port."""
    folder, port = tmp_path_factory.mktemp("dashboard"), free_port()
    search = make_search(folder)
    search.claim()
    summary = {"final_holdout_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1}
    search.tell(search.ask(), summary)
    url = f"sqlite:///{folder / 'study.db'}"
    command = [sys.executable, "-m", "raysim", "dashboard", url, "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while not listening(process.pid):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            yield psutil.Process(process.pid), port
        finally:
            process.kill()


def listening(pid: int) -> list[tuple[str, int]]:
    """Return where a process listens."""
    sockets = psutil.Process(pid).net_connections("inet")
    return [tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN]


def get(port: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200
    return response.read().decode()


@pytest.mark.full
def test_it_listens_on_this_machine_alone(dashboard):
    process, port = dashboard
    assert listening(process.pid) == [("127.0.0.1", port)]


@pytest.mark.full
def test_the_page_is_served_and_the_study_is_listed(dashboard):
    _, port = dashboard
    assert "<title>Optuna Dashboard</title>" in get(port, "/dashboard")
    studies = json.loads(get(port, "/api/studies"))["study_summaries"]
    assert [study["study_name"] for study in studies] == ["blobs"]
    detail = json.loads(get(port, f"/api/studies/{studies[0]['study_id']}"))
    assert detail["objective_names"] == ["held-out accuracy"]


@pytest.mark.full
def test_a_browser_shows_the_study(dashboard):
    _, port = dashboard
    assert "blobs" not in get(port, "/dashboard")  # it is for the page's script to put it there
    assert "blobs" in document(f"http://127.0.0.1:{port}/dashboard", "blobs")


def test_the_command_binds_to_this_machine_unless_asked_otherwise(tmp_path, monkeypatch):
    found: list[tuple[str, int, Path]] = []

    def run_server(storage: str, host: str, port: int, artifact_store: Any) -> None:
        found.append((host, port, artifact_store._base_path))

    make_search(tmp_path)
    monkeypatch.setattr("optuna_dashboard.run_server", run_server)
    (other := tmp_path / "other").mkdir()
    for more in ([], ["--host", "0.0.0.0", "--artifacts", str(other)]):  # noqa: S104
        command = ["raysim", "dashboard", f"sqlite:///{tmp_path / 'study.db'}", *more]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit):
            main()
    beside = tmp_path / "artifacts"
    assert found == [("127.0.0.1", 8080, beside), ("0.0.0.0", 8080, other)]  # noqa: S104


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    path = tmp_path / "study.db"
    with pytest.raises(raysim.RunError, match="no such database"):
        serve(f"sqlite:///{path}", "127.0.0.1", free_port())
    assert not path.exists()
