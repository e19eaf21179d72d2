"""Iteration over the rounds of a run: what it yields, how it is closed and continued."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim.driver.rounds.iterator import RoundIterator
from raysim.process.exits import SIGNALS
from raysim.results.runs import read_run
from raysim.storage.lock import lock_folder
from tests.driver.test_lost_files import rows_of
from tests.tasks import make_settings, make_task, model_of

ROUNDS = 4
SIZES = (1, 12, 7)
SCAFFOLD = {"method.name": "scaffold", "fraction": 1.0, "rounds": ROUNDS, "local.epochs": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed")
    raysim.run(make_settings(path, **SCAFFOLD), make_task(SIZES))
    return path


def rounds_in(path: Path, **overrides: Any) -> RoundIterator:
    return raysim.rounds(make_settings(path, **SCAFFOLD | overrides), make_task(SIZES))


def is_free(path: Path) -> bool:
    try:
        with lock_folder(path, "held"):
            return True
    except raysim.RunError:
        return False


def test_it_yields_the_rows_of_the_metrics_and_has_the_result_of_run(tmp_path, undisturbed):
    with rounds_in(tmp_path) as rounds:
        rows = [*rounds]
    assert rows == rounds.result.metrics.to_pylist()
    assert rounds.result.run_dir == tmp_path and rounds.result.summary["rounds"] == ROUNDS
    assert model_of(tmp_path) == model_of(undisturbed)
    assert [*rounds] == [] and rounds.result.summary["rounds"] == ROUNDS


def test_each_round_is_committed_when_its_row_comes(tmp_path):
    for row in rounds_in(tmp_path, checkpoint_every=1):
        assert (tmp_path / f"checkpoints/round_{row['round']:06d}").is_dir()


@given(
    stop=st.integers(1, ROUNDS),
    every=st.sampled_from([1, 2, 100]),
    how=st.sampled_from(["break", "raise", "with", "close"]),
    goes_on=st.sampled_from(["rounds", "run", "resume"]),
)
@settings(max_examples=6)
def test_stopped_after_any_round_it_goes_on_to_the_same_bytes(
    undisturbed, stop, every, how, goes_on
):
    with TemporaryDirectory() as folder:
        path = Path(folder)
        stop_after(path, stop, every, how)
        assert is_free(path)
        assert pq.read_table(path / "metrics.parquet").num_rows == stop
        assert not (path / "summary.json").exists()
        if goes_on == "rounds":
            numbers = [row["round"] for row in rounds_in(path, checkpoint_every=every)]
            assert numbers == [*range(stop + 1, ROUNDS + 1)]  # none is run again
        elif goes_on == "run":
            chosen = make_settings(path, checkpoint_every=every, **SCAFFOLD)
            raysim.run(chosen, make_task(SIZES))
        else:
            raysim.resume(path, make_task(SIZES))
        assert model_of(path) == model_of(undisturbed)
        assert rows_of(path) == rows_of(undisturbed)
        assert (path / "summary.json").exists()


def stop_after(path: Path, stop: int, every: int, how: str) -> None:
    """Leave a run after a round, in one of the ways in which a loop is left."""
    if how == "break":
        for row in rounds_in(path, checkpoint_every=every):
            if row["round"] == stop:
                break
    elif how == "raise":
        with pytest.raises(ZeroDivisionError):
            for row in rounds_in(path, checkpoint_every=every):
                if row["round"] == stop:
                    raise ZeroDivisionError
    elif how == "with":
        with rounds_in(path, checkpoint_every=every) as rounds:
            for _ in range(stop):
                next(rounds)
    else:
        rounds = rounds_in(path, checkpoint_every=every)
        for _ in range(stop):
            next(rounds)
        rounds.close()
        rounds.close()
        assert [*rounds] == []


def test_nothing_is_written_before_the_first_step(tmp_path):
    with rounds_in(tmp_path / "run"):
        assert not (tmp_path / "run").exists()


def test_wrong_settings_are_refused_before_the_first_step(tmp_path):
    with pytest.raises(raysim.SettingsError, match="fraction"):
        raysim.rounds(make_settings(tmp_path, fraction=1e-9, clients=10))


def test_an_unfinished_run_has_no_result(tmp_path):
    with rounds_in(tmp_path) as rounds:
        next(rounds)
    with pytest.raises(raysim.RunError, match="the run is not finished"):
        _ = rounds.result


@pytest.mark.parametrize("every", [1, 100])
def test_a_finished_iteration_is_a_finished_run(tmp_path, every):
    with rounds_in(tmp_path, checkpoint_every=every) as rounds:
        rows = [next(rounds), next(rounds)]
        result = rounds.finish()
        assert [*rounds] == [] and is_free(tmp_path)
    assert rounds.result is result is rounds.finish()
    metrics = result.metrics.to_pylist()
    for row in (*metrics, *rows):
        row["checkpoint_seconds"] = 0.0  # the last one is checkpointed once more
    assert metrics == rows and result.summary["rounds"] == 2
    record = read_run(tmp_path)
    assert (record.state, record.summary) == ("finished", result.summary)
    expected, path = rounds_in(tmp_path / "all", checkpoint_every=every, rounds=2), tmp_path / "all"
    for _ in expected:  # its last round is the second
        pass
    assert model_of(tmp_path) == model_of(path)


@pytest.mark.parametrize("damage", ["none", "summary", "model"])
def test_a_finished_iteration_stays_finished(tmp_path, damage):
    with rounds_in(tmp_path) as rounds:
        next(rounds)
        rounds.finish()
    before = model_of(tmp_path)
    if damage != "none":
        next(tmp_path.glob(f"{damage}.*")).write_bytes(b"{}")
    for again in (rounds_in(tmp_path).drain(), raysim.resume(tmp_path, make_task(SIZES))):
        assert again.summary["rounds"] == 1
    assert model_of(tmp_path) == before


def test_what_cannot_be_finished(tmp_path):
    with rounds_in(tmp_path) as rounds, pytest.raises(raysim.RunError, match="no round has been"):
        rounds.finish()
    with pytest.raises(raysim.RunError, match="it is closed"):
        rounds.finish()
    with rounds_in(tmp_path) as rounds:
        next(rounds)
    with pytest.raises(raysim.RunError, match="it is closed"):
        rounds.finish()
    assert not (tmp_path / "summary.json").exists()


def test_a_row_is_the_callers(tmp_path):
    for row in rounds_in(tmp_path, target_accuracy=0.999):
        row |= {"train_loss": -1.0, "test_accuracy": 1.0}
    rows = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert len(rows) == ROUNDS and all(row["train_loss"] >= 0 for row in rows)


def test_it_is_closed_by_another_thread_than_the_one_that_opened_it(tmp_path, undisturbed):
    rounds = rounds_in(tmp_path, checkpoint_every=100)
    opening = threading.Thread(target=lambda: next(rounds))
    opening.start()
    opening.join()
    assert not is_free(tmp_path)
    rounds.close()
    assert is_free(tmp_path)
    raysim.resume(tmp_path, make_task(SIZES))
    assert model_of(tmp_path) == model_of(undisturbed)


class Handlers(raysim.Listener):
    """Keeps the handlers of signals during the steps; sends one."""

    def __init__(self, send: int | None = None) -> None:
        self.found: set[Any] = set()
        self._send = send

    def progress(self, done: int, total: int) -> None:
        self.found |= {signal.getsignal(number) for number in SIGNALS}
        if self._send is not None:
            signal.raise_signal(self._send)


@pytest.fixture
def default_handlers():
    """Ray, started by a test before in this process, leaves handlers of its own."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_handlers")
