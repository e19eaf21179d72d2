"""Trained networks of runs, as torch modules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from pydantic import ValidationError
from safetensors import safe_open
from torch import Tensor, nn

from raysim.api.method import METHODS, Method
from raysim.api.scoring import identity, in_own_unit
from raysim.config import Settings, parse
from raysim.driver.start.base import check_base, read_base, restore_base, sealed_base
from raysim.driver.start.identity import check_model_files
from raysim.errors import RaysimError, RunError, SettingsError
from raysim.federation.federation import Start, load_tensors, model_builder, network_of
from raysim.federation.prepared import network_size, open_prepared, prepared
from raysim.numbers.seeds import seeded
from raysim.numbers.tensors import Tensors, set_base, state_of, unset_base
from raysim.samples.data import Dataset, Split
from raysim.samples.preparation import Preparation
from raysim.storage.checkpoints import BEST_MODEL, MODEL
from raysim.storage.plugins import Plugins
from raysim.storage.run_directory import RunDirectory
from raysim.storage.sealed.models import read_model
from raysim.storage.weights import read_weights
from raysim.training.network import Network


def start_tensors(path: Path, note: Callable[[str], None]) -> dict[str, Tensor]:
    """Return the tensors from which training starts, read from a run or a file.

    Raises:
        SettingsError: there is no such run or file.
        DataError: the file holds something else.
    """
    allowed = "a run directory, or a file of weights (.safetensors, or saved by torch)"
    try:
        if not path.is_dir() and path.stat():
            return read_weights(path, "start_from")
        return read_model(path, note)
    except (RunError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"start_from={path}: must be {allowed}: {why}") from error


def read_start(path: Path, note: Callable[[str], None]) -> Start:
    """Return what training starts from, of a run or a file.

    Raises:
        SettingsError: there is no such run or file.
        DataError: the file holds something else.
        RunError: the run's frozen tensors cannot be read.
    """
    tensors, is_run = start_tensors(path, note), path.is_dir()
    if not is_run and path.name not in (MODEL, BEST_MODEL):
        return Start(tensors, base=_stated_base(path))
    run = path if is_run else path.parent
    sealed = sealed_base(run)
    if sealed is None and not is_run:
        return Start(tensors, base=_stated_base(path))
    directory = RunDirectory(run)
    return Start(tensors, read_base(directory), sealed, _method_of(directory))


def _method_of(run_dir: RunDirectory) -> Method | None:
    """Return the method of a run; None if it is not one of raysim's, or cannot be read."""
    with suppress(RaysimError, ValidationError):
        values = dict(run_dir.read_config()[0]["method"])
        name = values.pop("name")
        return METHODS.get(name).model_validate(values) if name in METHODS else None
    return None


def _stated_base(path: Path) -> str | None:
    """Return the digest of the base that a file of a run's model states; None without one."""
    if path.suffix != ".safetensors":
        return None
    with safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("base")


def load_network(
    path: Path,
    model: nn.Module | Callable[[], nn.Module] | None,
    root: Callable[[], Path],
    note: Callable[[str], None],
    *,
    best: bool,
    own: Tensors | None = None,
) -> nn.Module:
    """Return the trained network of a run.

    Args:
        path: The run directory.
        model: The network of a run with its own task, or a function that builds the network.
        root: Returns the data root; called if a size or a unit is read from the samples.
        note: Called with a line if a checkpoint replaces a damaged file.
        best: Whether to return the network of the best round.
        own: Tensors of a client's model to return instead.

    Raises:
        RunError: the directory holds no run or no model.
        SettingsError: `model` is another network.
    """
    directory = RunDirectory(path)
    Plugins(path).check_recorded(force=False)
    raw, own_task = directory.read_config(note)
    settings = parse(raw)
    if own_task and model is None:
        raise RunError(f"{path}: this run had its own task; raysim.load needs its `model`")
    if best and not directory.best_model.exists():
        raise RunError(
            f"{path}: has no {BEST_MODEL}: no round until its last checkpoint was evaluated"
        )
    stored = _stored(directory)
    samples = cache(lambda: _samples(settings.data, root))
    build = model
    if build is None:
        size = stored.size if stored else network_size(settings.dataset, samples)
        build = model_builder(settings, size)
    with seeded(settings.seed, "init"):
        built = build if isinstance(build, nn.Module) else build()
    read = partial(read_model, path, note, BEST_MODEL if best else MODEL)
    network = _with_tensors(built, settings, directory, lambda: own or read())
    if model is None and (predict := _predict(settings.dataset, stored, samples)) is not identity:
        network.register_forward_hook(lambda module, inputs, outputs: predict(outputs))
    return network.eval()


def _with_tensors(
    built: nn.Module, settings: Settings, run_dir: RunDirectory, read: Callable[[], Tensors]
) -> nn.Module:
    """Return a run's network, with its tensors.

    Args:
        built: The model, as it was built; may be part of the network.
        settings: The run's settings.
        run_dir: The run directory, which has the base.
        read: Returns the other tensors.

    Raises:
        RunError: the directory lacks them, or its run had another base.
        SettingsError: they belong to another model.
    """
    parts = [built]
    try:
        set_base(built, settings.method.moved(built))
        network = network_of(built, settings.method, settings.seed)
        parts.append(network)
        restore_base(network, run_dir)
        check_base(network, run_dir)
        check_model_files(run_dir, settings)
        tensors = read()
        if settings.method.changes_shapes and state_of(network).keys() <= tensors.keys():
            Network(network).load(tensors)
        load_tensors(network, tensors, str(run_dir.path))
    finally:
        for part in parts:
            unset_base(part)
    return network


def _predict(
    dataset: Dataset, stored: Preparation | None, samples: Callable[[], Split]
) -> Callable[[Tensor], Tensor]:
    """Return what turns outputs into the targets' unit, if they were trained in another one."""
    scoring = dataset.scoring
    if scoring.classifies or scoring.columns_after_tokens is not None:
        return identity
    if stored and stored.unit:
        return in_own_unit(stored.unit)
    predict = dataset.scoring_of(samples().y).predict
    return identity if predict is scoring.predict else predict


def _stored(run_dir: RunDirectory) -> Preparation | None:
    """Return the preparation that a run has stored; None, too, where it is damaged."""
    with suppress(RunError):
        return run_dir.read_preparation()
    return None


def _samples(data: Dataset, root: Callable[[], Path]) -> Split:
    paths = prepared(data, root(), lambda *_: None)
    return open_prepared(data, paths["train"])
