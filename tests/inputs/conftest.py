"""The kit of files that the cases name, and the command line in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import ray

from raysim.cli.app import main
from tests.inputs import data_files
from tests.inputs.case import Case
from tests.inputs.files import BAD_FILES, GOOD_FILES, SMALL
from tests.inputs.plugins import MODULES
from tests.inputs.runs import DAMAGE

SECONDS = 20
"""A case that takes longer hangs."""
Said = tuple[int, str, str]


class Unwanted(BaseException):
    """A case went further than bad input may: it started Ray, or hangs."""


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the settings files and modules that the cases name."""
    folder = tmp_path_factory.mktemp("kit")
    for name, (content, _) in BAD_FILES.items():
        (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)
    for name, text in MODULES.items():
        (folder / name).write_text(text, encoding="latin-1")
    for name, content in GOOD_FILES.items():
        (folder / name).write_bytes(content)
    study = SMALL.replace("rounds = 1\n", "") + "[study.space]\nrounds = [1, 2]\n"
    (folder / "...toml").write_text(study)  # its stem is the folder above
    data_files.write(folder / "files")
    (folder / "folder.png").mkdir()
    (folder / "zeros.toml").symlink_to("/dev/zero")
    (folder / "loop.toml").symlink_to("loop.toml")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.toml")
    yield folder
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


@contextmanager
def in_time() -> Iterator[None]:
    """Raise where the body takes longer than SECONDS."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Unwanted(f"hangs: {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def command(
    kit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[Case], Said]:
    """Run a case in the folder `work`; return exit code, stdout and stderr."""

    def started(*given: object, **named: object) -> None:
        raise Unwanted("Ray was started")

    for name in ("work", "home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(kit)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests of a process use Ray
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)

    def run(case: Case) -> Said:
        for name, value in case.variables.items():
            monkeypatch.setenv(name, value.replace("KIT", str(kit)))
        words = [word.replace("KIT", str(kit)) for word in case.words]
        monkeypatch.setattr(sys, "argv", ["raysim", *words])
        try:
            with in_time():
                main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def unfinished(kit: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Copy a run that was interrupted after its second of three rounds."""
    import raysim

    class StopAfterTwo(raysim.Listener):
        def round_done(self, row: object) -> None:
            if row["round"] == 2:  # type: ignore[index]
                raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(kit)
        patch.setenv("RAYSIM_DATA", str(folder / "data"))
        changes = {"rounds": 3, "out": "run", "method.name": "scaffold", "checkpoint_every": 1}
        patch.chdir(folder)
        with pytest.raises(KeyboardInterrupt):
            raysim.run(raysim.load_config(kit / "small.toml", changes), listener=StopAfterTwo())

    def copy(target: Path) -> None:
        shutil.copytree(folder / "run", target)

    return copy


def damaged(case: Case, copy: Callable[[Path], None]) -> None:
    """Make the folder `run` of a case in the working directory."""
    if case.run:
        copy(Path("run"))
        DAMAGE[case.run](Path("run"))
