"""`raysim job` against servers that are silent, or no Ray cluster; passwords in what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from raysim.cluster import jobs
from tests.cli.test_app import one_line_error, raysim_command

__all__ = ["raysim_command"]

HTML = "<html>\n" + "<p>Some other page</p>\n" * 1000 + "</html>"
VERSION = json.dumps({"ray_version": "2.50.0"})
JOB = {
    "type": "SUBMISSION",
    "submission_id": "raysubmit_1",
    "status": "RUNNING",
    "entrypoint": "python3 -m raysim tune s --storage postgresql://me:secret@db/studies",
    "start_time": 0,
}
Answer = tuple[int, str]


@pytest.fixture
def server(monkeypatch) -> Iterator[Callable[..., None]]:
    """Serve what a test says; an answer of None is silence."""
    running, done = [], Event()

    def serve(version: Answer | None, listed: Answer | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = version if self.path == "/api/version" else listed
                if answer is None:
                    done.wait()
                    return
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1].encode())

            def do_PUT(self) -> None:  # an upload
                self.send_response(413)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=running[0].serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://user:secret@127.0.0.1:{running[0].server_port}"
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)

    yield serve
    done.set()
    for each in running:
        each.shutdown()
        each.server_close()


NO_RAY = "is not the dashboard of a Ray cluster"


@pytest.mark.parametrize(
    ("version", "listed", "said"),
    [
        (None, None, "no answer in 0.3 s"),
        ((200, VERSION), None, "no answer in 0.3 s"),
        ((404, HTML), None, "Version check returned 404"),
        ((200, HTML), None, NO_RAY),
        ((200, ""), None, NO_RAY),
        ((200, "[]"), None, NO_RAY),
        ((200, "{}"), None, NO_RAY),
        ((200, '{"ray_version": 3}'), None, "Invalid version"),
        ((200, '{"ray_version": "x"}'), None, "Invalid version"),
        ((200, '{"ray_version": "1.0"}'), None, "Ray version 1.0 is running on the cluster"),
        ((401, HTML), None, "Authentication required: <html>"),
        ((403, HTML), None, "Authentication failed: <html>"),
        ((500, HTML), None, "500 Server Error"),
        ((200, VERSION), (500, HTML), "Request failed with status code 500"),
        ((200, VERSION), (200, HTML), NO_RAY),
        ((200, VERSION), (200, "{}"), "no jobs"),
        ((200, VERSION), (200, "3"), NO_RAY),
        ((200, VERSION), (200, '["x"]'), NO_RAY),
        ((200, VERSION), (200, '[{"submission_id": "x"}]'), NO_RAY),
    ],
)
def test_what_is_no_cluster_is_one_line(raysim_command, server, monkeypatch, version, listed, said):
    monkeypatch.setattr(jobs, "ANSWER_SECONDS", 0.3)
    server(version, listed)
    if said == "no jobs":
        assert raysim_command("job", "list") == (0, "", "")
        return
    error = one_line_error(raysim_command("job", "list"))
    assert error.startswith("raysim: http://user:***@127.0.0.1:")
    assert said in error and "secret" not in error and len(error) < 500


def test_passwords_in_commands_of_jobs_are_masked(raysim_command, server):
    server((200, VERSION), (200, json.dumps([JOB])))
    code, listed, error = raysim_command("job", "list")
    assert (code, error) == (0, "") and listed.startswith("raysubmit_1  running")
    assert listed.endswith("--storage postgresql://me:***@db/studies\n")


@pytest.mark.parametrize(
    ("ignored", "said"),
    [
        ("", "has 143 MiB to upload; a cluster takes less than 100 MiB; name what the job does"),
        ("*.npy", "has 9.54 MiB to upload; the server takes less (413); name what the job does"),
    ],
)
def test_a_working_directory_that_is_too_large(
    server, raysim_command, tmp_path, monkeypatch, ignored, said
):
    """Ray's dashboard says no more than 413."""
    folder = tmp_path / "work"
    for name, size in {"samples/big.npy": 140_000_000, "notes.txt": 10**7, "runs/x": 10**9}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)
    (folder / ".rayignore").write_text(ignored)
    monkeypatch.chdir(folder)
    server((200, VERSION), (404, ""))
    error = one_line_error(raysim_command("submit", "--", "run", "mnist-fedavg", "out=/shared/x"))
    assert f"{folder}: {said} not need in {folder}/.rayignore" in error
    assert error.rstrip().endswith("notes.txt (9.54 MiB)")
    assert ("samples/big.npy (134 MiB)" in error) == (not ignored)
