"""Build, in a worker, the models that clients deploy, for their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from raysim.api.rules import CHANGE
from raysim.errors import MachineError, RaysimError, RunError
from raysim.execution.messages import PassMessage
from raysim.execution.process import is_device_error
from raysim.numbers.tensors import Groups, Tensors, not_finite
from raysim.training.job import ClientJob
from raysim.training.sequential import SequentialTrainer


class Making(NamedTuple):
    """Parts of a worker that make models.

    Attributes:
        trainer: Trains a client.
        job_of: Returns the job of a client in a pass.
        named: Returns a client's number as it stands in messages.
    """

    trainer: SequentialTrainer
    job_of: Callable[[PassMessage, int], ClientJob]
    named: Callable[[int], str]


def own_model(making: Making, passes: Sequence[PassMessage], client: int) -> Tensors:
    """Return a client's tensors after the passes of its deployment, which it runs by itself.

    They are the group `model` that it would send in the last pass, unless that is a change; the
    other tensors are its network's.

    Raises:
        RunError: a pass fails, or a tensor is not finite.
    """
    kept: dict[str, Tensors] = {}
    trainer = making.trainer
    with _deploying(making.named(client)):
        for message in passes:
            job = making.job_of(message, client)
            upload, _ = trainer.run(replace(job, state={**job.state, **kept}))
            kept |= {**_copied(upload.state), **_copied(upload.round_state)}
        is_change = (passes[-1].pass_.bases or {}).get("model") == CHANGE
        sent = {} if is_change else upload.sums.get("model", {})
        model = _copied({"model": {**trainer.network.tensors(), **sent}})["model"]
    return _finite(making.named(client), model)


def tuned_model(making: Making, tuning: PassMessage, client: int, model: Tensors) -> Tensors:
    """Return a client's model after its fine-tuning, without keeping anything.

    Raises:
        RunError: the fine-tuning fails, or a tensor is not finite.
    """
    trainer = making.trainer
    with _deploying(making.named(client)):
        job = making.job_of(tuning, client)
        trainer.run(replace(job, broadcast={"model": model}, state={}))
    return _finite(making.named(client), trainer.network.tensors())


def _copied(groups: Groups) -> dict[str, Tensors]:
    """Return copies of groups, which may be the network's own tensors."""
    return {
        group: {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }


@contextmanager
def _deploying(client: str) -> Iterator[None]:
    """Turn an error of a client's deployment into one that names the client."""
    try:
        with torch.enable_grad():
            yield
    except Exception as error:
        if isinstance(error, MachineError) or is_device_error(error):
            raise
        why = str(error) if isinstance(error, RaysimError) else repr(error)
        raise RunError(f"client {client}: its deployment failed: {why}") from error


def _finite(client: str, model: Tensors) -> Tensors:
    if broken := not_finite(model):
        raise RunError(
            f"client {client}: its deployed model is not finite (tensor {broken[0]}): try a"
            " smaller learning rate in its deployment, or against bad clients a robust aggregation"
        )
    return model
