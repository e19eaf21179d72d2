"""`raysim submit` and `raysim job` against a cluster that asks for a token, and what they refuse.

The cluster is real: a Ray head of its own, with its own token, ports and folder.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.process.source import source
from tests.cli.test_app import one_line_error
from tests.cluster.head import PATIENCE_SECONDS, SCRIPTS, Head, free_port, read_until


def command(head: Head, folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start `raysim WORDS...` as a user of the cluster in a working directory."""
    return subprocess.Popen(
        [str(SCRIPTS / "raysim"), *words],
        cwd=folder,
        env={**head.environment, "RAY_API_SERVER_ADDRESS": head.url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(head: Head, folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    process = command(head, folder, *words, **environment)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


class Interrupting(raysim.Listener):
    """Ctrl-C after the first round."""

    def round_done(self, row: Any) -> None:
        raise KeyboardInterrupt


def rounds_of(run: Path) -> list[int]:
    return pq.read_table(run / "metrics.parquet")["round"].to_pylist()


@pytest.mark.full
def test_a_job_brings_its_own_code_and_goes_on_where_a_run_was_lost(
    head, working_directory, tmp_path, monkeypatch
):
    monkeypatch.chdir(working_directory)
    monkeypatch.setattr(sys, "path", [*sys.path, str(working_directory)])
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    out = tmp_path / "run"
    lost = raysim.load_config("my.toml", {"out": str(out), "engine.backend": "inline"})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(lost, listener=Interrupting())
    assert rounds_of(out) == [1]

    code, said, err = done(
        head,
        working_directory,
        *("submit", "--profile", "laptop", "--env", f"RAYSIM_DATA={tmp_path / 'data'}"),
        *("--", "run", "my.toml", f"out={out}", "engine.actors=1"),
    )
    assert (code, err) == (0, ""), said
    assert said.startswith(f"uploading {working_directory} to {head.url}\njob raysubmit_")
    assert "round 2  accuracy" in said and "round 1  accuracy" not in said
    assert re.search(r"everything is in .*/run\njob \w+: succeeded\n$", said)
    assert rounds_of(out) == [1, 2, 3]
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
    where = json.loads((out / "environment.json").read_text())
    assert where["backend"] == "ray" and where["source"] == source()
    assert head.packed("working_dir_files", "*", "*") == {
        *("my.toml", "my_method.py", "notes"),
        *("cluster", "safetensors.py"),
    }
    packages = head.packed("py_modules_files", "*", "*")
    assert packages == {"raysim"}


@pytest.mark.full
def test_a_wrong_token_is_one_line(head, tmp_path):
    wrong = {"RAY_AUTH_TOKEN": "wrong"}
    error = one_line_error(done(head, tmp_path, "job", "list", **wrong))
    assert f"{head.url}: Authentication failed: Forbidden: Invalid authentication token" in error
    assert "RAY_AUTH_TOKEN_PATH" in error


@pytest.mark.full
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "Authentication required"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "RAY_AUTH_TOKEN_PATH is set but file cannot be"),
    ],
)
def test_a_missing_token_is_one_line(head, tmp_path, environment, said):
    assert said in one_line_error(done(head, tmp_path, "job", "list", **environment))


@pytest.mark.full
def test_a_cluster_is_not_joined_without_its_token(head, working_directory, tmp_path):
    error = one_line_error(
        done(
            head,
            working_directory,
            *("run", "my.toml", f"out={tmp_path / 'run'}"),
            RAY_ADDRESS=head.gcs,
            RAY_AUTH_TOKEN_PATH="",
            HOME=str(tmp_path),
        )
    )
    assert f"RAY_ADDRESS={head.gcs}: cannot be joined: Token authentication is enabled" in error


