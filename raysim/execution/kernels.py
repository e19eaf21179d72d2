"""Deterministic kernels: a network that lacks one on a GPU is refused before the first round."""

from __future__ import annotations

import copy

import torch

from raysim.api.rules import Batch
from raysim.errors import SettingsError
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer

NO_KERNEL = " does not have a deterministic implementation"


def check_kernels(trainer: SequentialTrainer, samples: Batch) -> None:
    """Check that a network's layers and loss have deterministic kernels, on a copy of the network.

    Other errors are left to the clients: these samples may not be like theirs.

    Args:
        trainer: Has the network, on a GPU.
        samples: A few samples there.

    Raises:
        SettingsError: an operation has none; the message names it and the setting.
    """
    before = trainer.rng_state()
    try:
        network = Network(copy.deepcopy(trainer.network.module))
        network.train_only(None)  # copies share the base, whose statistics stay as they are
        with trainer.autocast():
            outputs = network(samples.x)
        loss = samples.loss(outputs.in_float32().logits)
        trained = [p for p in network.parameters() if p.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)
    except Exception as error:
        check_has_kernel(error)
    finally:
        trainer.set_rng_state(before)


def check_has_kernel(error: Exception) -> None:
    """Check that an error is not torch's of an operation without a deterministic kernel.

    Raises:
        SettingsError: it is; the message names the operation and the setting.
    """
    name, words, _ = str(error).partition(NO_KERNEL)
    if words:
        raise SettingsError(
            f"engine.deterministic=true: {name.split()[-1]}, which the network or the method calls,"
            " has no deterministic kernel on a GPU; set engine.deterministic=false, or use another"
            " layer"
        ) from error
