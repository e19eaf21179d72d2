"""The GPU benchmark from end to end, on the CPU with tiny sizes."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from raysim.training.stacked import cuda_graphs
from raysim.training.stacked.cuda_graphs import GraphRecorder
from tests.benchmarks import runner
from tests.benchmarks.gpu import __main__ as command
from tests.benchmarks.gpu import cuda_tests, report
from tests.benchmarks.gpu.jobs import NETWORKS as NAMES
from tests.benchmarks.gpu.jobs import PARTS, Choice, plan
from tests.benchmarks.gpu.memory import Peak, counted
from tests.benchmarks.gpu.peer import Pfl
from tests.benchmarks.gpu.results import UNDER_WAY, Outcome
from tests.benchmarks.gpu.speed import estimate, no_room, stack_of
from tests.benchmarks.gpu.systems import BareLoop, InlineRun
from tests.benchmarks.gpu.work import FULL, Sizes, System, inline_systems
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.training.stacked.test_cuda_graphs import Tape
from tests.training.stacked.test_trainer import RECORDER_ON

pytestmark = pytest.mark.ci

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Set back what the benchmark patches in the processes of its jobs."""
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", cuda_graphs.MIN_REPLAYS)


def directly(job, limit, device, log, show):
    """Run a job in this process."""
    taken = []

    def emit(rows):
        taken.append(rows)
        show(Outcome(job.name, job.part, UNDER_WAY, 1.0, device, rows))

    job.run(emit)
    return Outcome(job.name, job.part, "done", 1.0, device, taken[-1])


def never(job, limit, device, log, show):
    raise AssertionError("it was done already")


@pytest.mark.full
def test_all_parts_write_their_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(command, "run_apart", directly)
    monkeypatch.setattr(runner, "WARM_UP", 1)
    monkeypatch.setattr(runner, "FEWEST", 1)
    parts = ["--parts", "speed", "cell", "memory"]
    options = ["--tiny", "--no-pfl", "--networks", "2nn", *parts, "--out", str(tmp_path)]
    command.main(options)
    page = (tmp_path / report.NAME).read_text()
    figures = r"\d.* \(.* to .*\)"
    for row in (
        rf"\| raysim \| 1 \| 1 \| yes \| {figures} \| - \| {figures} \| - \|",
        rf"\| raysim \| 1 \| 1 \| no \| {figures} \| {figures} \| {figures} \| - \|",
        rf"\| raysim \| 1 \| 2 \| yes \| {figures} \| {figures} \| {figures} \|",
        rf"\| raysim \| 1 \| 2 \| no \| {figures} \| {figures} \| {figures} \|",
        rf"\| bare \| 1 \| 1 \| - \| {figures} \| {figures} \| - \|",
        rf"\| the cohort as one stack \| {figures} \| \d",
        r"\| 2nn \| 2 \| \d+\.\d \| \d+\.\d \| \d\.\d\d \| - \| - \|",
    ):
        assert_line(row, page)
    assert "pfl: not measured: it was left out." in page and "Not measured" not in page
    assert {path.name for path in tmp_path.glob("*.png")} == {"speed.png", "memory.png"}
    monkeypatch.setattr(command, "run_apart", never)
    command.main(options)
    assert (tmp_path / report.NAME).read_text() == page


def assert_line(pattern, page):
    assert re.search(f"^{pattern}", page, re.MULTILINE), f"{pattern}\n{page}"


