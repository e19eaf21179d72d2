"""Signals and a lost stdout, as a shell, a scheduler or a closed terminal send them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from raysim.workloads.datasets.fetch import data_root

RUN = (
    *("run", "mnist-fedavg", "out=run", "engine.backend=inline", "rounds=400", "local.epochs=1"),
    *("fraction=0.02", "checkpoint_every=1000", "evaluation.every=1000", "target_accuracy=none"),
)
HINT = "interrupted; resume with: raysim resume run\n"
SLOW = """
import runpy, signal, sys, time
from raysim.driver.rounds.commits import Commits
{patch}
sys.argv = ["raysim", *sys.argv[1:]]
runpy.run_module("raysim", run_name="__main__")
"""
SLOW_SAVE = """
save = Commits.save
def slowly(self):
    print("saving", flush=True)
    time.sleep(1.5)
    save(self)
Commits.save = slowly
"""


def start(folder: Path, *words: str, patch: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a command; a patch is applied within its process before it begins."""
    program = ["-c", SLOW.format(patch=patch)] if patch else ["-m", "raysim"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=folder,
        env={**os.environ, "RAYSIM_DATA": str(data_root())},
        text=True,
        **streams,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read a process's output up to a line that begins with a text."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(text):
            return
    raise AssertionError(process.communicate())


def rounds(folder: Path) -> tuple[int, list[int]]:
    """Return the round of the newest checkpoint, and the rounds that have a row."""
    done = max(int(path.name[6:]) for path in (folder / "run/checkpoints").glob("round_*"))
    return done, pq.read_table(folder / "run/metrics.parquet")["round"].to_pylist()


@pytest.mark.full
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_checkpoints(tmp_path, stop):
    process = start(tmp_path, *RUN)
    wait_for(process, "round 3 ")
    process.send_signal(stop)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (128 + stop, "")
    assert out.endswith(HINT)
    done, rows = rounds(tmp_path)
    assert 3 <= done < 400 and rows == list(range(1, done + 1))


@pytest.mark.full
def test_a_second_interruption_does_not_lose_the_checkpoint(tmp_path):
    """One at once, as of timeout(1), and one in the middle of the checkpoint."""
    process = start(tmp_path, *RUN, patch=SLOW_SAVE)
    wait_for(process, "round 3 ")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    wait_for(process, "saving")
    time.sleep(1.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert out.endswith(HINT)
    assert rounds(tmp_path)[0] >= 3


@pytest.mark.full
def test_nohup_goes_on(tmp_path):
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = start(tmp_path, *RUN, "rounds=6", preexec_fn=ignore)
    wait_for(process, "round 3 ")
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=120)[1] == ""
    assert process.returncode == 0 and (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ("--help",)),
        pytest.param("my_method", (*RUN, "method.name=my_method:M"), marks=pytest.mark.full),
    ],
)
def test_a_signal_while_importing_ends_without_a_word(tmp_path, monkeypatch, module, words, stop):
    """A module that is imported sends it, so that it comes in the middle of an import."""
    text = f"import os, time\nos.kill(os.getpid(), {int(stop)})\ntime.sleep(60)\n"
    (tmp_path / "first").mkdir()
    (tmp_path / f"first/{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'first'}:{os.environ.get('PYTHONPATH', '')}")
    process = start(tmp_path, *words)
    assert (*process.communicate(timeout=120), process.returncode) == ("", "", 128 + stop)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "said"), [("/dev/full", "No space left on device"), ("", "Broken pipe")]
)
def test_a_run_survives_its_stdout(tmp_path, device, said):
    """The second is `raysim run ... | head -0`: a pipe without a reader."""
    if device:
        writer = os.open(device, os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    process = start(tmp_path, *RUN, "rounds=2", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, f"raysim: stdout: {said}; going on without it\n")
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.full
def test_a_run_without_stdout_and_stderr(tmp_path):
    def close() -> None:
        os.close(1)
        os.close(2)

    process = start(tmp_path, *RUN, "rounds=1", stdout=None, stderr=None, preexec_fn=close)
    assert process.wait(120) == 0
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.full
def test_a_list_without_its_stdout(tmp_path):
    with Path("/dev/full").open("w") as full:
        process = start(tmp_path, "list", "profiles", stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, "raysim: stdout: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    process = start(tmp_path, "list", "profiles", stdout=writer)
    os.close(writer)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


@pytest.mark.full
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts_leaves_nothing(tmp_path, monkeypatch, stop):
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # short, as sockets lie in it
    monkeypatch.setenv("TMPDIR", str(folder))
    process = start(tmp_path, *RUN, "engine.backend=ray", "engine.actors=1")
    driver = psutil.Process(process.pid)
    while not (children := driver.children(recursive=True)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(stop)
    time.sleep(1.1)
    children += driver.children(recursive=True)
    assert (*process.communicate(timeout=300), process.returncode) == ("", "", 128 + stop)
    assert not [child for child in children if child.is_running()]
    assert not (tmp_path / "run").exists()
    folder.rmdir()  # refuses to where something is left


@pytest.mark.full
def test_a_signal_to_the_whole_group_checkpoints(tmp_path):
    """As timeout(1) and Slurm send it: Ray's processes end at the same moment."""
    words = (*RUN, "engine.backend=ray", "engine.actors=1")
    process = start(tmp_path, *words, start_new_session=True)
    wait_for(process, "round 3 ")
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (143, "")
    assert out.endswith(HINT)
    assert rounds(tmp_path)[0] >= 3