@pytest.mark.full
def test_a_job_that_is_left_stopped_and_submitted_again(head, working_directory, tmp_path):
    out = tmp_path / "run"
    words = ["--env", f"RAYSIM_DATA={tmp_path / 'data'}", "--", "run", "my.toml", f"out={out}"]
    words += ["rounds=60", "engine.backend=inline", "checkpoint_every=1000"]

    following = command(head, working_directory, "submit", "--env", "PAUSE=2", *words)
    said = read_until(following, "round 3 ")
    following.send_signal(signal.SIGINT)
    rest, err = following.communicate(timeout=PATIENCE_SECONDS)
    assert (following.returncode, err) == (130, "")
    job = re.search(r"job (\w+): submitted", said)[1]
    assert rest.endswith(
        f"job {job}: still running\nfollow: raysim job logs {job}\n"
        f"status: raysim job status {job}\nstop: raysim job stop {job}\n"
    )

    _, listed, _ = done(head, working_directory, "job", "list")
    assert f"{job}  running" in listed
    code, stopping, _ = done(head, working_directory, "job", "stop", job)
    assert (code, stopping) == (0, f"job {job}: stopping, after a checkpoint\n")
    code, log, _ = done(head, working_directory, "job", "logs", job)
    assert code != 0 and log.endswith(f"job {job}: stopped\n")
    assert f"interrupted; resume with: raysim resume {out}" in log
    assert "stopped" in done(head, working_directory, "job", "status", job)[1]
    before = rounds_of(out)[-1]
    assert 3 <= before < 60 and list((out / "checkpoints").iterdir())

    code, log, _ = done(head, working_directory, "submit", *words)
    assert code == 0 and rounds_of(out) == list(range(1, 61))
    assert f"round {before + 1} " in log and f"round {before} " not in log
    code, log, _ = done(head, working_directory, "submit", *words)
    assert code == 0 and f"{out}: the run is finished" in log

    code, said, _ = done(head, working_directory, "submit", "--no-follow", *words)
    assert code == 0 and "follow: raysim job logs" in said
    error = one_line_error(done(head, working_directory, "job", "status", "nobody"))
    assert "Job nobody does not exist" in error


TABLE = ["--only", "2nn,iid,B=50,E=1", "--rounds", "1", "--seeds", "1", "--jobs", "1"]
TINY = [
    *("dataset.name=synthetic", "dataset.users=4", "dataset.samples=20", "dataset.test_samples=5"),
    *("partition.name=by_key", "partition.key=user", "model.name=synthetic-mlp"),
    *("clients=4", "fraction=0.5"),
]


@pytest.mark.full
def test_a_table_is_a_job_whose_runs_are_in_slots_of_the_cluster(head, working_directory, tmp_path):
    out = tmp_path / "table"
    words = ["submit", "--env", f"RAYSIM_DATA={tmp_path / 'data'}", "--", "table", "mifl-6a"]
    words += [*TABLE, "--out", str(out), *TINY]
    code, said, err = done(head, working_directory, *words)
    assert (code, err) == (0, ""), said
    assert "mifl-6a: 4 runs, 0 done; 1 slots" in said and re.search(r"job \w+: succeeded\n$", said)
    assert len([*out.glob("runs/*/*/seed-0/summary.json")]) == 4
    assert "Shortened to 1 of 150 rounds." in (out / "table.md").read_text()
    code, said, _ = done(head, working_directory, *words)
    assert code == 0 and "/4 FA" not in said and "succeeded" in said  # nothing is run again


@pytest.mark.full
def test_a_study_is_a_job_whose_trials_are_in_slots_of_the_cluster(
    head, working_directory, tmp_path
):
    out = tmp_path / "study"
    words = ["submit", "--env", f"RAYSIM_DATA={tmp_path / 'data'}", "--", "tune", "fedmax-beta"]
    words += ["--jobs", "1", "--out", str(out), *TINY, "rounds=1", "local.batch_size=10"]
    code, said, err = done(head, working_directory, *words, "--trials", "2")
    assert (code, err) == (0, ""), said + err
    assert re.search(r"job \w+: succeeded\n$", said)
    trials = [*out.glob("trials/*/summary.json")]
    assert len(trials) == 2 and (out / "best.json").exists()
    before = [trial.stat().st_mtime_ns for trial in trials]
    code, said, _ = done(head, working_directory, *words, "--trials", "3")
    assert code == 0 and len([*out.glob("trials/*/summary.json")]) == 3, said
    assert [trial.stat().st_mtime_ns for trial in trials] == before  # nothing is run again


@pytest.mark.full
def test_a_sweep_is_a_job_whose_table_lies_where_it_is_told(head, working_directory, tmp_path):
    """Its file and the method that it names are uploaded; the slots find both."""
    out = tmp_path / "sweep"
    words = ["submit", "--env", f"RAYSIM_DATA={tmp_path / 'data'}", "--", "sweep", "my.toml"]
    words += ["local.lr=0.1,0.05", "seed=0..0", "--jobs", "1", "--out", str(out)]
    code, said, err = done(head, working_directory, *words)
    assert (code, err) == (0, ""), said + err
    assert re.search(r"2/2 lr=0.05, seed 0: .*job \w+: succeeded\n$", said, re.DOTALL)
    assert len([*out.glob("runs/*/seed-0/summary.json")]) == 2
    assert "lr=0.05" in (out / "table.md").read_text() and (out / "report.html").exists()
    code, said, _ = done(head, working_directory, *words)
    assert code == 0 and "every run is finished; nothing is left to do" in said


