"""Run directories: who may write to one, the lock, and what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock, Timeout
from pyarrow import ipc
from pydantic import Field

from raysim.errors import RunError
from raysim.methods.fedavg import FedAvg
from raysim.process.source import source
from raysim.samples.client_indices import ListedIndices
from raysim.storage.declared import columns_of
from raysim.storage.rows.metrics import declared_in, with_declared
from raysim.storage.run_directory import RunDirectory
from raysim.storage.summary import summarise
from tests.tasks import long_settings

ROW = {
    "round": 1,
    "test_loss": 0.5,
    "seconds": 1.0,
    "evaluation_seconds": 0.25,
    "checkpoint_seconds": 0.125,
    "bytes_up": 4,
    "bytes_down": 8,
}


def start(path, own_task=False, finished=False, recorded=True, **overrides):
    """Leave a run directory behind as a run would."""
    directory = RunDirectory(path)
    with directory.lock(long_settings(path, **overrides), own_task):
        pass
    if recorded:
        directory.checkpoints.mkdir(exist_ok=True)
    if finished:
        declared = columns_of(long_settings(path, **overrides))
        table = with_declared(pa.Table.from_pylist([ROW]), declared)
        pq.write_table(table, directory.metrics)
        summary = summarise([ROW], declared_in(table.schema), None)
        directory.summary.write_text(json.dumps(summary))
    return directory


def refusal(path, own_task=False, **overrides):
    with pytest.raises(RunError) as caught:
        RunDirectory(path).check(long_settings(path, **overrides), own_task)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def allowed(path, own_task=False, **overrides):
    RunDirectory(path).check(long_settings(path, **overrides), own_task)
    return True


def test_where_nothing_is_yet_a_run_may_start_and_the_check_leaves_no_trace(tmp_path):
    assert allowed(tmp_path / "new/run")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_be_used(tmp_path):
    assert allowed(tmp_path)


def test_a_start_that_was_killed_while_it_wrote_the_settings_may_be_repeated(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "plugins.json").write_text("{}")
    (tmp_path / ".config.json.host.1.aside").write_text("{")
    assert allowed(tmp_path)
    start(tmp_path, recorded=False)
    assert {path.name for path in tmp_path.iterdir()} == {*(".lock", "config.json", "plugins.json")}


def test_an_unfinished_run_with_equal_settings_goes_on(tmp_path):
    start(tmp_path)
    assert allowed(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        {"engine.backend": "ray", "engine.actors": 7},
        {"engine.gpus_per_actor": 0.5, "engine.client_timeout": 9},
    ],
    ids=str,
)
def test_where_a_run_runs_may_differ(tmp_path, overrides):
    start(tmp_path)
    assert allowed(tmp_path, **overrides)


def test_a_run_directory_may_be_moved(tmp_path):
    start(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert allowed(tmp_path / "moved")


def test_more_rounds_are_refused_with_what_to_type(tmp_path):
    start(tmp_path)
    assert refusal(tmp_path, rounds=6) == (
        f"out={tmp_path}: holds a run with rounds=5 (here 6); to train it further, type: raysim"
        f" resume {tmp_path} rounds=..., or choose another `out`"
    )


@pytest.mark.parametrize(
    ("overrides", "difference"),
    [
        ({"rounds": 4}, "rounds=5 (here 4)"),
        ({"seed": 1}, "seed=0 (here 1)"),
        ({"local.lr": 0.2}, "local.lr=0.1 (here 0.2)"),
        ({"target_accuracy": 0.9}, "target_accuracy=none (here 0.9)"),
        ({"method.name": "scaffold"}, "method.name=fedavg (here scaffold)"),
        ({"engine.precision": "bf16"}, "engine.precision=fp32 (here bf16)"),
        (
            {"engine.precision": "tf32", "engine.gpus_per_actor": 1},
            "engine.precision=fp32 (here tf32)",
        ),
        ({"engine.threads_per_actor": 2}, "engine.threads_per_actor=1 (here 2)"),
        ({"engine.deterministic": False}, "engine.deterministic=true (here false)"),
    ],
    ids=str,
)
def test_other_settings_are_refused_and_named(tmp_path, overrides, difference):
    start(tmp_path)
    expected = f"out={tmp_path}: holds a run with {difference}; choose another `out`"
    assert refusal(tmp_path, **overrides) == expected


def test_a_field_that_one_method_has_and_the_other_has_not_is_named(tmp_path):
    start(tmp_path, **{"method.name": "fedprox", "method.mu": 0.5})
    assert "method.mu=0.5 (here 0.1)" in refusal(
        tmp_path, **{"method.name": "fedprox", "method.mu": 0.1}
    )


CHAIN = {"fedprox": {"mu": 0.1}, "momentum": {}, "fedavg": {}}


@pytest.mark.parametrize(
    "others",
    [("momentum", "fedprox", "fedavg"), ("fedprox", "momentum"), ("fedprox", "fedavg")],
    ids="-".join,
)
def test_settings_whose_order_counts_are_compared_in_order_and_completely(tmp_path, others):
    chain = {"method.name": "chain", "method.methods": CHAIN}
    start(tmp_path, **chain)
    assert allowed(tmp_path, **chain)
    other = {**chain, "method.methods": {name: CHAIN[name] for name in others}}
    said = refusal(tmp_path, **other)
    if len(others) == 2:
        assert "holds a run with method.methods" in said
    else:
        expected = "fedprox, momentum, fedavg (here momentum, fedprox, fedavg)"
        assert f"holds a run with method.methods={expected}; " in said


class Nested(FedAvg):
    """A user's own method whose settings hold mappings in mappings and in lists."""

    stages: dict[str, dict[str, dict[str, float]]] = Field(default={})
    parts: tuple[dict[str, float], ...] = ()


