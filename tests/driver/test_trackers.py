"""Trackers get settings, rounds once each and the summary, of resumed runs too."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

import raysim
from raysim.driver.listeners import trackers
from raysim.driver.listeners.listener import Forwarding
from raysim.driver.listeners.trackers.base import FILE, Tracker
from tests.tasks import Notes, StopAfter, make_settings, make_task


class Kept(Tracker):
    """A tracker that keeps what it gets."""

    def __init__(self):
        self.runs = {}
        self.fails = ""

    def open(self, known, name, parameters):
        if self.fails == "open":
            raise OSError("no server")
        run = known or f"id-{len(self.runs)}"
        self.runs.setdefault(run, {"name": name, "parameters": dict(parameters), "rounds": []})
        self.run = self.runs[run]
        return run, 0

    def log(self, figures, step):
        if self.fails == "log":
            raise OSError("no server")
        self.run["rounds"].append((step, figures))

    def summarise(self, figures, step):
        self.run["summary"] = (step, figures)

    def close(self, *, finished):
        self.run["finished"] = finished


@pytest.fixture
def kept(monkeypatch):
    """Put a tracker in the place of MLflow, whose package counts as installed."""
    tracker = Kept()
    monkeypatch.setattr(trackers, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(trackers, "resolve_name", lambda name: lambda: tracker)
    return tracker


def run(path, stop=0, **overrides):
    """Run four rounds, or up to one after which the driver stops; a checkpoint every third."""
    settings = make_settings(
        path, rounds=4, checkpoint_every=3, **{"tracker": "mlflow", **overrides}
    )
    listener = StopAfter(stop) if stop else Notes()
    try:
        return raysim.run(settings, make_task((8, 8)), listener)
    except KeyboardInterrupt:
        return listener


def test_a_run_is_tracked(tmp_path, kept):
    result = run(tmp_path / "run")
    (tracked,) = kept.runs.values()
    assert tracked["name"] == "run" and tracked["finished"]
    assert tracked["parameters"]["local.batch_size"] == 8
    rows = result.metrics.to_pylist()
    assert [step for step, _ in tracked["rounds"]] == [1, 2, 3, 4]
    assert tracked["rounds"][1][1]["test_accuracy"] == rows[1]["test_accuracy"]
    step, summary = tracked["summary"]
    assert step == 4 and summary["summary/final_accuracy"] == result.summary["final_accuracy"]
    assert "summary/rounds_to_target" not in summary  # there is none


def test_a_run_of_a_table_figure_or_study_is_named_with_its_place(tmp_path, kept):
    paths = ["table/runs/fedavg/iid/seed-0", "figure/fedmax", "study/trials/0007"]
    for kind, path in zip(("table", "figure", "study"), paths, strict=True):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{kind}.json").touch()
        run(tmp_path / path)
    run(tmp_path / "free/seed-0")
    assert [each["name"] for each in kept.runs.values()] == [*paths, "seed-0"]


def test_a_resumed_run_goes_on_in_the_tracker_s_run_and_repeats_no_round(tmp_path, kept):
    path = tmp_path / "run"
    run(path, stop=2)
    assert [r["finished"] for r in kept.runs.values()] == [False]
    # As after SIGKILL: no checkpoint, so that both rounds are run again.
    for checkpoint in (path / "checkpoints").iterdir():
        checkpoint.rename(path / checkpoint.name)
    run(path)
    (tracked,) = kept.runs.values()
    assert [step for step, _ in tracked["rounds"]] == [1, 2, 3, 4]
    assert json.loads((path / FILE).read_text()) == {"mlflow": {"run": "id-0", "round": 4}}


@pytest.mark.parametrize("content", ["", "[]", '{"mlflow": 3}', '{"mlflow": {"run": 1}}'])
def test_a_damaged_file_starts_another_run_of_the_tracker(tmp_path, kept, content):
    path = tmp_path / "run"
    run(path, stop=2)
    (path / FILE).write_text(content)
    run(path)
    assert [[step for step, _ in r["rounds"]] for r in kept.runs.values()] == [[1, 2], [3, 4]]


def test_a_tracker_that_fails_later_is_given_up_after_a_note(tmp_path, kept):
    kept.fails = "log"
    notes = Notes()
    settings = make_settings(tmp_path / "run", rounds=2, tracker="mlflow")
    assert raysim.run(settings, make_task((8, 8)), notes).summary["rounds"] == 2
    assert [n for n in notes.notes if "tracker" in n] == [
        "tracker=mlflow: no server; going on without it"
    ]


def test_a_tracker_that_cannot_be_opened_stops_the_run(tmp_path, kept):
    kept.fails = "open"
    with pytest.raises(raysim.RunError, match="tracker=mlflow: cannot be used: no server"):
        run(tmp_path / "run")
    assert not (tmp_path / "run/metrics.parquet").exists()


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("ours/ml", "MLFLOW_TRACKING_URI=ours/ml: is a folder; .*MLFLOW_ALLOW_FILE_STORE=true$"),
        ("http://ann:secret@127.0.0.1:9", r"MLFLOW_TRACKING_URI=http://ann:\*+@127.0.0.1:9: no"),
    ],
)
def test_a_store_that_cannot_be_used_stops_the_run_in_seconds(tmp_path, monkeypatch, store, why):
    """In one line, before a run directory is made."""
    pytest.importorskip("mlflow", reason="needs: pip install 'raysim-fl[mlflow]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # put back what is set here
    with pytest.raises(raysim.SettingsError, match=f"^tracker=mlflow: cannot be used: {why}") as it:
        run(tmp_path / "run")
    assert "\n" not in str(it.value) and "secret" not in str(it.value)
    assert not (tmp_path / "run/config.json").exists()


NOWHERE = "http://127.0.0.1:9"
UNREACHABLE = """
from time import perf_counter
from raysim.driver.listeners.trackers.wandb_runs import WandbRuns

