"""Identity of a run: what decides the bits of its result besides settings and seeds.

Every checkpoint seals it, and a run goes on only where nothing of it differs, or by force. Digests
are taken once, at the start. That of prepared samples stands beside their file, which the start has
just compared with it. Client indices that are drawn when they are asked for are represented by
those of SAMPLED_CLIENTS clients: other code or another seed draws others for nearly every client.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raysim.config import Settings
from raysim.core.arrow import checksum, recorded_checksum
from raysim.core.client_indices import ClientIndices, ListedIndices
from raysim.core.data import Split
from raysim.core.errors import RunError
from raysim.core.scoring import Scoring
from raysim.core.tensors import Tensors
from raysim.core.tensors.digests import arrays_digest, bytes_of, tensors_digest
from raysim.driver.context import RunContext
from raysim.federation.federation import Federation, LocalTest
from raysim.federation.opened import OpenedSamples
from raysim.storage.checkpoints import (
    FORMULA,
    LOCAL_TEST_SAMPLES,
    REFERENCE,
    TEST_SAMPLES,
    TRAINING_SAMPLES,
    Checkpoint,
)
from raysim.storage.environment import by_environment, environment, unknown_environment

SAMPLED_CLIENTS = 1000
VERSIONED = ("raysim", "torch", "torchvision")
"""Packages whose code has a version or revision in an identity."""
INITIAL_MODEL = "initial model"
CLOCK, SELECTION = "revision of the clock", "revision of the selection"
STAGES = "revisions of the channel's stages"
AGGREGATION = "revision of the aggregation"
ENVIRONMENTS = "environments"
STACK = "number of stacked trials"
SHOWN_DIGITS = 12
NO_SAMPLES = "none"
UNSEALED = {
    **dict.fromkeys((FORMULA, CLOCK, SELECTION, AGGREGATION), 1),
    STAGES: {},
    LOCAL_TEST_SAMPLES: NO_SAMPLES,
}
"""Parts that an identity of an earlier version is without."""


def identity_of(
    settings: Settings, federation: Federation, network: nn.Module, reference: Tensors | None
) -> dict[str, Any]:
    """Return revisions of components, and digests of the rest that a run is made of.

    Args:
        settings: The run's settings.
        federation: Its samples and client indices.
        network: Its network, as it begins.
        reference: The model with which analyses compare, wherever it lies.
    """
    opened = OpenedSamples(federation, torch.device("cpu"))
    first, test = opened.client(0), opened.test(0, 2)
    layout = [(name, tuple(t.shape), t.dtype) for name, t in network.state_dict().items()]
    return {
        FORMULA: settings.method.revision,
        CLOCK: settings.clock.revision,
        SELECTION: settings.selection.revision,
        AGGREGATION: settings.aggregation.revision,
        STAGES: {name: stage.revision for name, stage in settings.channel.items()},
        "clients": len(federation.training_sizes),
        TRAINING_SAMPLES: _of_split(federation.train),
        TEST_SAMPLES: _of_split(federation.test),
        LOCAL_TEST_SAMPLES: _of_local_test(federation.local_test),
        "client indices": _of_indices(federation.client_indices),
        "decoded samples": arrays_digest(map(bytes_of, (first.x, first.y, test.x, test.y))),
        "network": hashlib.sha256(repr(layout).encode()).hexdigest(),
        "code of the task": _of_code(network, federation.scoring),
        INITIAL_MODEL: tensors_digest(network.state_dict()),
        REFERENCE: "none" if reference is None else tensors_digest(reference),
        **{f"file of {key}": checksum(path) for key, path in settings.clock.files().items()},
    }


def with_environments(
    identity: Mapping[str, Any], actors: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an identity with the distinct environments of actors and driver added."""
    known = [*identity.get(ENVIRONMENTS, ())]
    known += [found for found in _environments(actors) if found not in known]
    return {**identity, ENVIRONMENTS: known}


def accepted(found: Checkpoint, context: RunContext) -> Checkpoint:
    """Return a checkpoint that the run may go on from, with what it is forced to accept.

    It has a model of its own, whatever the run would begin with now.

    Raises:
        RunError: its identity differs, and the run is not forced.
    """
    own = {name: value for name, value in context.identity.items() if name != INITIAL_MODEL}
    identity = {**found.identity, **own}
    other = _difference(found, own, context)
    if other is None:
        return replace(found, identity=identity)
    path, where = context.run_dir.path, f"after round {found.number}"
    if not context.force:
        raise RunError(
            f"out={path}: going on {where} would not have the same bits: {other}; restore that, or"
            f" to accept it, {context.resume_advice(force=True)}"
        )
    context.listener.note(f"forced to go on {where}: {other}")
    return replace(found, identity=identity, forced=(*found.forced, f"{where}: {other}"))


def _difference(found: Checkpoint, own: Mapping[str, Any], context: RunContext) -> str | None:
    """Return in what a checkpoint's identity differs from the run's, its actors' and driver's."""
    parts = differing_parts(found.identity, own)
    environments = _environments(context.executor.describe()["actors"])
    known = found.identity.get(ENVIRONMENTS, environments)
    if other := unknown_environment(environments, known):
        parts.append(other)
    return ", ".join(parts) or None


def differing_parts(sealed: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return in words the parts of a run's identity that differ from those of a sealed one."""
    sealed = {**UNSEALED, **sealed}
    return [
        f"{name} was {_short(sealed[name])} (here {_short(value)})"
        for name, value in identity.items()
        if name in sealed and sealed[name] != value
    ]


def _environments(actors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    driver = {"environment": environment(torch.device("cpu"))}  # some methods compute there
    found = by_environment([*actors, driver])
    return [{key: value for key, value in each.items() if key != "nodes"} for each in found]


def _of_split(split: Split | Path) -> str:
    if isinstance(split, Path):
        return recorded_checksum(split)
    return arrays_digest([split.x, split.y])


def _of_local_test(local_test: LocalTest | None) -> str:
    if local_test is None or local_test.samples is None:
        return NO_SAMPLES  # of a dataset: the settings choose them among its test samples
    own, indices = local_test.samples, local_test.indices
    return arrays_digest([indices.offsets, own.x, own.y])


def _of_code(network: nn.Module, scoring: Scoring) -> str:
    """Return the digest of the sources of a user's own modules and scoring functions."""
    named = {*map(type, network.modules()), scoring.losses, scoring.predict}
    named |= {*scoring.metrics.values()}
    own = [each for each in named if each.__module__.partition(".")[0] not in VERSIONED]
    return hashlib.sha256("\n".join(sorted(map(_source, own))).encode()).hexdigest()


def _source(code: Any) -> str:
    """Return the source of a class or function; its name where there is no file of it."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return getattr(code, "__qualname__", type(code).__qualname__)


def _of_indices(indices: ClientIndices) -> str:
    if isinstance(indices, ListedIndices):
        return arrays_digest([indices.offsets, indices.indices])
    sizes = indices.sizes
    clients = np.linspace(0, len(sizes) - 1, SAMPLED_CLIENTS).astype(np.int64)
    own = (indices[client] for client in np.unique(clients).tolist())
    return arrays_digest([sizes[:1] if sizes.strides == (0,) else sizes, *own])


def _short(value: object) -> str:
    return str(value)[:SHOWN_DIGITS]
