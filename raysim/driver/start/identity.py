"""Identity of a run: all that decides the bits of its result, except settings and seeds.

Every checkpoint seals the identity. A run resumes only if its identity has not changed, or by
force. Digests are computed once, at the start. The digest of prepared samples is read from the file
next to them, because the start has just compared the two. Client indices that are drawn on demand
are represented by those of SAMPLED_CLIENTS clients: other code or another seed would change the
indices of nearly every client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from raysim.api.components import Component, call
from raysim.api.own_loop import TASK_LOOP
from raysim.config import Settings
from raysim.driver.evaluation.weights import weights_file
from raysim.driver.privacy.accounting import Accounting
from raysim.driver.start.code_digests import NoDigestError, digest_of, digest_of_modules
from raysim.driver.start.context import RunContext
from raysim.errors import RunError
from raysim.federation.federation import Federation, LocalTest
from raysim.federation.opened import OpenedSamples
from raysim.numbers.tensors import Tensors, state_of
from raysim.numbers.tensors.digests import arrays_digest, bytes_of, tensors_digest
from raysim.samples.arrow import checksum, recorded_checksum
from raysim.samples.client_indices import ClientIndices, ListedIndices
from raysim.samples.data import Model, Split
from raysim.samples.local_cut import without_cut
from raysim.storage.checkpoints import (
    BASE,
    LOCAL_TEST_SAMPLES,
    NO_BASE,
    NO_PRIVACY,
    PRIVACY,
    REFERENCE,
    TEST_SAMPLES,
    TRAINING_SAMPLES,
    Checkpoint,
    Checkpoints,
)
from raysim.storage.environment import by_environment, environment, unknown_environment
from raysim.storage.revisions import revisions_of
from raysim.storage.run_directory import RunDirectory

SAMPLED_CLIENTS = 1000
INITIAL_MODEL, START = "initial model", "model of start_from"
ENVIRONMENTS = "environments"
CODE_OF_MODULES, CODE_OF_SCORING = "code of the model", "code of the scoring"
CODE_OF_COMPONENTS, CODE_OF_LOOP = "code of components", "code of the task's functions"
CODES = (CODE_OF_MODULES, CODE_OF_SCORING, CODE_OF_COMPONENTS, CODE_OF_LOOP)
NOT_COMPARABLE = "cannot be compared"
"""Beginning of the value of code without a digest."""
NO_CLASSES = "none"
SHOWN_DIGITS = 12
NO_SAMPLES = "none"
CUT = "clients' test samples of evaluation.local_test"


def identity_of(
    settings: Settings,
    federation: Federation,
    network: nn.Module,
    reference: Tensors | None,
    privacy: Accounting | None = None,
) -> dict[str, Any]:
    """Return the identity of a run: revisions of components, and digests of the rest.

    Args:
        settings: The run's settings.
        federation: The run's samples and client indices.
        network: The initial network.
        reference: The model of the run that `reference` names; None without one.
        privacy: The accounting of the claim of privacy; None without one.
    """
    opened = OpenedSamples(federation, torch.device("cpu"))
    shown = [opened.client(0), *([opened.test(0, 2)] if len(federation.test_targets) else [])]
    layout = [(name, tuple(t.shape), t.dtype) for name, t in network.state_dict().items()]
    return {
        **revisions_of(settings),
        "clients": len(federation.training_sizes),
        TRAINING_SAMPLES: _of_split(federation.train),
        TEST_SAMPLES: _of_split(federation.test),
        LOCAL_TEST_SAMPLES: _of_local_test(federation.local_test),
        CUT: _of_cut(federation.local_test),
        "client indices": _of_indices(without_cut(federation.client_indices)),
        "decoded samples": arrays_digest(
            bytes_of(part) for batch in shown for part in (batch.x, batch.y)
        ),
        "network": hashlib.sha256(repr(layout).encode()).hexdigest(),
        "torch's default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        CODE_OF_MODULES: _of_code(digest_of_modules, network, "the model"),
        CODE_OF_SCORING: _of_code(digest_of, federation.scoring, "the scoring"),
        CODE_OF_LOOP: code_of_loop(settings, federation),
        CODE_OF_COMPONENTS: code_of_components(settings),
        INITIAL_MODEL: tensors_digest(state_of(network)),
        BASE: federation.base or NO_BASE,
        REFERENCE: "none" if reference is None else tensors_digest(reference),
        START: "none" if federation.start is None else tensors_digest(federation.start.tensors),
        PRIVACY: str(privacy or NO_PRIVACY),
        **{f"file of {key}": checksum(path) for key, path in _files(settings).items()},
    }


def _files(settings: Settings) -> dict[str, Path]:
    """Return the tables of clients and the model's files that settings name, by setting."""
    weights = weights_file(settings.weighting)
    weights_files = {} if weights is None else {"weighting": weights}
    return {**settings.clock.files(), **weights_files, **call(settings.model, Model.files)}


def check_model_files(run_dir: RunDirectory, settings: Settings) -> None:
    """Check that the files of a run's model have not changed since its start.

    Raises:
        RunError: one is another.
    """
    sealed = Checkpoints(run_dir.checkpoints).identity()
    files = call(settings.model, Model.files)
    here = {f"file of {setting}": checksum(path) for setting, path in files.items()}
    if parts := differing_parts(sealed, here):
        names = ", ".join(str(path) for path in files.values())
        raise RunError(f"{run_dir.path}: {', '.join(parts)}; restore {names}")


