"""What every executor runs: clients of a pass, and batches of evaluated samples.

A worker keeps network, data and optimiser resident for the whole run. It is plain Python: the
inline executor holds one in its own process, a Ray actor holds one in another.
"""

from __future__ import annotations

import math
import os
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raysim.config import Settings
from raysim.core.errors import MachineError, RaysimError, RunError
from raysim.core.exact import ExactSum
from raysim.core.packed import PackedTensors
from raysim.core.rules import Batch, Upload
from raysim.core.seeds import stream, torch_seed
from raysim.core.tensors import Groups, Layout, flatten, nbytes
from raysim.execution.messages import Chunk, Failure, Order, Scored, Scores, Tally
from raysim.execution.process import device_of
from raysim.federation.evaluation_sets import EVALUATION_ROWS, EvaluationSet
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.storage.client_states import ClientStates
from raysim.storage.trace import Stopwatch
from raysim.training.job import ClientJob, LocalLosses
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.trainer import StackedTrainer

TEST_SET = 0
"""The test set's number among the sets that are evaluated."""
FORWARD_ROWS = 250
"""Samples that go through the network at once in evaluation.

On one core, 2000 images of mnist-cnn-128 took 0.50 s so and 0.76 s by 1000, whose activations do
not stay in the cache; cifar-cnn-5 0.83 and 1.12 s, resnet18 1.88 and 2.20 s.
"""


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to build itself.

    Attributes:
        settings: The run's settings.
        federation: Its data and network.
        states: Where clients' states are kept.
        evaluated: The sets that are evaluated client by client, numbered from 1.
    """

    settings: Settings
    federation: Federation
    states: Path
    evaluated: tuple[EvaluationSet, ...] = ()


class Worker:
    """Trains clients and evaluates batches of samples, in a process that `configure` set up."""

    def __init__(self, spec: WorkerSpec) -> None:
        settings = spec.settings
        self._settings = settings
        self._name = f"{socket.gethostname()} {os.getpid()}"
        self.watch = Stopwatch(settings.trace)
        self.device = device_of(settings.engine)
        federation = spec.federation.on_this_node()
        module = settings.method.network(federation.network(settings.seed))
        network = Network(module).placed(self.device)
        self._loop = SequentialTrainer(network, settings.local, settings.engine.precision)
        self._data = OpenedSamples(federation, self.device)
        self._evaluated = spec.evaluated
        self._sizes = federation.training_sizes
        self._augment = federation.inputs.augment
        self._states = ClientStates(spec.states)
        self._broadcast: tuple[tuple[int, int] | None, Groups, Groups] = (None, {}, {})
        self._tally = Tally()
        self._scores: Scores = {}

    def about(self, share: float) -> dict[str, Any]:
        """Return the device, and for a GPU the bytes of its memory in this worker's share."""
        if self.device.type != "cuda":
            return {"device": str(self.device)}
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return {"device": str(self.device), "memory": int(share * memory)}

    def train(self, order: Order, groups: Sequence[tuple[int, ...]]) -> None:
        """Train groups of clients of a pass and add them to what this worker holds."""
        with self.watch("broadcast"):
            self._open(order)
        for group in groups:
            self._train_group(order, group)

    def take(self) -> Chunk | Scored:
        """Hand over what this worker holds: a sum over clients, or scores of batches."""
        tally, scores = self._tally, self._scores
        self._tally, self._scores = Tally(), {}
        if scores:
            return Scored(scores, self._name, self.watch.take())
        return tally.chunk(self._name, self.watch)

    def _train_group(self, order: Order, group: tuple[int, ...]) -> None:
        """Train the clients of a group together; each is accepted or fails by itself."""
        begun = perf_counter()
        jobs: dict[int, ClientJob] = {}
        for client in group:
            with self._failures([client]), self.watch("data"):
                jobs[client] = self._job(order, client)
        results: list[tuple[Upload, LocalLosses]] = []
        with self._failures([*jobs]), self.watch("training"):
            results = self._run([*jobs.values()])
        for (client, job), (upload, log) in zip(jobs.items(), results, strict=False):
            with self._failures([client]), self.watch("reduction"):
                self._accept(order, client, upload)
                seconds = (perf_counter() - begun) / len(group)
                self._tally.records.append(_record(client, len(job.data.y), log, upload, seconds))

    def _run(self, jobs: list[ClientJob]) -> list[tuple[Upload, LocalLosses]]:
        if len(jobs) < 2:
            return [self._loop.run(job) for job in jobs]
        results = self._vector.run(jobs)
        self._tally.refusal = self._vector.refusal
        return results

    @contextmanager
    def _failures(self, clients: list[int]) -> Iterator[None]:
        """Note the failure of clients; it must not take along those beside them."""
        try:
            yield
        except MachineError:
            raise  # no fault of the clients
        except Exception as error:
            cause = str(error) if isinstance(error, RaysimError) else repr(error)
            trace, together = traceback.format_exc(), len(clients)
            self._tally.failures += [Failure(c, cause, trace, together) for c in clients]

    def _job(self, order: Order, client: int) -> ClientJob:
        _, broadcast, fresh = self._broadcast
        kept = order.kept.get(client)
        state = self._states.read(client, kept, self.device) if kept else fresh
        personal = order.personal.get(client)
        keys = (order.round_number, order.index, client)
        return ClientJob(
            rules=order.rules,
            epochs=order.epochs,
            lr=order.lr,
            trainable=order.trainable,
            data=self._data.client(client),
            broadcast=broadcast,
            state=state,
            personal=personal.open(self.device) if personal else {},
            augment=self._augment,
            batches=stream(self._settings.seed, "batches", *keys),
            torch_seed=torch_seed(self._settings.seed, "training", *keys),
        )

    def _accept(self, order: Order, client: int, upload: Upload) -> None:
        """Check an upload, keep the client's state, then add to the sum: all of it or nothing."""
        tally = self._tally
        weight = 1 if order.uniform else int(self._sizes[client])
        sums = flatten(upload.sums)
        layout = Layout.of(sums)
        tally.sum = tally.sum or ExactSum(layout)
        if tally.sum.layout != layout:
            raise RunError("its upload has other tensors than the clients before it")
        addend = tally.sum.check(sums)
        _check_finite(upload)
        if upload.state:
            version = (order.round_number, order.index)
            self._states.write(client, version, upload.state, order.keep_from)
            tally.keepers.append(client)
        tally.sum.add(addend, weight / order.total)
        if upload.rows:
            tally.rows[client] = PackedTensors.of(upload.rows)
        tally.weight += weight
        tally.clients.append(client)
        tally.scalars = frozenset(upload.scalars)
        tally.bytes_up += nbytes(upload.sums) + nbytes(upload.rows) + 4 * len(upload.scalars)

    def _open(self, order: Order) -> None:
        """Bring a pass's broadcast to the device, once."""
        key = (order.round_number, order.index)
        if self._broadcast[0] != key:
            broadcast, fresh = (w.open(self.device) for w in (order.broadcast, order.fresh))
            self._broadcast = (key, broadcast, fresh)

    @cached_property
    def _vector(self) -> StackedTrainer:
        return StackedTrainer(self._loop)

    def evaluate(self, deployed: PackedTensors, batches: Sequence[tuple[int, ...]]) -> None:
        """Evaluate batches of samples; hold their scores.

        Args:
            deployed: The network's tensors.
            batches: Each the number of a set, and that of a batch of it; the test set's have
                EVALUATION_ROWS samples each.
        """
        network = self._loop.network
        with self.watch("evaluation"), torch.no_grad(), self._loop.autocast():
            network.load(deployed.open_tensors(self.device))
            network.eval()
            for batch in batches:
                self._scores[batch] = _score(network, self._samples(*batch))

    def _samples(self, number: int, batch: int) -> Batch:
        """Return the samples of a batch of a set."""
        if number == TEST_SET:
            return self._data.test(batch * EVALUATION_ROWS, (batch + 1) * EVALUATION_ROWS)
        return self._data.of_clients(self._evaluated[number - 1], batch)


