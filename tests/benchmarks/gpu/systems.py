"""Systems in one process, which take turns: raysim's inline runs, and bare loops of PyTorch.

Each run has a thread of its own, which waits between rounds. The runs share a CUDA context and
torch's allocator, so that many fit side by side on a device and start within a second.
"""

from __future__ import annotations

import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import raysim
from raysim.driver.listeners.listener import Started
from tests.benchmarks.gpu.work import switch_graphs
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.turns import EndedError
from tests.benchmarks.peers.work import FP32, Case, train
from tests.benchmarks.runner import SystemFailedError

CLIENTS = 4
"""Clients whose samples a bare loop trains on in turn."""
WARM_UP_STEPS = 3
"""Steps before one is recorded, in which kernels are chosen."""


class InlineRun(raysim.Listener):
    """A run of raysim in a thread of this process, which trains a round whenever it is told to.

    Attributes:
        failure: Why it ended, if it did.
        notes: Lines for the user.
    """

    def __init__(self, preset: str, overrides: Mapping[str, Any], *, graphs: bool) -> None:
        """Start the run; return when it is ready for its first round, or has failed."""
        self.failure, self.notes = "", list[str]()
        self._graphs = graphs
        self._turns: SimpleQueue[bool] = SimpleQueue()
        self._seconds: SimpleQueue[float | None] = SimpleQueue()
        self._begun = 0.0
        self._thread = threading.Thread(target=self._run, args=(preset, overrides), daemon=True)
        self._thread.start()
        self._seconds.get()

    def round(self) -> float:
        """Train a round; return its seconds.

        Raises:
            SystemFailedError: the run has failed.
        """
        switch_graphs(on=self._graphs)
        self._turns.put(True)
        seconds = None if self.failure else self._seconds.get()
        if seconds is None:
            raise SystemFailedError(self.failure)
        return seconds

    def close(self) -> None:
        """End the run."""
        self._turns.put(False)
        self._thread.join()

    def started(self, run: Started) -> None:
        self._wait()

    def round_done(self, row: Mapping[str, Any]) -> None:
        self._wait()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _wait(self) -> None:
        """Tell that a round has ended, and wait for the next turn."""
        self._seconds.put(perf_counter() - self._begun)
        if not self._turns.get():
            raise EndedError
        self._begun = perf_counter()

    def _run(self, preset: str, overrides: Mapping[str, Any]) -> None:
        try:
            with tempfile.TemporaryDirectory() as out:
                settings = raysim.load_config(preset, {**overrides, "out": f"{out}/run"})
                raysim.run(settings, listener=self)
        except EndedError:
            pass
        except Exception as error:  # whatever it is, the other systems are still to be measured
            traceback.print_exc()
            self.failure = f"{type(error).__name__}: {error}"
        self._seconds.put(None)


class BareLoop:
    """Plain PyTorch on the device: clients one after another, and nothing but local steps.

    Attributes:
        failure: Why it failed, if it did.
    """

    def __init__(self, case: Case, device: torch.device, *, bf16: bool) -> None:
        generator = np.random.default_rng(0)
        self._case = case
        self._data = [
            tuple(torch.from_numpy(array).to(device) for array in samples)
            for samples in (
                NETWORKS[case.network].samples(case.samples, generator) for _ in range(CLIENTS)
            )
        ]
        self.model = case.build().to(device).train()
        self._start = {name: each.clone() for name, each in self.model.state_dict().items()}
        self._device, self.failure = device, ""
        self.precision = torch.autocast(device.type, torch.bfloat16) if bf16 else FP32

    def round(self) -> float:
        """Train a round; return its seconds.

        Raises:
            SystemFailedError: torch fails: there is no memory, say.
        """
        begun = perf_counter()
        try:
            for client in range(self._case.cohort):
                self.model.load_state_dict(self._start)
                self.train(*self._data[client % CLIENTS])
            if self._device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise SystemFailedError(self.failure) from error
        return perf_counter() - begun

    def train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Take the local steps of a client."""
        train(self.model, x, y, self._case, self.precision)

    def close(self) -> None:
        """Do nothing: it holds no process."""


class BareGraph(BareLoop):
    """The bare loop with its whole step, optimiser included, recorded once as a CUDA graph."""

    def __init__(self, case: Case, device: torch.device, *, bf16: bool) -> None:
        super().__init__(case, device, bf16=bf16)
        x, y = self._data[0]
        self._batch, self._graph = case.batch, torch.cuda.CUDAGraph()
        self._x, self._y = x[: case.batch].clone(), y[: case.batch].clone()
        optimiser = torch.optim.SGD(self.model.parameters(), lr=case.lr)

        def step() -> None:
            optimiser.zero_grad()
            with self.precision:
                loss = F.cross_entropy(self.model(self._x), self._y)
            loss.backward()
            optimiser.step()

        on_side_stream(step, WARM_UP_STEPS)
        optimiser.zero_grad()
        with torch.cuda.graph(self._graph):
            step()

    def train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        order = torch.randperm(len(y), device=y.device)
        batches = zip(x[order].split(self._batch), y[order].split(self._batch), strict=True)
        for inputs, targets in batches:
            self._x.copy_(inputs)
            self._y.copy_(targets)
            self._graph.replay()


def on_side_stream(step: Callable[[], None], times: int) -> None:
    """Take steps on another stream, as recording asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(stream)
