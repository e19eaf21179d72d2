"""Jobs of clients: a pass, and a client's samples and state, opened on a worker's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from raysim.api.optimizer import OPTIMIZER
from raysim.api.rules import Batch
from raysim.config import Settings
from raysim.execution.messages import PassMessage
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.numbers.tensors import CPU, Groups
from raysim.storage.client_states import (
    UNSEALED,
    ClientStates,
    StateVersion,
    of_optimizer,
    owner_of,
)
from raysim.training.job import ClientJob


class ClientJobs:
    """Jobs of one worker's clients, and the files of their states.

    Attributes:
        samples: The samples of clients and test set.
    """

    def __init__(
        self, settings: Settings, federation: Federation, states: Path, samples: OpenedSamples
    ) -> None:
        self.samples = samples
        self._settings = settings
        self._device = samples.device
        self._augment = federation.inputs.augment
        self._states = ClientStates(states)
        self._opened: tuple[tuple[int, int] | None, Groups, Groups] = (None, {}, {})

    @cached_property
    def _pooled(self) -> Batch:
        """The training samples of all clients that take part."""
        return self.samples.pooled(self._settings.participants.listed)

    @cached_property
    def _root(self) -> Batch:
        """The server's root samples."""
        return self.samples.root()

    def open(self, message: PassMessage) -> tuple[Groups, Groups]:
        """Bring the broadcast and the initial client state to the device, once in a row."""
        key = (message.round_number, message.pass_number)
        if self._opened[0] != key:
            packed = (message.broadcast, message.initial_state)
            broadcast, initial = (tensors.open(self._device) for tensors in packed)
            self._opened = (key, broadcast, initial)
        return self._opened[1:]

    def gathered(self, message: PassMessage, clients: Sequence[int]) -> dict[int, Batch]:
        """Return the samples of clients that can be opened together; of others, none."""
        apart = message.root or message.pass_.pooled or message.samples or self.samples.per_client
        if apart or len(clients) == 1:
            return {}
        return dict(zip(clients, self.samples.clients_at_once(clients), strict=True))

    def job(
        self, message: PassMessage, client: int, gathered: Mapping[int, Batch] = {}
    ) -> ClientJob:
        """Return the job of a client.

        Args:
            message: The pass.
            client: The client.
            gathered: Samples of clients that are opened already.

        Raises:
            DamagedStateError: its state is damaged or missing.
        """
        broadcast, initial = self.open(message)
        personal = message.personal.get(client)
        versions = message.versions.get(client, ())
        state, others = self._states.of_client(
            client, versions, initial, self._device, self._settings.keepers
        )
        draws = message.pass_number if message.pass_.draws is None else message.pass_.draws
        return ClientJob.of(
            message.pass_,
            client,
            gathered[client] if client in gathered else self.of_client(message, client),
            keys=(self._settings.seed, message.round_number, draws, client),
            broadcast=broadcast,
            state=state,
            stages=others,
            optimizer=of_optimizer(others, message.pass_number),
            personal=personal.open(self._device) if personal else {},
            augment=self._augment,
            root=message.root,
            values=message.values.of(client),
            device=self._device,
        )

    def of_client(self, message: PassMessage, client: int) -> Batch:
        """Return the samples that a client trains on in a pass, changed by an attack, too."""
        if message.root:
            return self._root
        if message.pass_.pooled:
            return self._pooled
        samples = self.samples.client(client)
        for change in message.samples:
            samples = change(client, samples, self.samples.classes)
        return samples

    def write(self, message: PassMessage, client: int, groups: Groups, *, in_round: bool) -> int:
        """Write a client's state or round state, where it has one; return the file's digest."""
        if not groups:
            return UNSEALED
        if not in_round and self._settings.keepers:
            groups = self._with_unwritten(message, client, groups)
        version = StateVersion(message.round_number, message.pass_number, in_round)
        return self._states.write(client, version, groups, message.needed_from)

    def _with_unwritten(self, message: PassMessage, client: int, groups: Groups) -> Groups:
        """Return groups, and the client's present ones of owners that write none in this pass."""
        owners = self._settings.keepers
        written = {owner_of(group, owners) for group in groups} - {OPTIMIZER}  # kept by pass
        before = [v for v in message.versions.get(client, ()) if not v.in_round]
        names = self._states.groups(client, before[0]) if before else ()
        left = [name for name in names if owner_of(name, owners) not in written]
        if not left:
            return groups
        kept = self._states.read(client, before[0], CPU)
        return {name: kept[name] for name in left} | {**groups}