def with_environments(
    identity: Mapping[str, Any], actors: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an identity that includes the distinct environments of actors and driver."""
    known = [*identity.get(ENVIRONMENTS, ())]
    known += [facts for facts in _environments(actors) if facts not in known]
    return {**identity, ENVIRONMENTS: known}


def accepted(checkpoint: Checkpoint, context: RunContext) -> Checkpoint:
    """Return a checkpoint with the run's identity, and with differences accepted by force.

    The initial model is not compared, because the checkpoint has its own.

    Raises:
        RunError: the checkpoint's identity differs, and the run is not forced.
    """
    identity_here = {
        name: value for name, value in context.identity.items() if name != INITIAL_MODEL
    }
    identity = {**checkpoint.identity, **identity_here}
    parts = _differences(checkpoint, identity_here, context)
    if not parts:
        return replace(checkpoint, identity=identity)
    other = ", ".join(parts)
    path, where = context.run_dir.path, f"after round {checkpoint.run.number}"
    if not context.force:
        known = [part for part in parts if NOT_COMPARABLE not in part]
        raise RunError(
            f"out={path}: going on {where} {'would' if known else 'might'} not give the same bits:"
            f" {other}; restore that, or to accept it, {context.resume_advice(force=True)}"
        )
    context.listener.note(f"forced to go on {where}: {other}")
    forced = (*checkpoint.forced, f"{where}: {other}")
    return replace(checkpoint, identity=identity, forced=forced)


def _differences(
    checkpoint: Checkpoint, identity_here: Mapping[str, Any], context: RunContext
) -> list[str]:
    """Return the parts in which a checkpoint's identity differs from the run's."""
    parts = differing_parts(checkpoint.identity, identity_here)
    environments = _environments(context.executor.describe()["actors"])
    known = checkpoint.identity[ENVIRONMENTS]
    other = unknown_environment(environments, known)
    return [*parts, other] if other else parts


def differing_parts(sealed: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return the parts of a run's identity that differ from a sealed one, in words.

    Parts that cannot be compared are included. An empty sealed identity, of a run without
    checkpoints, differs in no part.
    """
    parts = []
    for name, value in identity.items():
        before = sealed.get(name, NO_CLASSES) if sealed else value
        unknown = [side for side in (value, before) if str(side).startswith(NOT_COMPARABLE)]
        if unknown:
            parts.append(f"{name} {unknown[0]}")
        elif before != value:
            parts.append(f"{name} was {_short(before)} (here {_short(value)})")
    return parts


def not_comparable(identity: Mapping[str, Any]) -> list[str]:
    """Return the parts of an identity that can never be compared, in words."""
    return differing_parts(identity, {name: identity[name] for name in CODES})


def _environments(actors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    driver = {"environment": environment(torch.device("cpu"))}  # some methods compute in it
    distinct = by_environment([*actors, driver])
    return [{key: value for key, value in facts.items() if key != "nodes"} for facts in distinct]


def _of_split(split: Split | Path) -> str:
    if isinstance(split, Path):
        return recorded_checksum(split)
    return arrays_digest([split.x, split.y])


def _of_local_test(local_test: LocalTest | None) -> str:
    if local_test is None or local_test.samples is None:
        return NO_SAMPLES  # a dataset's: the settings choose them among its test samples
    samples, indices = local_test.samples, local_test.indices
    cuts = np.cumsum([0, *indices.sizes])
    return arrays_digest([cuts, samples.x, samples.y])


def _of_cut(local_test: LocalTest | None) -> str:
    is_cut = local_test is not None and local_test.split == "cut"
    return _of_indices(local_test.indices) if local_test and is_cut else NO_SAMPLES


def code_of_components(settings: Settings) -> str:
    """Return the digest of components that no file defines; those in files are sealed as files."""
    components = [*_components(settings), settings.local.build_optimizer()]
    classes = {
        component.title: type(component)
        for component in components
        if type(component).__module__ == "__main__"
    }
    return _of_code(digest_of, classes, "the components") if classes else NO_CLASSES


def code_of_loop(settings: Settings, federation: Federation) -> str:
    """Return the digest of a task's own functions; a loop of settings is sealed as a file."""
    loop = federation.loop if settings.local.train == TASK_LOOP else None
    functions = {"loop": loop, "evaluation": federation.evaluate}
    if not any(functions.values()):
        return NO_CLASSES
    return _of_code(digest_of, functions, "the task's functions")


def _components(value: Any) -> Iterator[Component]:
    """Yield the components among settings, and those within components."""
    if isinstance(value, Component):
        yield value
    parts = value if isinstance(value, tuple | list) else ()
    if isinstance(value, BaseModel):
        parts = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, Mapping):
        parts = [*value.values()]
    for part in parts:
        yield from _components(part)


def _of_code(digest: Callable[[Any, str], str], value: Any, name: str) -> str:
    """Return the digest of code, or why it has none."""
    try:
        return digest(value, name)
    except NoDigestError as error:
        return f"{NOT_COMPARABLE} ({error})"


def _of_indices(indices: ClientIndices) -> str:
    if isinstance(indices, ListedIndices):
        return arrays_digest([indices.offsets, indices.indices])
    sizes = indices.sizes
    clients = np.linspace(0, len(sizes) - 1, SAMPLED_CLIENTS).astype(np.int64)
    sampled_indices = (indices[client] for client in np.unique(clients).tolist())
    return arrays_digest([sizes[:1] if sizes.strides == (0,) else sizes, *sampled_indices])


def _short(value: object) -> str:
    return str(value) if isinstance(value, Mapping) else str(value)[:SHOWN_DIGITS]