def test_between_steps_the_callers_signal_handlers_are_back(tmp_path):
    listener = Handlers()
    for _ in raysim.rounds(make_settings(tmp_path), make_task(SIZES), listener):
        assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_DFL}
    assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_DFL}
    assert listener.found and signal.SIG_DFL not in listener.found


@pytest.mark.usefixtures("default_handlers")
def test_a_signal_in_a_step_is_raised_there_and_the_run_goes_on_later(tmp_path, undisturbed):
    chosen = make_settings(tmp_path, checkpoint_every=100, **SCAFFOLD)
    listener = Handlers()
    said = (
        rf"^interrupted after 3 of 4 rounds; resume with: raysim.resume\('{tmp_path}', task=task\)$"
    )
    with pytest.raises(KeyboardInterrupt, match=said):
        for row in raysim.rounds(chosen, make_task(SIZES), listener):
            if row["round"] == 3:
                listener._send = signal.SIGTERM
    assert is_free(tmp_path)
    assert [row["round"] for row in raysim.rounds(chosen, make_task(SIZES))] == [4]
    assert model_of(tmp_path) == model_of(undisturbed)


def test_between_steps_torch_is_set_up_as_the_caller_had_it():
    def steps():
        before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        torch.set_num_threads(3)
        torch.set_deterministic_debug_mode("warn")
        try:
            for number in range(2):
                assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (3, 1)
                yield {"round": number}
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])

    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (1, 0)
    first, second = RoundIterator(steps()), RoundIterator(steps())
    for one, other in zip(first, second, strict=False):
        assert one == other
        assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (1, 0)
    first.close()
    second.close()
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (1, 0)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_callers_mode_of_torch_changes_no_bit(tmp_path, undisturbed, mode):
    """Actors have none; between steps the caller has its own."""
    task = make_task(SIZES)
    with MODES[mode]():
        before = torch.zeros(2, requires_grad=True) * 2
        with raysim.rounds(make_settings(tmp_path, **SCAFFOLD), task) as rounds:
            for _ in rounds:
                after = torch.zeros(2, requires_grad=True) * 2
                assert (after.requires_grad, after.device, after.is_inference()) == (
                    *(before.requires_grad, before.device, before.is_inference()),
                )
    assert model_of(tmp_path) == model_of(undisturbed)


