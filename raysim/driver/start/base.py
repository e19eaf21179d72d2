"""Base of a run's network: what a run directory holds of it, and which base a run begins with.

A run directory holds the frozen tensors that no file of a pretrained model has, for example those
that were drawn from the seed, or trained by the run of `start_from`. Checkpoints seal the digest of
the whole base.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from raysim.api.components import call
from raysim.config import Settings
from raysim.errors import RunError
from raysim.federation.base_files import LEAST_SHARED, base_digest
from raysim.federation.federation import Federation, hold_base
from raysim.numbers.tensors import Tensors, base_of, nbytes, without
from raysim.samples.data import Model
from raysim.storage.checkpoints import BASE, NO_BASE, Checkpoints
from raysim.storage.run_directory import RunDirectory


def kept_base(settings: Settings, federation: Federation, network: nn.Module) -> Tensors:
    """Return the tensors of a network's base that a run directory holds: of a task's, all.

    Of a pretrained network's, drawn tensors and tensors of `start_from`, which its files lack.
    """
    base = base_of(network)
    if federation.preparation is None:
        return base
    read = call(settings.model, Model.read, network)
    return {name: t for name, t in base.items() if t.started or name not in read}


def read_base(run_dir: RunDirectory) -> Tensors:
    """Return the tensors of a base that a run directory holds; none without the file.

    Raises:
        RunError: the file is damaged.
    """
    if not run_dir.base.exists():
        return {}
    try:
        return load_file(run_dir.base)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{run_dir.base}: cannot be read: {error}") from error


def restore_base(network: nn.Module, run_dir: RunDirectory) -> None:
    """Copy the tensors of the base that a run directory holds into a network that was just built.

    Raises:
        RunError: the file is damaged, or is another network's.
    """
    kept, base = read_base(run_dir), base_of(network)
    with torch.no_grad():
        for name, tensor in kept.items():
            if name not in base or base[name].shape != tensor.shape:
                raise RunError(
                    f"{run_dir.base}: holds {name} {[*tensor.shape]}, which is no frozen tensor of"
                    " the model here; it must be frozen as in the run"
                )
            base[name].copy_(tensor)


def check_base(network: nn.Module, run_dir: RunDirectory) -> None:
    """Check that a network has the base of a run.

    Raises:
        RunError: it has another one.
    """
    sealed, here = sealed_base(run_dir.path), base_digest(base_of(network))
    if sealed not in (None, here):
        now, was = (digest[:12] or NO_BASE for digest in (here, sealed))
        raise RunError(
            f"{run_dir.path}: the model's frozen tensors are not those of the run: their digest is"
            f" {now}, not {was}; its model must be frozen and read as in the run"
        )


def with_base(
    settings: Settings, federation: Federation, network: nn.Module, run_dir: RunDirectory
) -> Federation:
    """Return a run's federation with the base of its network.

    Tensors that were drawn, a new seed's, are sent if they are small, so that runs of one
    pretrained network share its file.

    Args:
        settings: The run's settings.
        federation: The federation.
        network: The network, as it was built; it takes the frozen tensors of a run that goes on,
            and shares its base with the other processes of this node.
        run_dir: The run directory.

    Raises:
        RunError: the run directory's file of frozen tensors is damaged, or another network's.
        DataError: the base cannot be written.
    """
    if run_dir.begun:  # else an attempt without a checkpoint left the file
        restore_base(network, run_dir)
    base, sent = base_of(network), kept_base(settings, federation, network)
    if nbytes({BASE: sent}) >= LEAST_SHARED:
        sent = {}
    rest = without(base, sent)
    if nbytes({BASE: rest}) < LEAST_SHARED:
        sent, rest = base, {}
    digest = base_digest(base)
    federation = replace(
        federation,
        base=digest,
        base_file=base_digest(rest) if sent else digest,
        base_values={name: tensor.detach().clone() for name, tensor in sent.items()},
    )
    hold_base(federation, network)
    return federation


def sealed_base(run: Path) -> str | None:
    """Return the digest of a run's base, "" without one; None where no run has sealed it."""
    identity = Checkpoints(run / "checkpoints").identity() if run.is_dir() else {}
    digest = str(identity.get(BASE, NO_BASE)) if identity else None
    return "" if digest == NO_BASE else digest