@pytest.mark.parametrize("on", [True, False])
def test_graphs_are_switched_by_system(tmp_path, monkeypatch, on):
    """On a tape: of 16 steps three come before one is recorded, and twelve are played."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(Tape, note))
    monkeypatch.setattr(Tape, "played", 0)
    system = System("raysim", stack=2, graphs=on)
    case = system.case("2nn", Sizes(32, batch=2, stacks=(1, 2), alone=1, processes=()))
    run = InlineRun("mnist-fedavg", system.overrides(case, device=False), graphs=on)
    cuda_graphs.MIN_REPLAYS = 0  # as another system in this process may leave it
    run.round()
    run.close()
    assert not run.failure and Tape.played == (12 if on else 0)


def test_a_bare_loop_in_bf16_computes_with_its_newest_weights():
    """Two steps by hand, at a rate at which the second gradient tells which weights it is of."""
    case = Case("2nn", 1, 4, 1, batch=2, lr=0.5)
    loop = BareLoop(case, CPU, bf16=True)
    x, y = torch.randn(4, *NETWORKS["2nn"].shape), torch.tensor([3, 1, 4, 1])
    model = copy.deepcopy(loop.model)
    torch.manual_seed(0)
    loop.train(x, y)
    torch.manual_seed(0)
    for rows in torch.randperm(4).split(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.sub_(gradient, alpha=0.5)
    for found, expected in zip(loop.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_stacks_for_which_there_is_no_room_are_not_begun(monkeypatch):
    properties = SimpleNamespace(total_memory=3 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    gpu, stacked = torch.device("cuda"), System("raysim", stack=128)
    small, large = (stacked.case(network, FULL) for network in ("2nn", "cifar-cnn-5"))
    assert no_room(stacked, small, gpu) == ""
    needed = stack_of(large)
    gibibytes = (needed.fixed + 128 * needed.each) / 2**30
    assert no_room(stacked, large, gpu) == f"no room: about {gibibytes:.1f} GiB of 2.0"
    properties.total_memory = 2**30
    assert no_room(System("raysim"), large, gpu) == ""  # no stack is to fit


def test_jobs_for_which_there_is_no_time_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run_apart", never)
    out = ["--out", str(tmp_path)]
    command.main(["--tiny", "--no-pfl", "--minutes", "0", "--parts", "cell", "full-tests", *out])
    page = (tmp_path / report.NAME).read_text()
    assert "- fedmax-cifar10-noniid: no time was left" in page
    assert "- full-tests: cuda and full: no time was left" in page
    assert "The same command goes on with these." in page


def test_results_of_another_gpu_are_not_mixed(tmp_path):
    line = {"job": "a", "part": "cell", "state": "done", "seconds": 1, "device": "NVIDIA H100"}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SystemExit, match="holds results of NVIDIA H100; name another"):
        command.main(["--no-pfl", "--parts", "cell", "--out", str(tmp_path)])


def test_the_matrix_is_whole():
    """Four stacks, one client at a time among them, with and without graphs."""
    for bf16 in (False, True):
        systems = inline_systems(FULL, bf16=bf16)
        places = {(s.stack, s.graphs) for s in systems}
        assert len(places) == len(systems) == 8 and systems[0] == System("raysim", 1, 1, True, bf16)


def test_the_tests_come_before_most_and_the_longest_last(tmp_path):
    jobs = [*plan(Choice(PARTS, NAMES, False, tmp_path), Pfl(None), device=True)]
    names, (first, *_) = [job.name for job in jobs], NAMES
    assert names[:3] == [
        f"{first}, fp32, a first look",
        "tests: cuda and not full",
        f"{first}, fp32",
    ]
    assert names[-1] == "full-tests: cuda and full" and len({*names}) == len(names)


def test_what_pytest_says_of_tests():
    lines = [
        "tests/a/test_b.py::test_c[x y-1] PASSED                             [ 50%]\n",
        "tests/a/test_b.py::test_d SKIPPED (needs a CUDA device)             [100%]\n",
        "E   assert 1 == 2\n",
        "FAILED tests/a/test_b.py::test_e - assert 1 == 2\n",
    ]
    first, second = "tests/a/test_b.py::test_c[x y-1]", "tests/a/test_b.py::test_d"
    assert cuda_tests.outcomes(lines) == [(first, "PASSED"), (second, "SKIPPED")]
    assert "tests/training/stacked/test_on_cuda.py" in cuda_tests.files()


def test_the_peak_is_what_is_held_at_a_time():
    peak = Peak(CPU)
    first = torch.zeros(1000, dtype=torch.uint8)
    first = torch.cat([first, torch.zeros(2000, dtype=torch.uint8)])  # 6000 at a time
    del first
    torch.zeros(5000, dtype=torch.uint8)
    assert 6000 <= peak.end() < 6400  # blocks are aligned


@pytest.mark.parametrize("network", ["2nn", "flexchill-cnn"])
def test_a_client_of_a_stack_takes_less_than_estimated(tmp_path, monkeypatch, network):
    """On a CPU no step is recorded, and kernels have no workspaces."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    system = System("raysim", stack=8)
    sizes = Sizes(samples=20, batch=10, stacks=(1, 8), alone=1, processes=())
    case = system.case(network, sizes)
    found = counted(system, case, CPU)["counted"] / estimate(case)
    assert 0.4 < found < 0.9


def test_what_a_recording_takes_is_counted(tmp_path, monkeypatch):
    """On a tape, which keeps all of its tensors: of the first round's 16 steps one is recorded."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    monkeypatch.setattr(RECORDER_ON, lambda device, note: GraphRecorder(Tape, note))
    sizes = Sizes(samples=32, batch=2, stacks=(1, 2), alone=1, processes=())
    plain, recorded = (
        counted(system, system.case("2nn", sizes), CPU)["counted"]
        for system in (System("raysim", stack=2, graphs=on) for on in (False, True))
    )
    model = sum(parameter.nbytes for parameter in NETWORKS["2nn"].build().parameters())
    assert plain > 3 * model  # which kept steps hold
    assert recorded > plain + model  # gradients, besides activations


@pytest.mark.full
def test_it_runs_unattended(tmp_path):
    """Tests, comparisons, memory and the parts of a lent device, in processes of their own."""
    options = ["--tiny", "--no-pfl", "--networks", "2nn", "--out", str(tmp_path)]
    parts = ["--parts", *(part for part in PARTS if part != "full-tests")]
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu", *options, *parts],
        check=True,
        env={**os.environ, "RAYSIM_DATA": str(tmp_path / "data")},
    )
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    found = {job["job"]: job for job in map(json.loads, lines)}
    assert {job["state"] for job in found.values()} == {"done"}
    inline, two = found["2nn, stack 1, actors"]["rows"]
    assert inline["actors"] == "inline" and two["actors"] == 2 and two["bits of inline"]
    (killed,) = found["a killed actor"]["rows"]
    assert killed["actors found"] == 2 and killed["bits of inline"]
