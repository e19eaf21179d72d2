"""Whatever fails in the GPU benchmark costs its own line of the page and nothing else."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from time import sleep
from types import SimpleNamespace

import pytest
import torch

from tests.benchmarks import environments, runner
from tests.benchmarks.gpu import __main__ as command
from tests.benchmarks.gpu import cell, cuda_tests, plots, report, speed
from tests.benchmarks.gpu.jobs import Choice, plan
from tests.benchmarks.gpu.peer import Pfl
from tests.benchmarks.gpu.results import UNDER_WAY, Outcome, Results
from tests.benchmarks.gpu.speed import Comparison, compare
from tests.benchmarks.gpu.systems import BareLoop
from tests.benchmarks.gpu.work import FULL, TINY, System
from tests.benchmarks.report import machine
from tests.benchmarks.test_gpu import CPU, assert_line

pytestmark = pytest.mark.ci


def test_systems_that_do_not_fit_side_by_side_are_measured_in_groups(monkeypatch):
    """Two stacks of 100 GiB in all on a device of 80: each beside those they are compared with."""
    properties = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(speed, "estimate", lambda case: 50 * 2**30 // 128)
    first, bare, small = System("raysim"), System("bare"), System("raysim", stack=8)
    graphs, plain = (System("raysim", stack=128, graphs=on) for on in (True, False))
    other = System("raysim", stack=127)
    systems = [first, small, graphs, plain, bare, other]
    found = Comparison([].append, "resnet18", FULL, systems, torch.device("cuda", 0))
    for row in found.rows.values():
        row["reason"] = ""
    begun = [first, bare, small, graphs]
    assert found.groups() == [begun, [first, bare, plain], [first, bare, other]]
    found.rows[plain]["reason"] = "no room"
    assert found.groups() == [begun, [first, bare, other]]


class Failing(BareLoop):
    def train(self, x, y):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_system_that_fails_costs_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "no_room", lambda system, case, device: "")
    begin = speed.start

    def start(system, case, *given):
        if system.stack > 1:
            raise OSError("no such\nfile")
        if system.graphs:
            return Failing(case, CPU, bf16=False)
        return begin(system, case, *given)

    monkeypatch.setattr(speed, "start", start)
    monkeypatch.setattr(runner, "WARM_UP", 1)
    graph, stack = System("bare", graphs=True), System("raysim", stack=2)
    systems, shown = [System("bare"), graph, stack, System("pfl")], []
    compare(shown.append, "2nn", TINY, systems, 0, "", "it is not there")
    bare, graph, stack, pfl = shown[-1]
    assert len(bare["seconds"]) == 2 and bare["steps"] == 2
    assert graph["reason"] == "OutOfMemoryError: CUDA out of memory" and not graph["seconds"]
    assert stack["reason"] == "OSError: no such\nfile" and pfl["reason"] == "it is not there"
    page = "\n".join(report.speed([Outcome("job", "speed", "done", 1.0, "cpu", shown[-1])]))
    assert "deterministic algorithms" in page and 'Graphs "no" are' in page
    assert_line(r"\| pfl \| 1 \| 1 \| - \| it is not there \| - \| - \|", page)
    assert_line(r"\| raysim \| 1 \| 2 \| no \| OSError: no such file \| - \| - \|", page)


def test_all_systems_are_in_a_process_set_up_as_raysim_s(monkeypatch):
    """Also where raysim fails: the bare loop is not to have other settings then."""
    asked = []

    class BegunError(Exception):
        pass

    def begin(engine):
        asked.append(engine)
        raise BegunError

    for module in (speed, cell):
        monkeypatch.setattr(module, "configure", begin)
        monkeypatch.setattr(module, "device_of_benchmark", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(cell, "has_cifar10", lambda: True)
    monkeypatch.setattr(speed, "no_room", lambda system, case, device: "no room")
    for bf16 in (False, True):
        with pytest.raises(BegunError):
            compare(print, "2nn", TINY, [System("bare", bf16=bf16)], 0, "")
    with pytest.raises(BegunError):
        cell.measure(print, 0, tiny=True)
    assert [(each.gpus_per_actor, each.precision) for each in asked] == [
        (1.0, "fp32"),
        (1.0, "bf16"),
        (1.0, "fp32"),
    ]


def test_what_fails_beside_the_jobs_ends_nothing(tmp_path, monkeypatch):
    """The page shows a job that is under way; no page, no plot and no pfl is the end of it."""
    pages = []

    def run(job, limit, device, log, show):
        row = {"system": "raysim", "seconds": [0.5], "reason": "", "random": True}
        show(Outcome(job.name, job.part, UNDER_WAY, 1.0, device, [row]))
        pages.append((tmp_path / report.NAME).read_text())
        return Outcome(job.name, job.part, "done", 1.0, device, [row])

    def broken(*given):
        raise ValueError("no\nplot")

    monkeypatch.setattr(command, "run_apart", run)
    monkeypatch.setattr(plots, "plot_speed", broken)
    monkeypatch.setattr(environments, "make", broken)
    options = ["--out", str(tmp_path), "--parts", "cell", "--environments", str(tmp_path / "e")]
    command.main(options)
    assert "- fedmax-cifar10-noniid: under way" in pages[0] and "| raysim | 0.5000" in pages[0]
    page = (tmp_path / report.NAME).read_text()
    assert "Not drawn: ValueError: no plot" in page and "| raysim | 0.5000" in page
    assert "under way" not in page
    monkeypatch.setattr(report, "write", broken)
    monkeypatch.setattr(
        command, "run_apart", lambda job, *rest: Outcome(job.name, "cell", "x", 1, "")
    )
    (tmp_path / "results.jsonl").unlink()
    command.main(options)
    assert "fedmax-cifar10-noniid" in (tmp_path / "results.jsonl").read_text()


def test_why_there_is_no_pfl_is_told(tmp_path, monkeypatch):
    def broken(name, folder):
        raise PackageNotFoundError("torchvision")

    monkeypatch.setattr(environments, "make", broken)
    pfl = Pfl(tmp_path)
    assert pfl.wanted and pfl.python() == ""
    assert pfl.reason.startswith("its environment cannot be made: PackageNotFoundError: ")
    choice = Choice(("speed",), ("2nn",), True, tmp_path)
    look, job = plan(choice, pfl, False)
    assert look.name == "2nn, fp32, a first look"
    assert [s.name for s in job.run.keywords["systems"]][-1] == "pfl"
    assert job.run.keywords["no_pfl"] == pfl.reason
    monkeypatch.setattr(environments, "make", lambda name, folder: sleep(5))
    late = Pfl(tmp_path)
    assert late.python(0) == "" and late.reason == "its environment was not ready yet"


def test_gpus_that_torch_cannot_use_end_nothing(tmp_path, monkeypatch):
    """Their driver is too old: the page says so, and the jobs run on the CPU."""

    def refuse(number):
        raise RuntimeError("The NVIDIA driver on your system is\ntoo old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", refuse)
    command.main(["--no-pfl", "--minutes", "0", "--parts", "cell", "--out", str(tmp_path)])
    page = (tmp_path / report.NAME).read_text()
    assert (
        "; 2 GPUs, not used: The NVIDIA driver on your system is too old (found version 11040).;"
        in page
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", "H{}".format)
    assert "; H0, H1; " in machine()


def test_a_line_of_results_that_was_not_written_to_its_end_is_no_outcome(tmp_path):
    results = Results(tmp_path, "cpu")
    for name in ("first", "second"):
        results.add(Outcome(name, "cell", "done", 1.0, "cpu", [{"figure": 1}]))
    whole = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(whole[:-7])
    again = Results(tmp_path, "cpu")
    assert again.is_done("first") and not again.is_done("second")
    again.add(results.outcomes["second"])
    assert (tmp_path / "results.jsonl").read_text() == whole


def test_a_warning_of_the_device_fails_no_test(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\nmarkers = ["cuda: x"]\n'
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "import pytest, warnings\n\n"
        "@pytest.mark.cuda\ndef test_warned():\n    warnings.warn('new GPU')\n"
    )
    monkeypatch.setattr(cuda_tests, "ROOT", tmp_path)
    taken = []
    cuda_tests.run(taken.append, "cuda", tmp_path / "log")
    assert taken[-1] == [{"test": "tests/test_x.py::test_warned", "outcome": "passed"}]
    assert "new GPU" in (tmp_path / "log").read_text()
