"""The model of a card's time, by what was measured and by hand."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from tests.benchmarks.gpu import model
from tests.benchmarks.gpu.costs import CostedDevice, Kernel
from tests.benchmarks.gpu.counts import FEW, Counts, Part, count, one_round, read, written
from tests.benchmarks.gpu.model import HOSTS, Host, kernel_seconds, measured, round_seconds
from tests.benchmarks.gpu.python_calls import PythonCalls
from tests.benchmarks.gpu.work import FULL, System

COUNTED, MEASURED = read(), measured()


def test_every_way_of_the_page_is_compared():
    """Three networks: a bare loop and its graph, raysim alone, three stacks with and without."""
    assert len(MEASURED) == 3 * (2 + 1 + 2 * 3)
    assert MEASURED["2nn", "bare graph", 10] == 14130
    assert MEASURED["resnet18", "stack", 32] == 386.5


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: " ".join(map(str, row)))
def test_the_model_gives_what_was_measured(row):
    network, way, clients = row
    found = model.steps_a_second(COUNTED[network, way], HOSTS[way], clients, FULL.steps)
    assert found / MEASURED[row] == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize(
    ("kernel", "scale", "seconds"),
    [
        (Kernel("other", 2, 4300, 0), 1, 6e-6),  # launches
        (Kernel("other", 1, 43e6, 0), 2, 20e-6),  # 86 MB at 4.3 TB/s
        (Kernel("product", 1, 4300, 335e6), 3, 30e-6),  # 1.005 GFLOP at 33.5 TFLOP/s
        (Kernel("convolution", 3, 4300, 13e6), 1, 60e-6),
        (Kernel("grouped convolution of small maps", 3, 4300, 2e9), 1, 1e-3),
    ],
)
def test_a_kernel_takes_the_longest_of_launch_bytes_and_flop(kernel, scale, seconds):
    assert kernel_seconds(kernel, scale) == pytest.approx(seconds)


def test_a_round_is_its_steps_its_clients_and_the_rest():
    """A call of a function in Python takes 0.35 us."""
    small = {Kernel("other", 1, 4, 0): 10}  # 30 us
    large = {Kernel("other", 1, 4.3e6, 0): 1}  # 3 us; of four times as much 4 us
    host = Host(step=1e-3, call=1e-5, beside=1e-4)
    alone = Counts(Part(5, 100, 0, small), Part(3, 0, 1e6, {}), Part(2, 1000, 0, small))
    steps, clients = 2 * 7 * (1e-3 + 5e-5 + 35e-6 + 3e-5), 2 * (3e-4 + 1e-4)
    rest = 2e-4 + 35e-5 + 3e-5
    assert round_seconds(alone, host, 2, 7) == pytest.approx(steps + clients + rest)
    stack = Counts(Part(5, 0, 0, large), Part(3, 0, 0, {}), Part(0, 0, 0, {}), stack=2)
    expected = 7 * (1e-3 + 5e-5 + 4e-6) + 8 * 3e-4
    assert round_seconds(stack, host, 8, 7) == pytest.approx(expected)
    hidden = Host(step=0, call=1e-6, beside=0, hidden=True)  # 40 us of the host hide 30 us
    found = round_seconds(alone, hidden, 1, 7)
    assert found == pytest.approx(7 * 4e-5 + 1e-4 + 35e-5 + 3e-5)


def test_kernels_of_a_step_by_hand():
    with CostedDevice() as gpu:
        x, w = torch.ones(10, 6, 8, 8).cuda(), torch.ones(8, 3, 3, 3).cuda()
        wide = torch.ones(4, 1, 9, 9).cuda()
        x.requires_grad_()
        w.requires_grad_()
        before = gpu.kernels
        y = nn.functional.conv2d(x, w, groups=2)  # [10, 8, 6, 6]
        y.sum().backward()
        nn.functional.conv2d(wide, torch.ones(2, 1, 1, 1).cuda())  # maps of 81
        a, b = torch.ones(4, 5).cuda(), torch.ones(5, 6).cuda()
        (a @ b)[0].expand(100, 6).contiguous()
        a.copy_(b[:4, :5])
        b[torch.zeros(2, dtype=torch.int64).cuda()]
        found = gpu.kernels - before
    x, w, y = 4 * 10 * 6 * 64, 4 * 8 * 3 * 9, 4 * 10 * 8 * 36
    flop = 2 * (10 * 8 * 36) * 27
    for kernel in (
        Kernel("grouped convolution of small maps", 2, x + w + y, flop),
        Kernel("grouped convolution of small maps", 3, 2 * (x + w) + 4, 2 * flop),  # of ones
        Kernel("convolution", 2, 4 * (324 + 2 + 648), 2 * 648),
        Kernel("product", 1, 4 * (20 + 30 + 24), 2 * 4 * 5 * 6),
        Kernel("other", 1, 4 * (6 + 600), 0),
        Kernel("other", 1, 4 * (20 + 20), 0),  # its old values are not read
        Kernel("other", 1, 4 * (12 + 12) + 16, 0),  # two rows of five
    ):
        assert found[kernel] == 1, (kernel, found)


@pytest.mark.ci
def test_counts_of_few_clients_tell_those_of_more(tmp_path, monkeypatch):
    """A round of four clients of five steps, from those of two and three of two and four."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    system = System("raysim", stack=FEW, graphs=True)
    counts = count(system, "2nn", 10)
    whole = one_round(system, "2nn", 10, clients=4, steps=5)
    assert whole.calls == counts.round.calls + 4 * counts.client.calls + 5 * counts.step.calls
    python = counts.round.python + 4 * counts.client.python + 5 * counts.step.python
    assert whole.python == pytest.approx(python, rel=0.01)
    scaled = counts.round + counts.client * 4 + counts.step * 5
    for values in ("launches", "flop"):
        at_two, at_four = (
            sum(getattr(kernel, values) * number for kernel, number in part.kernels.items())
            for part in (scaled, whole)
        )
        assert at_four == pytest.approx(at_two * (2 if values == "flop" else 1))


def test_a_table_gives_what_was_written(tmp_path):
    part = Part(3, 7, 0.5, {Kernel("other", 1, 1e6, 0): 2, Kernel("other", 1, 5e5, 0): -1})
    path = tmp_path / "table.toml"
    path.write_text(written("2nn", "graphs", Counts(part, part * 2, part, stack=2)))
    (found,) = read(path).values()
    assert found.stack == 2 and found.client.calls == 6 and found.round.python == 7
    assert found.step.copied == 0.5
    assert found.step.kernels == {Kernel("other", 2, 2e6, 0): 1, Kernel("other", 1, 5e5, 0): -1}


def test_calls_of_python_are_those_of_own_functions_and_of_c():
    def calls(body):
        with (python := PythonCalls()).counting():
            body()
        return python.count

    def own(n):
        return n + 1

    nothing, gpu = calls(lambda: None), CostedDevice()
    assert calls(lambda: own(len("abc"))) == nothing + 2
    assert calls(lambda: gpu.kernels) == nothing + 0  # of the device of CPU memory none count
    assert sys.getprofile() is None