REFUSED = {
    "no such preset": (["run", "mnist-fedvag", "out=/x"], "did you mean 'mnist-fedavg'?"),
    "value": (["run", "mnist-fedavg", "rounds=0", "out=/x"], "rounds=0: must be greater"),
    "no out": (["run", "mnist-fedavg"], "out=none: must be an absolute path on storage that"),
    "relative out": (["run", "mnist-fedavg", "out=runs/x"], "out=runs/x: must be an absolute path"),
    "profile": (["run", "mnist-fedavg", "--profile", "one"], "one: no such profile; did you mean"),
    "left out": (["run", "runs/best.json", "out=/x"], "runs/best.json: runs, data, build, dist"),
    "elsewhere": (["run", "../best.json", "out=/x"], "../best.json: must be a path inside the"),
    "tune": (["tune", "fedmax-beta"], "--out=none: must be an absolute path"),
    "ranges": (
        ["tune", "mnist-fedavg", "--tune", "local.lr=0.01..1:log"],
        "--out=none: must be an absolute path",
    ),
    "range": (["tune", "mnist-fedavg", "--tune", "local.lr"], "--tune=local.lr: is written KEY="),
    "sampler": (["tune", "fedmax-beta", "--sampler", "best"], "sampler=best: must be one of"),
    "study": (["tune", "fedmax-bet", "--out", "/x"], "fedmax-bet: no such study; did you mean"),
    "table": (["table", "mifl-6a"], "--out=none: must be an absolute path"),
    "no such table": (["table", "mifl-6", "--out", "/x"], "mifl-6: no such table; did you mean"),
    "cell": (
        ["table", "mifl-6a", "--only", "4nn", "--out", "/x"],
        "--only=4nn: no cell of mifl-6a",
    ),
    "figure of a table": (
        ["table", "flexchill-1", "evaluation.clients=false", "--out", "/x"],
        "final(client_accuracy_mean): needs evaluation.clients=true",
    ),
    "resume": (["resume", "runs/x"], "RUN_DIR=runs/x: must be an absolute path"),
    "sweep": (["sweep", "mnist-noniid", "local.lr=0.1,0.2"], "--out=none: must be an absolute"),
    "axis": (["sweep", "mnist-noniid", "local.lr=0.1,0", "--out", "/x"], "local.lr=0: must be"),
    "file of a sweep": (["sweep", "runs/best.json", "--out", "/x"], "runs/best.json: runs, data,"),
    "figure": (["figure", "mifl-3"], "--out=none: must be an absolute path"),
    "no such figure": (["figure", "mifl-33", "--out", "/x"], "mifl-33: no such figure; did you"),
    "command": (["data", "list"], "must be run, tune, table, sweep, figure or resume"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_not_uploaded(raysim_command, monkeypatch, tmp_path, case):
    words, said = REFUSED[case]
    settings = raysim.load_config("mnist-fedavg").to_dict()
    inside = tmp_path / "inside"
    (inside / "runs").mkdir(parents=True)
    for file in (inside / "runs/best.json", tmp_path / "best.json"):
        file.write_text(json.dumps(settings))
    monkeypatch.chdir(inside)
    monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{free_port()}")  # nobody is there
    assert said in one_line_error(raysim_command("submit", "--", *words))


JOB = ["--", "run", "mnist-fedavg", "out=/x"]
DATABASE = "postgresql://me:secret@db/studies"


def test_an_option_that_the_command_lacks_is_refused(raysim_command):
    code, _, err = raysim_command("submit", "--profile", "laptop", "--", "resume", "/x")
    assert code == 2 and "No such option: --profile" in err


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["--env", "X", *JOB], {}, "--env=X: must be NAME=VALUE"),
        (["--env", f"RAYSIM_STORAGE={DATABASE}", *JOB], {}, "file that the cluster's nodes see"),
        (
            ["--", "tune", "fedmax-beta", "--out", "/x", "--storage", DATABASE],
            {},
            "--storage @FILE",
        ),
        (["--address", "a://me:secret@h:1", *JOB], {}, "a://me:***@h:1: must be the URL"),
        (["--address", "a:1", *JOB], {}, "--address=a:1: must be the URL of a Ray dashboard"),
        (JOB, {"RAY_ADDRESS": "10.0.0.1:6379"}, "RAY_ADDRESS=10.0.0.1:6379: must be the URL"),
        (["--address", "http://127.0.0.1:{port}", *JOB], {"RAY_ADDRESS": "x"}, "cannot be reached"),
        (JOB, {"RAY_API_SERVER_ADDRESS": "http://[::1]:{port}"}, "cannot be reached"),
    ],
)
def test_addresses_and_variables(raysim_command, monkeypatch, words, variables, said):
    port = str(free_port())
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{port}", port))
    words = [word.replace("{port}", port) for word in words]
    error = one_line_error(raysim_command("submit", *words))
    assert said in error and "secret" not in error