begin = perf_counter()
try:
    WandbRuns()
except OSError as error:
    print(error, perf_counter() - begin < 20, sep="\\n")
"""


@pytest.mark.ci
def test_a_server_of_wandb_that_does_not_answer_is_named_in_seconds(tmp_path):
    pytest.importorskip("wandb", reason="needs: pip install 'raysim-fl[wandb]'")
    places = {"WANDB_BASE_URL": NOWHERE, "WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40}
    command = [sys.executable, "-c", UNREACHABLE]
    environment = {**os.environ, **places, "WANDB_DIR": str(tmp_path)}
    printed = subprocess.check_output(command, text=True, env=environment)
    line = f"WANDB_BASE_URL={NOWHERE}: no server answers within 10 s"
    assert printed.splitlines() == [line, "True"]


def test_a_missing_package_is_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    message = r"pip install 'raysim-fl\[wandb\]'"
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", tracker="wandb")
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.check(make_settings(tmp_path / "run", tracker="wandb"), make_task((8, 8)))
    assert not (tmp_path / "run").exists()


def test_every_callback_is_passed_on(tmp_path):
    """A listener of a run with a tracker gets what it gets without one."""
    for name in (name for name in vars(raysim.Listener) if not name.startswith("_")):
        assert name in vars(Forwarding), name


def test_the_tracker_changes_no_result_and_may_change(tmp_path, kept):
    run(tmp_path / "run", stop=2)
    result = run(tmp_path / "run", tracker=None)
    plain = run(tmp_path / "plain", tracker=None)
    assert result.metrics["test_loss"].equals(plain.metrics["test_loss"])


KNOWN = {"mlflow": 1, "wandb": 2}
"""Last round in `tracker.json` when a run goes on: MLflow's as after a kill before it is noted."""
TWICE = """
import json
import sys
from pathlib import Path
from tests.driver.test_trackers import KNOWN, run

for name in sys.argv[2:]:
    path = Path(sys.argv[1]) / name
    run(path, stop=2, tracker=name)
    for checkpoint in (path / "checkpoints").iterdir():
        checkpoint.rename(path / checkpoint.name)
    known = json.loads((path / "tracker.json").read_text())
    known[name]["round"] = KNOWN[name]
    (path / "tracker.json").write_text(json.dumps(known))
    run(path, tracker=name)
"""


