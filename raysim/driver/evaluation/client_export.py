"""Export of the model that one client deploys, from a run's last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from raysim.api.components import called, suggest
from raysim.config import Settings
from raysim.driver.evaluation.deployments import Deployment
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.start.identity import INITIAL_MODEL, differing_parts
from raysim.driver.start.start import check_run
from raysim.errors import RunError, SettingsError
from raysim.execution.deployed_models import own_model, tuned_model
from raysim.execution.messages import PassMessage
from raysim.execution.process import own_modes, threads_of
from raysim.execution.worker import Worker
from raysim.federation.federation import Federation
from raysim.numbers.tensors import Tensors
from raysim.storage.checkpoints import Checkpoint, Checkpoints
from raysim.storage.run_directory import RunDirectory


def client_model(
    run_dir: RunDirectory,
    settings: Settings,
    federation: Federation,
    client: int | str,
    note: Callable[[str], None],
) -> Tensors:
    """Return the tensors of the model that a client deploys, without writing files.

    The evaluation of the checkpoint's round scores the same model as the client's own.

    Args:
        run_dir: The run directory.
        settings: The run's settings.
        federation: The run's samples, client indices and network.
        client: The client, by number or name.
        note: Called with a line about the model.

    Raises:
        SettingsError: there is no such client.
        RunError: there is no checkpoint, or it was made with other data or code.
    """
    client = client_number(client, settings.clients, federation.names)
    checked = check_run(settings, federation, run_dir, note)
    checkpoint = _committed(run_dir, settings.clients)
    committed = checkpoint.run
    identity = {name: value for name, value in checked.identity.items() if name != INITIAL_MODEL}
    if parts := differing_parts(checkpoint.identity, identity):
        raise RunError(f"{run_dir.path}: is of other data or code: {', '.join(parts)}")
    deployment = Deployment.of(settings, checked.network, checked.sizes, committed, [client])
    who = checked.federation.named(client)
    times = int(committed.history.times[client])
    took_part = f"took part in {times} of {committed.number} rounds"
    model, tunes = settings.method.deployed(committed.state), settings.method.deploys_finetuned
    if not (deployment.passes or (tunes and deployment.finetuning)):
        note(
            f"{called(settings.method)}: clients deploy the global model; client {who} {took_part}"
        )
        return model
    note(f"client {who} {took_part}; its own model, as of round {committed.number}")
    values = RoundValues.of(settings, checked.sampling(committed), committed)
    passes = [PassMessage.of(**message) for message in deployment.messages(values)]
    tuning = deployment.tuning_message(values) if tunes else None
    with own_modes(), threads_of(settings.engine), torch.no_grad():
        worker = Worker(checked.spec)
        model = own_model(worker.making, passes, client) if passes else model
        model = tuned_model(worker.making, tuning, client, model) if tuning else model
    return {name: tensor.cpu() for name, tensor in model.items()}


def client_number(client: int | str, clients: int, names: Sequence[str]) -> int:
    """Return a client's number.

    Raises:
        SettingsError: there is no such client.
    """
    if isinstance(client, str) and not client.isdecimal():
        if client in names:
            return names.index(client)
        known = f", or a name; {suggest(client, [*names])}" if names else ""
    else:
        if 0 <= int(client) < clients:
            return int(client)
        known = ", or a name" if names else ""
    raise SettingsError(f"--client={client}: must be from 0 to {clients - 1}{known}")


def _committed(run_dir: RunDirectory, clients: int) -> Checkpoint:
    """Return the last checkpoint; a damaged one is not set aside, unlike in a resumed run.

    Raises:
        RunError: there is no checkpoint, or it is damaged.
    """

    def stop(line: str) -> NoReturn:
        raise RunError(f"{line.rpartition(';')[0]}; resume the run, which goes back to one before")

    checkpoints = Checkpoints(run_dir.checkpoints)
    latest = checkpoints.latest(clients, stop, lambda checkpoint: None)
    if latest is None:
        raise RunError(f"{run_dir.path}: has no checkpoint yet")
    return latest
