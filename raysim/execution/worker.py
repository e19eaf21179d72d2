"""Worker of every executor: trains clients of a pass, evaluates batches of samples.

A worker keeps network, data and optimiser resident for the whole run. It is plain Python: the
inline executor holds one in its own process, a Ray actor holds one in another.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from raysim.api.components import called, cause
from raysim.api.differences import flat_values, split_stored
from raysim.api.rules import Batch, Upload
from raysim.config import Settings
from raysim.display.units import in_fitting_unit
from raysim.errors import ChangedInputError, MachineError, RaysimError, RunError
from raysim.execution.client_jobs import ClientJobs
from raysim.execution.deployed_models import Making, own_model, tuned_model
from raysim.execution.kernels import check_has_kernel, check_kernels
from raysim.execution.messages import (
    AggregationMessage,
    EvaluationMessage,
    Failure,
    PassMessage,
    Score,
    WorkerResult,
)
from raysim.execution.partial_sum import Kept, PartialSum
from raysim.execution.process import device_of, is_device_error
from raysim.execution.update_blocks import combined, measured, read_block
from raysim.federation.base_files import HeldBase
from raysim.federation.evaluation_sets import EVALUATION_ROWS, EvaluationSet
from raysim.federation.federation import Federation, client_named, hold_base, network_of
from raysim.federation.opened import OpenedSamples, memory_cap
from raysim.federation.samples import blaming_samples
from raysim.numbers.arrays import Floats
from raysim.numbers.tensors import Layout, Tensors, is_finite
from raysim.numbers.tensors.exact import STACK_BLOCK
from raysim.numbers.tensors.later import wait_for
from raysim.storage.environment import environment
from raysim.storage.trace import Stopwatch
from raysim.storage.updates import Place, UpdateFiles
from raysim.training.job import ClientJob, LocalLosses
from raysim.training.network import Network, score
from raysim.training.own_loop import OwnLoopTrainer
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.cuda_graphs import recorder_on
from raysim.training.stacked.trainer import StackedTrainer, StackResult

CALLS = ("train", "evaluate", "measure", "aggregate")
"""Methods that an executor calls and takes results of."""
TEST_SET = 0
"""The test set's number among the sets that are evaluated."""


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to build itself.

    Attributes:
        settings: The run's settings.
        federation: Its data and network.
        states: Folder of the client states.
        updates: Folder of updates that an aggregation sees one by one.
        evaluated: The sets that are evaluated client by client, numbered from 1.
    """

    settings: Settings
    federation: Federation
    states: Path
    updates: Path
    evaluated: tuple[EvaluationSet, ...] = ()


class _TrainedTogether(NamedTuple):
    """Clients that were trained together, and what is to be accepted of them.

    Attributes:
        message: The pass.
        stack: All clients of the stack.
        begun: When the stack was begun.
        result: Uploads and losses of some of them.
        jobs: The clients that have jobs, with these.
    """

    message: PassMessage
    stack: tuple[int, ...]
    begun: float
    result: StackResult
    jobs: Sequence[tuple[int, ClientJob]]

    def seconds(self) -> float:
        """Return the seconds of one client, after a GPU was waited for."""
        return (perf_counter() - self.begun) / len(self.stack)


class Worker:
    """Trains clients and evaluates batches of samples, in a process that `configure` set up.

    Attributes:
        sequential: Trains clients one at a time.
        making: Makes the models that clients deploy.
    """

    def __init__(self, spec: WorkerSpec, network: nn.Module | None = None) -> None:
        """Open a run's samples, and build its network.

        Args:
            spec: All that it needs.
            network: The network, if there is one already, which is trained in place.
        """
        settings = spec.settings
        self._settings = settings
        self._name = f"{socket.gethostname()} {os.getpid()}"
        self.watch = Stopwatch(settings.trace)
        self.device = device_of(settings.engine)
        federation = spec.federation.on_this_node()
        if network is None:
            model = federation.network(settings.seed, settings.method)
            network = network_of(model, settings.method, settings.seed)
            hold_base(federation, network)
        placed = Network(network).placed(self.device)
        self._base = HeldBase.of(placed.module)
        self._results = {name: WorkerResult(self._name) for name in CALLS}
        recorder = recorder_on(self.device, note=partial(_note, self._results))
        parts = (placed, settings.local, settings.engine.precision, recorder)
        self.sequential = (
            OwnLoopTrainer(*parts).using(federation.loop, federation.names)
            if federation.loop
            else SequentialTrainer(*parts)
        )
        samples = OpenedSamples(federation, self.device)
        if settings.engine.deterministic and self.device.type == "cuda":
            few = samples.first(2)._replace(scoring=federation.training or federation.scoring)
            check_kernels(self.sequential, few)
        self._jobs = ClientJobs(settings, federation, spec.states, samples)
        self._updates = UpdateFiles(spec.updates)
        self._evaluated, self._sizes = spec.evaluated, federation.training_sizes
        named = partial(client_named, federation.names)  # its method would keep all its tensors
        self.making = Making(self.sequential, self._jobs.job, named)
        self._failed_in_row: set[tuple[int, ...]] = set()

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return environment(self.device)

    def about(self) -> dict[str, Any]:
        """Return device and environment, and for a GPU the bytes of memory that this may use."""
        about: dict[str, Any] = {"device": str(self.device), "environment": self._environment}
        if self.device.type == "cuda":
            about["memory"] = memory_cap(self.device)
        return about

    def train(self, message: PassMessage, stacks: Sequence[tuple[int, ...]]) -> None:
        """Train stacks of clients of a pass; hold the sum of their uploads."""
        for stack in stacks:
            with self.watch("broadcast"):
                self._jobs.open(message)
            failures = len(self._results["train"].failures)
            self._train_stack(message, stack)
            if len(self._results["train"].failures) > failures:
                self._failed_in_row.add(stack)
            else:
                self._failed_in_row.clear()

    def take(self, call: str) -> WorkerResult:
        """Hand over everything that this worker holds of one of its methods."""
        self._base.check_values()
        result, self._results[call] = self._results[call], WorkerResult(self._name)
        for total in result.sums.values():
            with self.watch("reduction"):
                if total.sum is not None:
                    total.sum.finish()
                total.leave()
        result.failing = len(self._failed_in_row) > 1
        result.spans = self.watch.take()
        return result

    def _train_stack(self, message: PassMessage, stack: tuple[int, ...]) -> None:
        """Train the clients of a stack; each is accepted or fails by itself."""
        begun = perf_counter()
        jobs: dict[int, ClientJob] = {}
        gathered: dict[int, Batch] = {}
        with suppress(Exception), self.watch("data"):  # else client by client, which tells whose
            gathered = self._jobs.gathered(message, stack)
        for client in stack:
            with self._failures(message, [client], stack), self.watch("data"):
                jobs[client] = self._jobs.job(message, client, gathered)
        results: list[StackResult] = []
        with self._failures(message, [*jobs], stack), self.watch("training"):
            if len(jobs) < len(stack) and not message.retry:
                raise RunError("another client of its stack failed")
            if len(stack) > 1 and jobs:
                results = self._stacked.run([*jobs.values()])
            else:
                for job in jobs.values():
                    upload, losses = self.sequential.run(job)
                    results.append(StackResult([0], [losses], [upload]))
            self._base.check_left()
        of_jobs = [*jobs.items()]
        for result in results:
            trained = _TrainedTogether(message, stack, begun, result, of_jobs)
            if not self._accept_at_once(trained):
                self._accept_each(trained)

    def _accept_each(self, trained: _TrainedTogether) -> None:
        """Accept uploads one by one, but wait for a GPU once for several of them."""
        uploads, message = [*trained.result.each()], trained.message
        at_a_time = max(1, STACK_BLOCK // max(1, uploads[0][1].sent_bytes()))
        for first in range(0, len(uploads), at_a_time):
            ends = []
            for number, upload, losses in uploads[first : first + at_a_time]:
                client, job = trained.jobs[number]
                if client not in message.arrived:
                    with self._accepting(trained, client, job):
                        ends.append((client, job, losses, self._begin(message, client, upload)))
            self._wait()
            seconds = trained.seconds()
            for client, job, losses, end in ends:
                with self._accepting(trained, client, job):
                    end(_record(client, len(job.data.y), losses, seconds))

    def _wait(self) -> None:
        """Wait for a GPU, which trains until then."""
        if self.device.type == "cuda":
            with self.watch("training"):
                wait_for(self.device)

    @contextmanager
    def _accepting(self, trained: _TrainedTogether, client: int, job: ClientJob) -> Iterator[None]:
        """Note the failure of a client whose upload is accepted."""
        with (
            self._failures(trained.message, [client], trained.stack),
            self.watch("reduction"),
            blaming_samples(job.data),
        ):
            yield

    def _accept_at_once(self, trained: _TrainedTogether) -> bool:
        """Accept the uploads of a stack at once; return False if it must be one by one."""
        message, result = trained.message, trained.result
        jobs = [trained.jobs[number] for number in result.numbers]
        clients = [client for client, _ in jobs]
        rounds = {message.entry(client).round_number for client in clients}
        alone = message.seal or message.stored_groups or not message.arrived.isdisjoint(clients)
        if alone or not result.sent or len(rounds) > 1:
            return False
        sums = self._results["train"].sums.setdefault(rounds.pop(), PartialSum())
        try:
            with self.watch("reduction"):
                check = sums.check_stack(result.sent)
        except torch.OutOfMemoryError:  # one by one they take less
            return False
        self._wait()
        seconds = trained.seconds()
        with self.watch("reduction"):
            if (addend := check()) is None:
                return False
            records, shares = [], []
            for (client, job), losses in zip(jobs, result.losses, strict=True):
                values, entry = message.values.differing(client), message.entry(client)
                records.append(_record(client, len(job.data.y), losses, seconds) | values)
                weight = message.weight(client, int(self._sizes[client]))
                shares.append((weight, weight / entry.total_weight * entry.discount))
            with suppress(torch.OutOfMemoryError):  # then nothing is added
                sums.add_stack(records, addend, shares)
                return True
        return False

    @contextmanager
    def _failures(
        self, message: PassMessage, clients: list[int], stack: tuple[int, ...]
    ) -> Iterator[None]:
        """Note the failure of clients; other clients must not fail with them.

        Raises:
            MachineError: a stack does not fit into memory, and did not before: no fault of its
                clients, which are not to be dropped.
        """
        try:
            yield
        except MachineError:
            raise  # no fault of the clients
        except ChangedInputError as error:  # the clients after them would read it
            if error.who:
                raise
            raise ChangedInputError(str(error), called(self._settings.method)) from error
        except Exception as error:
            if is_device_error(error):
                raise  # whoever comes next in this process fails too
            check_has_kernel(error)
            if isinstance(error, torch.OutOfMemoryError) and len(stack) > 1 and message.retry:
                raise MachineError(self._too_large(len(stack))) from error
            line = str(error) if isinstance(error, RaysimError) else cause(error)
            trace = traceback.format_exc()
            self._results["train"].failures += [Failure(c, line, trace, stack) for c in clients]

    def _too_large(self, clients: int) -> str:
        """Return what to do about a stack that does not fit into memory."""
        engine, share = self._settings.engine, in_fitting_unit(memory_cap(self.device), "B")
        more = f"raise engine.gpus_per_actor={engine.gpus_per_actor:g}"
        if engine.gpus_per_actor == 1:
            more = "end other processes on the GPU"
        return (
            f"engine.vectorize={engine.vectorize}: a stack of {clients} clients does not fit into"
            f" the {share} of the GPU that this process may use: {more} for this run, or start a"
            f" new one with engine.vectorize={clients // 2 if clients > 3 else 0}"
        )

    def _begin(
        self, message: PassMessage, client: int, upload: Upload
    ) -> Callable[[Mapping[str, float]], None]:
        """Begin to accept an upload, without a wait for a GPU.

        Returns:
            A function that ends it, given the numbers of the client's row: it checks the upload,
            writes the client's states, then adds it, all of it or nothing.
        """
        entry = message.entry(client)
        sums = self._results["train"].sums
        partial_sum = sums.setdefault(entry.round_number, PartialSum(seal=message.seal))
        kept: Kept | None = None
        if message.stored_groups:
            upload, kept = self._keep(message, client, upload)
        check = partial_sum.check(upload)

        def end(record: Mapping[str, float]) -> None:
            checked = check()
            digests = (
                self._jobs.write(message, client, checked.upload.state, in_round=False),
                self._jobs.write(message, client, checked.upload.round_state, in_round=True),
            )
            partial_sum.add(
                {**record, **message.values.differing(client)},
                checked,
                weight=message.weight(client, int(self._sizes[client])),
                total_weight=entry.total_weight,
                discount=entry.discount,
                digests=digests,
                kept=kept,
            )

        return end

    def _keep(
        self, message: PassMessage, client: int, upload: Upload
    ) -> tuple[Upload, Kept | None]:
        """Write the kept part of an upload; return the other part, and where the kept one is found.

        Raises:
            RunError: a value is not finite; it names the tensor.
        """
        broadcast = self._jobs.open(message)[0]
        rest, tensors = split_stored(upload, message.stored_groups, broadcast)
        if not tensors:
            return upload, None
        layout = Layout.of(tensors).with_dtypes(upload.dtypes)
        values = flat_values(tensors, layout)
        if not is_finite(torch.from_numpy(values)):
            bad = (n for n, dtype, _ in layout.entries if not is_finite(tensors[n].to(dtype)))
            raise RunError(f"its update is not finite (tensor {next(bad)}): try a smaller local.lr")
        place = Place(message.round_number, message.pass_number, client)
        return rest, Kept(layout, self._updates.write(place, values))

    def measure(self, message: AggregationMessage, spans: Sequence[tuple[int, ...]]) -> None:
        """Measure spans of the updates of a pass; hold a sum for each.

        Args:
            message: The clients of the pass, and their updates.
            spans: Each the numbers of consecutive blocks.

        Raises:
            MachineError: an update is damaged or missing.
            SettingsError: the aggregation fails.
        """
        for span in spans:
            with self.watch("reduction"):
                numbers = (self._measured(message, block) for block in span)
                self._results["measure"].blocks[span] = reduce(np.add, numbers)

    def aggregate(self, message: AggregationMessage, blocks: Sequence[tuple[int, ...]]) -> None:
        """Aggregate blocks of the updates of a pass; hold the results.

        Args:
            message: The clients of the pass, and their updates.
            blocks: Each the number of a block.

        Raises:
            MachineError: an update is damaged or missing.
            SettingsError: the aggregation fails.
        """
        for block in blocks:
            with self.watch("reduction"):
                self._results["aggregate"].blocks[block] = self._aggregated(message, *block)

    def _aggregated(self, message: AggregationMessage, block: int) -> Floats:
        """Return the aggregate of a block [n]; below it the vectors that a forger keeps."""
        updates, forger = read_block(self._updates, message, block), message.forger
        if not forger:
            return combined(self._settings.aggregation, updates)
        aggregate = combined(self._settings.aggregation, forger.forged(updates, block))
        kept = forger.kept(updates, block)
        return np.concatenate([aggregate[None], kept]) if len(kept) else aggregate

    def _measured(self, message: AggregationMessage, block: int) -> Floats:
        """Return the measurements of a block, by the aggregation or by the forger."""
        updates, forger = read_block(self._updates, message, block), message.forger
        if forger and message.of_forger:
            return forger.measured(updates, block)
        updates = forger.forged(updates, block) if forger else updates
        return measured(self._settings.aggregation, updates)

    @cached_property
    def _stacked(self) -> StackedTrainer:
        # Not a method: the worker, and its memory of a GPU, would wait for the garbage collector.
        return StackedTrainer(self.sequential, note=partial(_note, self._results))

    def evaluate(self, message: EvaluationMessage, batches: Sequence[tuple[int, ...]]) -> None:
        """Evaluate batches of samples; hold their scores.

        Args:
            message: The deployed model, and the pass in which clients make their own models.
            batches: Pairs of a set's number and a batch's number; the test set's batches have
                EVALUATION_ROWS samples each.
        """
        network = self.sequential.network
        with self.watch("evaluation"), torch.no_grad():
            deployed = message.deployed.open(self.device)["model"]
            network.load(deployed)
            network.eval()
            for number, batch in batches:
                if number not in message.own_models | message.finetuned.keys():
                    network.load_buffers(deployed)  # a forward pass may have changed them
                    scores_by_set = {number: self._score(message, self._batch(number, batch))}
                else:
                    scores_by_set = self._score_own_models(message, number, batch, deployed)
                    network.load(deployed)
                for each, scores in scores_by_set.items():
                    self._results["evaluate"].scores[each, batch] = scores

    def _score_own_models(
        self, message: EvaluationMessage, number: int, batch: int, deployed: Tensors
    ) -> dict[int, Score]:
        """Score the clients of a set's batch, each with the model that it would deploy itself.

        A set of fine-tuned models is also scored before the fine-tuning, if there is a set for it.

        Args:
            message: The evaluation.
            number: The set's number.
            batch: Its batch.
            deployed: The deployed global model.
        """
        evaluated, before = self._evaluated[number - 1], message.finetuned.get(number)
        making = self.making
        scores: dict[int, list[Score]] = {}
        for position in range(*evaluated.cuts[batch : batch + 2].tolist()):
            client, model = int(evaluated.clients[position]), deployed
            samples = self._jobs.samples.of_client(evaluated, position)
            if before != 0:
                model = own_model(making, message.passes, client)
                found = self._score_model(message, model, samples)
                scores.setdefault(before or number, []).append(found)
            if message.finetuning and before is not None:
                tuned = tuned_model(making, message.finetuning, client, model)
                scores.setdefault(number, []).append(self._score_model(message, tuned, samples))
        return {each: _joined(found) for each, found in scores.items()}

    def _score_model(self, message: EvaluationMessage, model: Tensors, samples: Batch) -> Score:
        self.sequential.network.load(model)
        self.sequential.network.eval()
        return self._score(message, samples)

    def _score(self, message: EvaluationMessage, samples: Batch) -> Score:
        """Score the loaded model; autocast would keep its cast tensors for the next one's."""
        with self.sequential.autocast():
            return score(
                self.sequential.network,
                samples,
                message.divisors,
                with_outputs=message.outputs,
            )

    def _batch(self, number: int, batch: int) -> Batch:
        """Return the samples of a batch of a set."""
        if number == TEST_SET:
            return self._jobs.samples.test(batch * EVALUATION_ROWS, (batch + 1) * EVALUATION_ROWS)
        evaluated = self._evaluated[number - 1]
        if evaluated.change:
            samples = self._batch(TEST_SET, batch)
            return samples._replace(x=evaluated.change(samples.x.clone()))
        return self._jobs.samples.of_clients(evaluated, batch)


def _joined(scores: Sequence[Score]) -> Score:
    """Return the scores of several clients' samples as one."""
    losses, arrays = zip(*scores, strict=True)
    sums = tuple(map(sum, zip(*losses, strict=True)))
    return sums, tuple(map(np.concatenate, zip(*arrays, strict=True)))


def _note(results: Mapping[str, WorkerResult], text: str) -> None:
    """Have the driver show the user a line, once."""
    results["train"].notes.append(text)


def _record(client: int, samples: int, losses: LocalLosses, seconds: float) -> dict[str, float]:
    """Return the numbers of a client's row in `clients.parquet`."""
    return {
        "client": client,
        "samples": samples,
        "steps": losses.steps,
        "train_loss": losses.train_loss,
        "objective": losses.objective,
        "seconds": seconds,
    }