def test_a_callers_own_number_of_threads_changes_no_bit(tmp_path, undisturbed):
    seen = []

    class Threads(raysim.Listener):
        def progress(self, done: int, total: int) -> None:
            seen.append(torch.get_num_threads())

    try:
        chosen = make_settings(tmp_path, **SCAFFOLD)
        for _ in raysim.rounds(chosen, make_task(SIZES), Threads()):
            torch.set_num_threads(4)
    finally:
        found = torch.get_num_threads()
        torch.set_num_threads(1)
    assert set(seen) == {1} and found == 4
    assert model_of(tmp_path) == model_of(undisturbed)


EXITS = [("inline", "break", 0), ("inline", "1 / 0", 1), ("ray", "break", 0), ("ray", "1 / 0", 1)]
OPEN = """
import sys
from pathlib import Path
import raysim
from tests.tasks import make_settings, make_task

if __name__ == "__main__":
    chosen = {"checkpoint_every": 100, "engine.backend": sys.argv[2], "engine.actors": 1}
    rounds = raysim.rounds(make_settings(Path(sys.argv[1]), **chosen), make_task((8, 8)))
    for row in rounds:
        if row["round"] == 2:
            END
"""


@pytest.mark.full
@pytest.mark.parametrize(("backend", "end", "code"), EXITS)
def test_a_process_ends_with_an_iteration_that_is_open(tmp_path, backend, end, code):
    program = OPEN.replace("END", end)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), backend],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code
    said = done.stderr.splitlines()
    assert said[-1:] == ([] if code == 0 else ["ZeroDivisionError: division by zero"])
    assert done.stderr.count("Traceback") == code
    assert (tmp_path / "checkpoints/round_000002").is_dir()


LEFT = """
import gc, os, sys
from pathlib import Path
import raysim
from tests.tasks import make_settings, make_task

def start():
    chosen = make_settings(Path(folder), checkpoint_every=100)
    return raysim.rounds(chosen, make_task((8, 8)))

folder, *words = sys.argv[1:]
with start() as rounds:
    next(rounds)  # all that is imported late
gc.freeze()  # copies would copy all that is imported once they collect garbage, at their end
for folder, way in zip(words[::2], words[1::2]):
    if not (pid := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(f"{folder}.errors", os.O_WRONLY | os.O_CREAT), 2)
exec(way)
"""
"""Imports take seconds: each way is gone in a copy of the process, which ends as any process."""
WAYS = {
    "with": "with start() as rounds:\n    next(rounds)",
    "with and an error": "with start() as rounds:\n    next(rounds)\n    1 / 0",
    "open": "rounds = start()\nnext(rounds)",
    "open with an error": "rounds = start()\nnext(rounds)\n1 / 0",
    "finish": "rounds = start()\nnext(rounds)\nrounds.finish()",
    "function": "def go():\n    rounds = start()\n    next(rounds)\n    sys.exit()\ngo()",
    "generator": "def go():\n    rounds = start()\n    yield from rounds\nnext(all := go())",
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Return exit code, standard error and run directory of each way."""
    folders = {way: tmp_path_factory.mktemp("left") / "run" for way in WAYS}
    words = [word for way, text in WAYS.items() for word in (str(folders[way]), text)]
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(tmp_path_factory.mktemp("first") / "run"), *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    codes = map(int, done.stdout.split())
    return {
        way: (code, folders[way].with_suffix(".errors").read_text(), folders[way])
        for way, code in zip(WAYS, codes, strict=True)
    }


@pytest.mark.parametrize("way", WAYS)
def test_the_interpreter_ends_without_a_word_however_a_loop_is_left(left, way):
    code, said, folder = left[way]
    errors = "error" in way
    assert (code, said.count("Traceback")) == (int(errors), int(errors))
    assert (said == "") is not errors and "Exception ignored" not in said
    assert (folder / "checkpoints/round_000001").is_dir()


@pytest.mark.full
def test_closing_ends_ray_and_its_actors(tmp_path):
    program = OPEN.replace("END", CLOSING)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), "ray"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False [] False\n", "")


CLOSING = """import ray, psutil
            session = ray._private.worker.global_worker.node.get_session_dir_path()
            processes = psutil.Process().children(recursive=True)
            before = len(processes) > 2
            rounds.close()
            _, left = psutil.wait_procs(processes, timeout=20)
            print(before, ray.is_initialized(), left, Path(session).exists())
"""