@pytest.mark.ci
def test_mlflow_on_a_folder_and_wandb_offline(tmp_path):
    """One process, whose warnings are no errors, tracks runs that are interrupted and go on."""
    names = [name for name in KNOWN if find_spec(name)]
    if not names:
        pytest.skip("needs: pip install 'raysim-fl[mlflow,wandb]'")
    places = {
        "MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", TWICE, str(tmp_path / "runs"), *names]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **places})
    for name in names:
        {"mlflow": check_mlflow, "wandb": check_wandb}[name](tmp_path)


TWO = """
from raysim.driver.listeners.trackers.wandb_runs import WandbRuns

pair = WandbRuns(), WandbRuns()
for name, tracker in zip("ab", pair):
    print(tracker.open(None, name, {})[0])
for step, tracker in enumerate(pair, 1):
    tracker.log({"loss": 1.0}, step)
for tracker in pair:
    tracker.close(finished=True)
"""


@pytest.mark.ci
def test_two_runs_of_one_process_are_two_of_wandb(tmp_path):
    """As of trials that are stacked: both are open at the same time."""
    pytest.importorskip("wandb", reason="needs: pip install 'raysim-fl[wandb]'")
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_BASE_URL": NOWHERE}
    command = [sys.executable, "-c", TWO]
    printed = subprocess.check_output(command, text=True, env={**os.environ, **places})
    files = [next(tmp_path.glob(f"wandb/*/run-{id_}.wandb")) for id_ in printed.split()]
    assert len(set(files)) == 2 and [wandb_steps(path) for path in files] == [[1], [2]]


ONE = """
from raysim.driver.listeners.trackers.wandb_runs import WandbRuns

tracker = WandbRuns()
print(tracker.open(None, "a", {})[0])
tracker.close(finished=True)
"""


@pytest.mark.full
def test_a_run_of_a_sweep_of_wandb_has_the_id_that_its_agent_waits_for(tmp_path):
    pytest.importorskip("wandb", reason="needs: pip install 'raysim-fl[wandb]'")
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    sweep = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "chosen1"}
    environment = {**os.environ, **places, **sweep}
    printed = subprocess.check_output([sys.executable, "-c", ONE], text=True, env=environment)
    assert printed.split() == ["chosen1"]


def check_mlflow(folder: Path) -> None:
    """Check that one run of MLflow's has every round once, the settings and the summary."""
    (run_folder,) = {path.parent for path in (folder / "store").glob("*/*/metrics")}
    loss = (run_folder / "metrics/train_loss").read_text().split()
    assert loss[2::3] == ["1", "2", "3", "4"]
    assert (run_folder / "params/local.batch_size").read_text() == "8"
    final = (run_folder / "metrics/summary/final_accuracy").read_text().split()
    assert len(final) == 3 and final[2] == "4"


def check_wandb(folder: Path) -> None:
    """Check that two files of one run of W&B's have every round once."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({path.name for path in files}) == 1
    assert [step for path in files for step in wandb_steps(path)] == [1, 2, 3, 4]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_runs_that_make_the_first_experiment_at_the_same_time_share_it(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs: pip install 'raysim-fl[mlflow]'")
    from raysim.driver.listeners.trackers.mlflow_runs import MlflowRuns

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    first, late = MlflowRuns(), MlflowRuns()
    find, answers = late._client.get_experiment_by_name, [None]
    monkeypatch.setattr(
        late._client, "get_experiment_by_name", lambda n: answers.pop() if answers else find(n)
    )
    assert first._experiment() == late._experiment()


def wandb_steps(path: Path) -> list[int]:
    """Return the steps in the history of a file of W&B: parts of records in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, steps, whole = path.read_bytes(), 7, [], b""  # after the file's header
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)  # after the checksum
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
    return steps
