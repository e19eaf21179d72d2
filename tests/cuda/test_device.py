"""The device itself: what is right has its values, and a planted fault of each kind is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.numbers.tensors import not_finite
from raysim.numbers.tensors.packed import on_device, on_host
from raysim.training import sequential
from raysim.training.stacked import cuda_graphs
from tests.cuda.device import CudaDevice
from tests.cuda.runs import Outcome, Runs, distance
from tests.tasks import Notes, make_settings, make_task


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    with CudaDevice() as device:
        yield device


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode(before)


def on_gpu(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cuda")


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return the graph of a step, and the step's results in it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        try:
            return graph, step()
        finally:
            graph.capture_end()


def test_gradients_and_vmap_have_the_cpus_values(gpu):
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (torch.tanh(x @ w) ** 2).sum()

    w, x = torch.randn(3, 4, 2), torch.randn(3, 5, 4)
    expected = torch.vmap(torch.func.grad(loss))(w, x)
    found = torch.vmap(torch.func.grad(loss))(w.cuda(), x.cuda())
    assert found.is_cuda and found.device == torch.device("cuda", 0) and not expected.is_cuda
    assert torch.equal(found.cpu(), expected)
    leaf = w[0].cuda().requires_grad_()
    loss(leaf, x[0].cuda()).backward()
    assert leaf.grad.is_cuda and torch.allclose(leaf.grad.cpu(), expected[0])


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a tensor of the host": (lambda: on_gpu(1, 2) + torch.ones(2), RuntimeError, "same device"),
    "a number of the host in a stack": (
        lambda: torch.stack([on_gpu(1)[0], torch.tensor(2.0)]),
        RuntimeError,
        "same device",
    ),
    "indices of the device for the host": (
        lambda: torch.ones(3)[torch.tensor([1], device="cuda")],
        RuntimeError,
        "same device",
    ),
    "a part left on the host": (
        lambda: on_gpu(1, 2) * torch.ones_like(on_gpu(1, 2), device="cpu"),
        RuntimeError,
        "same device",
    ),
    "numpy": (lambda: on_gpu(1).numpy(), TypeError, "can't convert cuda"),
    "asarray": (lambda: np.asarray(on_gpu(1)), TypeError, "can't convert cuda"),
    "the host's generator": (
        lambda: torch.rand(2, generator=torch.Generator(), device="cuda"),
        RuntimeError,
        "Expected a 'cuda' device type for generator",
    ),
    "the device's generator": (
        lambda: torch.rand(2, generator=torch.Generator("cuda")),
        RuntimeError,
        "Expected a 'cpu' device type for generator",
    ),
    "median with indices": (lambda: on_gpu(1, 2).median(0), RuntimeError, "deterministic"),
    "cumsum of floats": (lambda: on_gpu(1, 2).cumsum(0), RuntimeError, "deterministic"),
    "weighted bincount": (
        lambda: torch.tensor([1], device="cuda").bincount(on_gpu(1)),
        RuntimeError,
        "deterministic",
    ),
    "a backward pass": (
        lambda: (
            torch.nn.functional.interpolate(
                torch.ones(1, 1, 2, 2, device="cuda", requires_grad=True), (3, 3), mode="bilinear"
            )
            .sum()
            .backward()
        ),
        RuntimeError,
        "deterministic",
    ),
    "a value read in a capture": (
        lambda: captured(lambda: on_gpu_made().item()),
        RuntimeError,
        "capturing",
    ),
    "a copy in a capture": (lambda: captured(lambda: torch.ones(1).cuda()), RuntimeError, "captur"),
    "a mask in a capture": (
        lambda: captured(lambda: on_gpu_made()[on_gpu_made() > 0]),
        RuntimeError,
        "capturing",
    ),
    "a capture on the default stream": (
        lambda: torch.cuda.CUDAGraph().capture_begin(),
        RuntimeError,
        "non-default stream",
    ),
}


def on_gpu_made() -> Tensor:
    return torch.ones(2, device="cuda").sum(0, keepdim=True)


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cuda_refuses_is_refused(gpu, deterministic, fault):
    plant, error, message = REFUSED[fault]
    with pytest.raises(error, match=message):
        plant()


def test_what_cuda_allows_is_done(gpu, deterministic):
    x = on_gpu(3, 1, 2)
    assert x.median().item() == 2 and (x * torch.tensor(2.0)).tolist() == [6, 2, 4]
    assert x.long().cumsum(0).tolist() == [3, 4, 6]
    assert x[torch.tensor([0, 2])].tolist() == [3, 2]
    assert torch.zeros(3, device="cuda").copy_(torch.ones(3)).is_cuda
    assert not x.new_zeros(2, device="cpu").is_cuda and x.new_tensor(1.5).item() == 1.5
    assert torch.rand(2, generator=torch.Generator("cuda"), device="cuda").is_cuda


def test_kernels_waits_and_copies_are_counted_by_line(gpu):
    x = torch.ones(3).to("cuda")
    (x * 2 + 1).sum().item()
    x.view(3, 1).cpu()
    counts = {"launches": 3, "syncs": 3, "to the device": 1, "to the host": 1}
    assert gpu.counts == counts | {"bytes to the device": 12, "bytes to the host": 12}
    first = test_kernels_waits_and_copies_are_counted_by_line.__code__.co_firstlineno
    by_line = {
        (kind, int(where.rpartition(":")[2]) - first): n for (kind, where), n in gpu.where.items()
    }
    assert by_line == {
        **{("to the device", 1): 1, ("syncs", 1): 1, ("launches", 2): 3, ("syncs", 2): 1},
        **{("to the host", 3): 1, ("syncs", 3): 1},
    }
    assert all(where.startswith("tests/cuda/test_device.py") for _, where in gpu.where)


def test_a_capture_does_nothing_and_a_replay_does_it(gpu):
    x, total = on_gpu(1, 2), on_gpu(0, 0)
    graph, found = captured(lambda: total.add_(x) * 2)
    assert total.tolist() == [0, 0] and found.isnan().all().item()
    for replays in (1, 2):
        graph.replay()
        assert total.tolist() == [replays, 2 * replays]
        assert found.tolist() == [2 * replays, 4 * replays]
    assert gpu.counts["replays"] == 2 and gpu.graphs[0].kernels == 2


def test_numbers_of_the_host_are_those_of_the_capture(gpu):
    x, factor = on_gpu(1, 2), torch.tensor(3.0)
    graph, found = captured(lambda: x * factor)
    factor.fill_(5)
    graph.replay()
    assert found.tolist() == [3, 6]


def test_a_replay_draws_anew_and_again_from_a_state_of_its_own(gpu):
    generator = torch.cuda.default_generators[0]

    def step() -> tuple[Tensor, Tensor]:
        state = generator.get_state()
        first = torch.rand(2, device="cuda")
        generator.set_state(state)
        return first, torch.rand(2, device="cuda")

    generator.manual_seed(1)
    expected = [step()[0].tolist(), step()[0].tolist()]
    graph, (first, second) = captured(step)
    generator.manual_seed(1)
    for values in expected:
        graph.replay()
        assert first.tolist() == second.tolist() == values


def test_a_replay_that_reads_freed_memory_is_refused(gpu):
    kept, others = on_gpu(1), [on_gpu(2)]
    graph, _ = captured(lambda: kept + others[0])
    graph.replay()
    others.clear()
    with pytest.raises(RuntimeError, match="reads freed memory"):
        graph.replay()


WAITS: dict[str, Callable[[], Any]] = {
    "for all streams": lambda: torch.cuda.synchronize("cuda"),
    "for the stream": lambda: torch.cuda.current_stream().synchronize(),
    "for an event": lambda: torch.cuda.current_stream().record_event().synchronize(),
    "for a value": lambda: on_gpu(1).item(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_copy_to_the_host_is_there_after_the_wait(gpu, wait):
    x = on_gpu(1, 2)
    event = torch.cuda.current_stream().record_event()
    found, into = x.to("cpu", non_blocking=True), torch.zeros(2)
    into.copy_(x, non_blocking=True)
    x.add_(1)  # later on the same stream
    event.synchronize()  # recorded before
    assert found.isnan().all() and into.isnan().all()
    WAITS[wait]()
    assert found.tolist() == into.tolist() == [1, 2]


@pytest.mark.parametrize("wait", WAITS)
def test_pinned_memory_that_changes_before_the_wait_is_seen(gpu, wait):
    source = torch.ones(2).pin_memory()
    source.to("cuda", non_blocking=True)
    WAITS[wait]()
    source.fill_(2)  # after it
    torch.zeros(2, device="cuda").copy_(source, non_blocking=True)
    source.fill_(3)
    with pytest.raises(RuntimeError, match="pinned memory changed before"):
        WAITS[wait]()


def test_a_copy_is_done_once(gpu):
    source, stream = torch.ones(2).pin_memory(), torch.cuda.current_stream()
    source.to("cuda", non_blocking=True)
    first, later = stream.record_event(), stream.record_event()
    first.synchronize()
    source.fill_(2)
    later.synchronize()


def test_memory_that_is_not_pinned_is_copied_aside(gpu):
    source = torch.ones(2)
    found = source.to("cuda", non_blocking=True)
    source.fill_(2)
    assert found.tolist() == [1, 1]


def test_another_stream_must_come_after_a_copy(gpu):
    source, side = torch.ones(2).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        found = source.cuda(non_blocking=True)
        event = side.record_event()
    with pytest.raises(RuntimeError, match="used on another stream"):
        found + 1
    torch.cuda.current_stream().wait_event(event)
    assert (found + 1).tolist() == [2, 2]


def test_a_run_leaves_torch_as_it_was():
    before = torch.Generator, torch.autocast, torch.cuda.Stream, torch.cuda.is_available
    with CudaDevice():
        assert torch.cuda.is_available()
    assert before == (torch.Generator, torch.autocast, torch.cuda.Stream, torch.cuda.is_available)
    assert torch.ones(1).device.type == "cpu"


IN_STEPS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "left on the host": (lambda g: g * torch.ones_like(g, device="cpu"), "same device"),
    "read by numpy": (lambda g: torch.from_numpy(g.numpy()), "can't convert cuda"),
    "the host's draw": (
        lambda g: g + torch.rand(g.shape, generator=torch.Generator(), device="cuda"),
        "device type for generator",
    ),
    "nondeterministic": (lambda g: g * g.flatten().median(0).values, "deterministic"),
}


@pytest.mark.parametrize("fault", IN_STEPS)
def test_a_fault_in_the_steps_of_a_run_ends_it(tmp_path, monkeypatch, fault):
    plant, message = IN_STEPS[fault]
    real = sequential.gradients_of
    monkeypatch.setattr(sequential, "gradients_of", lambda *at: [*map(plant, real(*at))])
    with pytest.raises(raysim.RaysimError, match=message):
        Runs(tmp_path, monkeypatch, "fedavg", "mlp", rounds=1).on_gpu("alone")


def test_tensors_that_are_not_finite_are_named_and_the_host_waits_once_for_finite_ones(gpu):
    finite = {
        "a": on_gpu(1, 2),
        "b": on_gpu(-3),
        "counter": torch.ones(2, dtype=torch.int64).cuda(),
    }
    before = gpu.counts["syncs"]
    assert not_finite(finite) == []
    assert gpu.counts["syncs"] == before + 1
    broken = {**finite, "c": on_gpu(1, float("nan")), "host": torch.tensor([float("inf")])}
    assert not_finite(broken) == ["host", "c"]


def test_tensors_go_to_the_device_and_back_by_one_copy(gpu):
    tensors = {"w": torch.randn(3, 4), "b": torch.randn(5), "n": torch.tensor(7)}
    there = on_device(tensors, torch.device("cuda", 0))
    assert all(tensor.is_cuda for tensor in there.values()) and gpu.counts["to the device"] == 2
    back = on_host(there)
    assert gpu.counts["to the host"] == 2  # one of each dtype
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    mixed = on_host({**there, "steps": torch.tensor(3)})  # as of an optimizer that is kept
    assert [*mixed] == ["w", "b", "n", "steps"] and mixed["steps"] == 3
    assert torch.equal(mixed["w"], tensors["w"])


class Masked(nn.Module):
    """Keeps a mask of the batch's size outside its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.mask = nn.Linear(12, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 1, device=x.device)
        return self.head(x) * self.mask