@pytest.mark.parametrize(
    ("given", "other", "difference"),
    [
        (
            {"stages": {"mask": {"layers": {"a": 1, "b": 2}}}},
            {"stages": {"mask": {"layers": {"b": 2, "a": 1}}}},
            "method.stages.mask.layers=a, b (here b, a)",
        ),
        (
            {"stages": {"mask": {"layers": {}}}},
            {"stages": {"mask": {}}},
            "method.stages.mask.layers={} (here none)",
        ),
        (
            {"parts": [{"a": 1, "b": 2}]},
            {"parts": [{"b": 2, "a": 1}]},
            'method.parts=[[["a", 1.0], ["b", 2.0]]] (here ',
        ),
    ],
    ids=["order", "empty", "list"],
)
def test_nested_settings_are_compared_in_order_and_completely(tmp_path, given, other, difference):
    def settings(values):
        fields = {f"method.{key}": value for key, value in values.items()}
        return {"method.name": f"{__name__}:Nested", **fields}

    start(tmp_path, **settings(given))
    assert allowed(tmp_path, **settings(given))
    assert f"holds a run with {difference}" in refusal(tmp_path, **settings(other))


def test_settings_whose_order_does_not_count_are_equal_in_any(tmp_path):
    by_key = {"partition.name": "by_key", "clients": 5}
    both = {"characters": 1.0, "quality": 2.0}
    start(tmp_path, **by_key, **{"partition.at_least": both})
    other = dict(reversed(both.items()))
    assert allowed(tmp_path, **by_key, **{"partition.at_least": other})


def test_settings_of_a_run_that_recorded_nothing_may_be_replaced(tmp_path):
    start(tmp_path, recorded=False)
    assert allowed(tmp_path, rounds=6)


def test_a_run_of_another_task_is_refused(tmp_path):
    start(tmp_path, own_task=True)
    assert "holds a run of another task" in refusal(tmp_path, own_task=False)
    assert allowed(tmp_path, own_task=True)


def test_a_finished_run_may_be_started_again(tmp_path):
    start(tmp_path, finished=True)
    assert allowed(tmp_path)


@pytest.mark.parametrize("damage", ["", "{}", '{"rounds"', "other", "no metrics"])
def test_a_run_whose_summary_is_not_that_of_its_rounds_may_go_on(tmp_path, damage):
    directory = start(tmp_path, finished=True)
    assert directory.is_finished(None, 5)
    text = directory.summary.read_text()
    directory.summary.write_text(text.replace("0.5", "0.4") if damage == "other" else damage)
    if damage == "no metrics":
        directory.summary.write_text(text)
        directory.metrics.unlink()
    assert not directory.is_finished(None, 5) and allowed(tmp_path)


