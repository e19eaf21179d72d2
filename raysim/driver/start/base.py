"""Base of a run's network: what a run directory holds of it, and which base a run begins with.

A run directory holds the frozen tensors that no file of a pretrained model has, for example those
that were drawn from the seed. Checkpoints seal the digest of the whole base.
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
from raysim.errors import RunError, SettingsError
from raysim.federation.base_files import LEAST_SHARED, NO_BASE, base_digest
from raysim.federation.federation import Federation, hold_base
from raysim.numbers.tensors import Tensors, base_of, nbytes, without
from raysim.samples.data import Model
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.run_directory import RunDirectory

BASE = "frozen tensors"
"""Name of the base's digest in an identity."""


def kept_base(settings: Settings, network: nn.Module, *, own_task: bool) -> Tensors:
    """Return the tensors of a network's base that a run directory holds."""
    base = base_of(network)
    return base if own_task else without(base, call(settings.model, Model.read, network))


def restore_base(network: nn.Module, run_dir: RunDirectory) -> None:
    """Copy the tensors of the base that a run directory holds into a network that was just built.

    Raises:
        RunError: the file is damaged, or is another network's.
    """
    if not run_dir.base.exists():
        return
    try:
        kept, base = load_file(run_dir.base), base_of(network)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{run_dir.base}: cannot be read: {error}") from error
    with torch.no_grad():
        for name, tensor in kept.items():
            if name not in base or base[name].shape != tensor.shape:
                raise RunError(
                    f"{run_dir.base}: holds {name} {[*tensor.shape]}, which is no frozen tensor of"
                    " the model"
                )
            base[name].copy_(tensor)


def check_base(network: nn.Module, run_dir: RunDirectory) -> None:
    """Check that a network has the base of a run.

    Raises:
        RunError: it has another one.
    """
    sealed, here = sealed_base(run_dir.path), base_digest(base_of(network))
    if sealed not in (None, here):
        raise RunError(
            f"{run_dir.path}: the model's frozen tensors are not those of the run: their digest is"
            f" {here[:12]}, not {sealed[:12]}; restore the files of the pretrained model"
        )


def with_base(
    settings: Settings, federation: Federation, network: nn.Module, run_dir: RunDirectory
) -> Federation:
    """Return a run's federation with the digest of the base of its network.

    Args:
        settings: The run's settings.
        federation: The federation.
        network: The network, as it was built; it takes the frozen tensors of the run directory, and
            shares its base with the other processes of this node.
        run_dir: The run directory.

    Raises:
        RunError: the run directory's file of frozen tensors is damaged, or another network's.
        DataError: the base cannot be written.
        SettingsError: the run that `start_from` names has another base.
    """
    restore_base(network, run_dir)
    base = base_of(network)
    digest = base_digest(base)
    if federation.start is not None and not base.keys() <= federation.start.keys():
        _check_start(settings, digest)
    small = nbytes({BASE: base}) < LEAST_SHARED
    values = {name: tensor.detach().clone() for name, tensor in base.items()} if small else None
    federation = replace(federation, base=digest, base_values=values)
    hold_base(federation, network)
    return federation


def _check_start(settings: Settings, digest: str) -> None:
    """Check that a base is that of the run that `start_from` names.

    Raises:
        SettingsError: it is another one.
    """
    if settings.start_from is None:
        return
    path = Path(settings.start_from)
    sealed = sealed_base(path if path.is_dir() else path.parent)
    if sealed not in (None, digest):
        raise SettingsError(
            f"start_from={settings.start_from}: its run has other frozen tensors than this one:"
            f" their digest is {sealed[:12]}, here {digest[:12]}; choose its model, and its seed"
            " where frozen tensors are drawn"
        )


def sealed_base(run: Path) -> str | None:
    """Return the digest of a run's base, NO_BASE without one; None where no run has sealed it."""
    identity = Checkpoints(run / "checkpoints").identity() if run.is_dir() else {}
    return str(identity.get(BASE, NO_BASE)) if identity else None