def test_a_step_that_reads_memory_of_others_is_no_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", 1)
    own = {"engine.gpus_per_actor": 1.0, "fraction": 1.0, "local.epochs": 3}
    with CudaDevice() as gpu:
        raysim.run(make_settings(tmp_path, **own), make_task((30, 17), Masked), notes := Notes())
    assert not gpu.counts["captures"]
    assert [note for note in notes.notes if "is from elsewhere; register it as a buffer" in note]


@pytest.mark.parametrize("mode", ["graphs", "recorded"])
def test_rates_and_temperatures_that_change_by_round_are_no_new_graphs(tmp_path, monkeypatch, mode):
    def run(name: str, **more: Any) -> Outcome:
        own = {"rounds": 6, "local.temperature": 0.5, "local.optimizer": "adam"} | more
        runs = Runs(tmp_path / name, monkeypatch, "fedavg", "mlp", (16, 16), **own)
        return runs.on_gpu(mode)

    constant = run("constant")
    scheduled = run(
        "scheduled",
        **{"local.lr_decay": 0.9, "temperature.name": "schedule"},
        **{"temperature.rounds": [1, 6], "temperature.values": [0.5, 2.0]},
        **{"temperature.between": "linear"},
    )
    assert scheduled.gpu.counts["captures"] == constant.gpu.counts["captures"] > 0
    assert scheduled.gpu.counts["replays"] == constant.gpu.counts["replays"]
    assert distance(scheduled.result, constant.result) > 0.001
