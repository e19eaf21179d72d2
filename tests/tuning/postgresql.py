"""A PostgreSQL server for the tests of studies."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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

    def new_database(self, name: str) -> str:
        """Create a database; return its URL."""
        import psycopg

        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url.replace("/postgres", f"/{name}")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A server that runs."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: raysim-fl[postgresql]")
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
