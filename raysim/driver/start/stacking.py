"""Decision to train clients in stacks, made once, before the first round.

It depends on settings, network, method and the actors' memory, and the checkpoint seals it. If it
were made during the run, scheduling would decide the last bits of a result. A trial round of two
clients with a few samples each shows whether a method's rules can be stacked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from raysim.api.rules import Pass, Reduced, Upload
from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.method_rounds import passes_of, round_inputs, run_round
from raysim.driver.start.context import CheckedRun
from raysim.errors import SettingsError
from raysim.execution.partial_sum import PartialSum
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.tensors import CPU, Groups
from raysim.storage.run_state import RunState
from raysim.training.job import ClientJob
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.stack_size import stack_size
from raysim.training.stacked.trainer import StackedTrainer

CLIENTS = 2
"""Clients of the trial round."""
FEW_SAMPLES = 8
"""Samples of each of these clients with `local.batch_size=full`."""


def decide_stack_size(
    settings: Settings,
    federation: Federation,
    network: nn.Module,
    checkpoint: RunState,
    *,
    values: RoundValues,
    describe: Callable[[], dict[str, Any]],
    note: Callable[[str], None],
) -> int:
    """Return the stack size; 1 trains clients one at a time.

    Args:
        settings: The run's settings.
        federation: The run's samples and client indices.
        network: The network as it was built.
        checkpoint: The checkpoint from which the run starts.
        values: Values of local training in the next round.
        describe: Returns the description of the workers.
        note: Called with the reason if clients are not stacked although `engine.vectorize` asks
            for it.
    """
    state = settings.method.client_bytes(checkpoint.state)
    size, reason = stack_size(settings, federation, network, state, describe)
    if size > 1:
        reason = StackCheck(settings, federation, network, values).unsupported_reason(checkpoint)
    if reason is None:
        return size
    requested = settings.engine.vectorize
    note(f"engine.vectorize={requested}: clients are trained one at a time: {reason}")
    return 1


PARTS = 2
"""Samples of a batch that is tried whole and in parts, fewer than a part of large batches has."""


class TrialRound:
    """Trial round on few clients and samples in this process; its result is dropped."""

    def __init__(
        self, settings: Settings, federation: Federation, network: nn.Module, values: RoundValues
    ) -> None:
        self._settings, self._network, self._values = settings, network, values
        placed = Network(copy.deepcopy(network)).placed(CPU)
        self._sequential = SequentialTrainer(placed, settings.local, settings.engine.precision)
        self._samples, self._sizes = OpenedSamples(federation, CPU), federation.training_sizes
        self._initial_state: Groups = {}
        self._states: dict[int, Groups] = {}
        self._reason: str | None = None

    def unsupported_reason(self, checkpoint: RunState) -> str | None:
        """Return why a round from this checkpoint cannot be trained so; None if it can."""
        settings = self._settings
        self._initial_state = settings.method.client_init(checkpoint.state)
        now = round_inputs(
            settings,
            self._network,
            checkpoint,
            sizes=self._sizes,
            note=Listener().note,
            cohort=tuple(range(settings.cohort_size)),
        )
        with (
            suppress(Exception),
            closing(passes_of(settings, now, checkpoint.state)) as passes,
        ):
            run_round(passes, self.run)  # the run itself will raise any other error
        return self._reason

    def run(self, pass_: Pass) -> Reduced:
        """Run a pass over its first clients."""
        clients = [int(client) for client in islice(pass_.clients, CLIENTS)]
        jobs = [self._job(pass_, client) for client in clients]
        total = PartialSum()
        for client, upload in zip(clients, self._train(jobs), strict=True):
            total.add({"client": client}, total.check(upload)(), 1, len(clients))
            self._states[client] = {
                **self._states.get(client, self._initial_state),
                **upload.state,
                **upload.round_state,
            }
        return total.reduced(len(clients), total.columns())

    def _train(self, jobs: list[ClientJob]) -> list[Upload]:
        if not any(job.epochs for job in jobs):
            return [copy.deepcopy(self._sequential.run(job)[0]) for job in jobs]
        try:
            return self.trained(jobs)
        except Exception as error:  # a rule or a module may raise anything
            self._reason = self._reason or " ".join(str(error).split()) or repr(error)
            raise

    def trained(self, jobs: list[ClientJob]) -> list[Upload]:
        """Return the uploads of clients that take steps; what it raises is the reason."""
        raise NotImplementedError

    def _job(self, pass_: Pass, client: int) -> ClientJob:
        size = self._settings.local.batch_size
        few = slice(0, FEW_SAMPLES if size == "full" else size + 1)
        data = self._samples.client(client)
        pass_ = self._values.on(pass_)
        return ClientJob.of(
            replace(pass_, epochs=1 if pass_.epochs_of(client) else 0),
            client,
            data._replace(
                x=data.x[few],
                y=data.y[few],
                lengths=None if data.lengths is None else data.lengths[few],
            ),
            keys=(0, 0, 0, client),
            broadcast=pass_.broadcast,
            state=self._states.get(client, self._initial_state),
            personal=pass_.personal.get(client, {}),
            augment=_unchanged,
            values=self._values.of_clients([client]).of(client),
        )


class StackCheck(TrialRound):
    """Trial round of a stack."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._stacked = StackedTrainer(self._sequential, note=Listener().note)

    def trained(self, jobs: list[ClientJob]) -> list[Upload]:
        """Return the uploads of a stack."""
        self._stacked.check_padding(jobs)
        trained = [each for result in self._stacked.run(jobs) for each in result.each()]
        return [upload for _, upload, _ in sorted(trained, key=itemgetter(0))]


class PartsCheck(TrialRound):
    """Trial round of batches in parts (`local.accumulate`)."""

    def trained(self, jobs: list[ClientJob]) -> list[Upload]:
        """Return the uploads of clients whose gradient of a batch is the mean over its parts.

        Raises:
            SettingsError: it is not.
        """
        before = self._sequential.rng_state()
        try:
            return [self._checked(job) for job in jobs]
        finally:
            self._sequential.set_rng_state(before)

    def _checked(self, job: ClientJob) -> Upload:
        training = self._sequential.training(job.with_samples_read())
        if self._sequential.network.normalises_batches:
            raise SettingsError("the model's BatchNorm takes its statistics of whole batches")
        upload, _ = training.run()
        copied = copy.deepcopy(upload)  # the next client trains the tensors of the network
        # After the steps, as many a penalty is 0 before them; without draws.
        self._sequential.network.eval()
        if not training.agrees_in_parts(job.data.part(0, PARTS)):
            raise SettingsError("the model or a rule of the method looks at all samples of a batch")
        return copied


def check_parts(checked: CheckedRun) -> None:
    """Check that a batch may be trained in parts, if `local.accumulate` asks for it.

    Raises:
        SettingsError: its gradient is not the mean over its parts.
    """
    settings, initial = checked.settings, checked.initial
    if settings.local.accumulate == 1:
        return
    values = RoundValues.of(settings, checked.sampling(initial), initial)
    trial = PartsCheck(settings, checked.federation, checked.network, values)
    if reason := trial.unsupported_reason(initial):
        raise SettingsError(f"local.accumulate={settings.local.accumulate}: {reason}; leave it out")


def _unchanged(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x
