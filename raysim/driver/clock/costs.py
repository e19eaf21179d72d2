"""Costs of a pass: FLOPs and bytes of each of its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from raysim.api.channel import beside_of, declared, sent_bytes
from raysim.api.rules import LocalSteps, Pass, count_of
from raysim.config import Settings
from raysim.driver.rounds.passes import RoundRunner
from raysim.driver.uploads.dispatch import Dispatch
from raysim.driver.uploads.downlink import expected_bytes
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.encoding import Encoded
from raysim.numbers.tensors import CPU, Groups, Tensors, buffer_names
from raysim.storage.client_states import ClientStates
from raysim.training.flops import FlopCounter, KindFlops
from raysim.training.job import ClientJob


@dataclass(frozen=True)
class PassCosts:
    """Costs of a pass's clients.

    Attributes:
        clients: The clients [n].
        epochs: Local epochs of each client, or local steps in their place [n].
        epoch: FLOPs of one local epoch, or step, of each client [n].
        finish: FLOPs of each client outside its epochs [n].
        bytes_up: Bytes that each client sends [n].
        bytes_down: Bytes that each client receives [n].
        trips: Trips between server and client.
    """

    clients: Integers
    epochs: Integers
    epoch: Floats
    finish: Floats
    bytes_up: Integers
    bytes_down: Integers
    trips: int = 1

    def flops(self, epochs: Integers) -> Floats:
        """Return the FLOPs of clients with `epochs` local epochs [n]."""
        return self.finish + epochs * self.epoch


class WorkCosts:
    """Costs of the passes of one run.

    Attributes:
        sizes: Samples that each client trains on [K].
        counter: Counts FLOPs; checkpoints hold its counts.
    """

    def __init__(
        self, settings: Settings, federation: Federation, network: nn.Module, states: ClientStates
    ) -> None:
        self._settings, self._states = settings, states
        self.sizes = federation.training_sizes
        self._samples = OpenedSamples(federation, CPU)
        self._augment = federation.inputs.augment
        self._encodes = any(stage.declares_bytes() for stage in settings.stages.values())
        self.counter = FlopCounter(network, settings.local, layouts=self._encodes)
        self._network = network

    def of(self, dispatch: Dispatch, runner: RoundRunner) -> PassCosts:
        """Return the costs of a pass; a pass of a new kind is first counted on one client.

        Args:
            dispatch: The pass.
            runner: The round's runner; it knows the clients' state versions.
        """
        return self._of(dispatch, partial(self._state, runner), len(dispatch.asked))

    def of_training(self, model: Tensors, clients: Any) -> PassCosts:
        """Return the costs of plain local training of a model by clients [n].

        The pass has as many clients as a round, and no client has missed increments of a
        down-link.
        """
        local, stages = self._settings.local, self._settings.down_stages
        dispatch = Dispatch(clients, {"model": model}, epochs=local.work, lr=local.lr)
        if stages:
            received = expected_bytes(stages, model, self._network)
            dispatch = replace(dispatch, bytes_down=lambda client: received)
        return self._of(dispatch, lambda client: {}, self._settings.cohort_size)

    def _of(self, dispatch: Dispatch, state: Callable[[int], Groups], asked: int) -> PassCosts:
        """Return the costs of a pass, given its clients' states and the number that begin it."""
        clients = np.fromiter(dispatch.clients, np.int64)
        sizes = self.sizes[clients]
        epochs = _epochs(dispatch, clients)
        counted = int(clients[np.argmax(epochs)])  # a client that trains, if there is one
        sent = dispatch.of_clients
        kind = self.counter.kind(sent, self._job(sent, counted, state(counted)))
        bytes_up = self._bytes_up(dispatch, kind, clients)
        beside = beside_of(self._settings.stages if bytes_up.any() else {}, asked)
        return PassCosts(
            clients=clients,
            epochs=epochs,
            epoch=self._each(dispatch, kind, clients) * self._settings.local.cost,
            finish=kind.finish.at(sizes.astype(np.float64)),
            bytes_up=bytes_up + beside.up,
            bytes_down=dispatch.received_bytes(clients.tolist()) + beside.down,
            trips=beside.trips,
        )

    def _each(self, pass_: Pass, kind: KindFlops, clients: Integers) -> Floats:
        """Return the FLOPs of one local epoch, or step, of each client [n]."""
        batching, joins, sizes = self._settings.local.batching, self.counter.joins, self.sizes
        if not isinstance(pass_.epochs, Mapping):
            return kind.each(pass_.epochs, sizes[clients], batching, joins)
        units = [pass_.epochs[client] for client in clients.tolist()]
        units = [unit if isinstance(unit, LocalSteps) else 1 for unit in units]  # epochs are alike
        costs = np.empty(len(clients))
        for unit in {*units}:
            rows = [row for row, client_unit in enumerate(units) if client_unit == unit]
            costs[rows] = kind.each(unit, sizes[clients[rows]], batching, joins)
        return costs

    def _bytes_up(self, pass_: Pass, kind: KindFlops, clients: Integers) -> Integers:
        """Return the bytes that clients send [n], after the stages of the channel."""
        stages, totals = self._settings.stages, np.full(len(clients), kind.bytes_up)
        if pass_.bytes_up:
            totals += np.fromiter(map(pass_.bytes_up, clients.tolist()), np.int64)
        if not self._encodes:
            return totals
        encoded = Encoded.of(kind.differences, buffer_names(self._network))
        behind = (declared(stages, encoded, client) for client in clients.tolist())
        return np.fromiter(map(sent_bytes, behind, totals.tolist()), np.int64)

    def _state(self, runner: RoundRunner, client: int) -> Groups:
        """Return the state with which a client begins a pass."""
        versions = runner.versions([client]).get(client, ())
        initial = self._settings.method.client_init(runner.state)
        keepers = self._settings.keepers
        return self._states.of_client(client, versions, initial, CPU, keepers)[0]

    def _job(self, pass_: Pass, client: int, state: Groups) -> ClientJob:
        """Return the job of a client."""
        return ClientJob.of(
            pass_,
            client,
            self._samples.client(client),
            keys=(0, 0, 0, client),  # costs do not depend on draws
            broadcast=pass_.broadcast,
            state=state,
            personal=pass_.personal.get(client, {}),
            augment=self._augment,
        )


def _epochs(pass_: Pass, clients: Integers) -> Integers:
    """Return the local epochs, or steps, of each client of a pass [n]."""
    if not isinstance(pass_.epochs, Mapping):
        return np.full(len(clients), count_of(pass_.epochs))
    return np.array([count_of(pass_.epochs[client]) for client in clients.tolist()])