FOREIGN = {
    "other files": ("notes.txt", "mine"),
    "another program's config": ("config.json", '{"model": "x"}'),
    "a list": ("config.json", "[1, 2]"),
    "a word": ("config.json", '"x"'),
    "no JSON": ("config.json", "x = 1"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path, case):
    name, content = FOREIGN[case]
    (tmp_path / name).write_text(content)
    text = refusal(tmp_path)
    assert str(tmp_path) in text and "holds no run" in text
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize("inside", ["", "run", "deep/run"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, inside):
    file = tmp_path / "file"
    file.write_text("mine")
    text = refusal(file / inside)
    assert text.startswith(f"out={file / inside}: {file} is not a folder that can be written")
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused_when_locked(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file/run"
    with (
        pytest.raises(RunError, match="cannot be written") as caught,
        RunDirectory(path).lock(long_settings(path), own_task=False),
    ):
        pass
    assert str(caught.value).startswith(f"out={path}: ")


def test_a_run_that_another_process_has_started_meanwhile_is_refused_under_the_lock(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.check(long_settings(tmp_path), own_task=False)
    start(tmp_path, finished=True, rounds=6)
    with (
        pytest.raises(RunError, match=r"holds a run with rounds=6 \(here 5\)"),
        directory.lock(long_settings(tmp_path), own_task=False),
    ):
        pass


def test_default_folders_are_made_for_one_run_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        paths = [stack.enter_context(RunDirectory.reserved(None, "mnist")) for _ in range(3)]
        assert len(set(paths)) == 3 and all(path.is_dir() for path in paths)
        (paths[1] / "config.json").write_text("{}")
    assert [path.exists() for path in paths] == [False, True, False]


def test_a_default_folder_that_stays_empty_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError), RunDirectory.reserved(None, "mnist"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with RunDirectory.reserved("mine", "mnist") as path:
        assert str(path) == "mine" and not path.exists()


def test_what_a_killed_process_left_half_written_is_deleted_under_the_lock(tmp_path):
    directory = start(tmp_path)
    directory.clients.mkdir()
    leftovers = [
        tmp_path / ".model.safetensors.node.4711.aside",
        directory.clients / ".part-000000.parquet.node.4711.aside",
        directory.checkpoints / ".round_000003.node.4711.aside",
    ]
    for path in leftovers[:2]:
        path.write_bytes(b"half")
    leftovers[2].mkdir()
    (leftovers[2] / "state.safetensors").write_bytes(b"half")
    kept = tmp_path / ".mine"
    kept.write_text("")
    with directory.lock(long_settings(tmp_path), own_task=False):
        assert not any(path.exists() for path in leftovers) and kept.exists()


HOLD = """
import sys
from pathlib import Path
from raysim.storage.lock import lock_folder
with lock_folder(Path(sys.argv[1]), "held by another process"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a run directory."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, holder):
    settings = long_settings(tmp_path)
    (tmp_path / "config.json").write_text("of the holder")
    with pytest.raises(RunError) as caught, RunDirectory(tmp_path).lock(settings, own_task=False):
        pass
    assert str(caught.value) == f"out={tmp_path}: another process is writing to it"
    assert (tmp_path / "config.json").read_text() == "of the holder"
    (tmp_path / "config.json").unlink()
    holder.kill()
    holder.wait()
    with RunDirectory(tmp_path).lock(settings, own_task=False):
        assert RunDirectory(tmp_path).read_config() == (settings.to_dict(), False)


def test_the_lock_is_held_until_the_end(tmp_path):
    def is_free():
        lock = FileLock(tmp_path / ".lock", blocking=False)
        try:
            with lock:
                return True
        except Timeout:
            return False

    with RunDirectory(tmp_path).lock(long_settings(tmp_path), own_task=True):
        assert not is_free()
        second = RunDirectory(tmp_path).lock(long_settings(tmp_path), own_task=True)
        with pytest.raises(RunError, match="another process"), second:
            pass
    assert is_free()
    with (
        pytest.raises(ZeroDivisionError),
        RunDirectory(tmp_path).lock(long_settings(tmp_path), own_task=True),
    ):
        raise ZeroDivisionError
    assert is_free()


def test_a_lock_file_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / ".lock").mkdir()
    with (
        pytest.raises(RunError, match="cannot be locked: Is a directory") as caught,
        RunDirectory(tmp_path).lock(long_settings(tmp_path), own_task=False),
    ):
        pass
    assert str(caught.value).startswith(f"{tmp_path}/.lock: ")
    assert str(caught.value).endswith("if it is no file, move it away")
    assert not (tmp_path / "config.json").exists()


def test_settings_are_read_back(tmp_path):
    directory = start(tmp_path, own_task=True, **{"method.name": "fedprox", "method.mu": 0.5})
    raw, own_task = directory.read_config()
    assert own_task and raw["method"] == {"name": "fedprox", "mu": 0.5, "reduction": "sum"}
    assert raw == long_settings(tmp_path, **{"method.name": "fedprox", "method.mu": 0.5}).to_dict()


def test_partition_is_read_back(tmp_path):
    parts = [np.array([5, 3]), np.array([0]), np.array([1, 2, 4])]
    RunDirectory(tmp_path).save_partition(ListedIndices.of(parts))
    with pa.memory_map(str(tmp_path / "partition.arrow")) as source:
        table = ipc.open_file(source).read_all()
    assert table.to_pydict() == {"client": [0, 1, 2], "samples": [[5, 3], [0], [1, 2, 4]]}


def test_a_lazy_population_is_not_written_down(tmp_path):
    class Lazy:
        sizes = np.broadcast_to(np.int64(60), 10**6)

        def __getitem__(self, client):
            raise AssertionError("drawn without need")

    RunDirectory(tmp_path).save_partition(Lazy())
    assert list(tmp_path.iterdir()) == []


def test_environment_names_packages_and_where_the_work_runs(tmp_path):
    node = {"torch": "2.9", "cpu_capability": "AVX2"}
    actors = [{"host": h, "device": "cpu", "gpus": ["0"], "environment": node} for h in ("a", "b")]
    RunDirectory(tmp_path).save_environment(backend="ray", actors=actors)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["backend"] == "ray"
    assert found["actors"] == [{"host": h, "device": "cpu", "gpus": ["0"]} for h in ("a", "b")]
    assert found["environments"] == [{"nodes": ["a", "b"], **node}]
    assert found["packages"]["numpy"] == np.__version__
    assert found["source"] == source() and "commit" in found["source"]
    assert found["python"] == sys.version.split()[0]
    assert found["driver"]["torch"] == torch.__version__