def _score(network: Network, samples: Batch) -> tuple[float, npt.NDArray[Any]]:
    """Return the sum of the losses, and the predictions [n, ...]."""
    loss, predicted = 0.0, []
    for start in range(0, len(samples.y), FORWARD_ROWS):
        rows = slice(start, start + FORWARD_ROWS)
        batch = samples._replace(x=samples.x[rows], y=samples.y[rows])
        outputs = network(batch.x).logits.float()
        loss += float(batch.loss(outputs).double()) * len(batch.y)
        predicted.append(batch.objective.predict(outputs).cpu().numpy())
    return loss, np.concatenate(predicted)


def _check_finite(upload: Upload) -> None:
    """Check what is not summed: the sums are checked where they are packed.

    Raises:
        RunError: a value is not finite; it names the tensor or the number.
    """
    kept = [*flatten(upload.rows).items(), *flatten(upload.state).items()]
    bad = [n for n, t in kept if t.is_floating_point() and not bool(t.isfinite().all())]
    bad += [name for name, value in upload.scalars.items() if not math.isfinite(value)]
    if bad:
        raise RunError(f"its update is not finite ({bad[0]}): try a smaller local.lr")


def _record(
    client: int, samples: int, log: LocalLosses, upload: Upload, seconds: float
) -> dict[str, float]:
    return {
        "client": client,
        "samples": samples,
        "steps": log.steps,
        "train_loss": log.train_loss,
        "objective": log.objective,
        "seconds": seconds,
        **upload.scalars,
        **upload.metrics,
    }
