"""Folder of a pretrained network that `model.path` names: a folder, a pack, or one of the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from raysim.api.components import cause
from raysim.errors import DataError, SettingsError, visible
from raysim.user_input import parse_json, user_path
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.models.pretrained.extra import check_extra, quiet
from raysim.workloads.models.pretrained.packs import MODELS_FOLDER, PACKS, fetched

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
ADAPTERS = "adapter_config.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""Files that are taken from the hub; no code, and no pickle."""
NAMED = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
"""Name of a network on the hub."""
COMMIT = re.compile(r"[0-9a-f]{40}")


def absolute(path: str, setting: str = "model.path") -> str:
    """Return a path with an absolute folder, as workers have other working directories.

    Names of packs and of networks on the hub stay as they are.

    Raises:
        SettingsError: the path is none.
    """
    if path in PACKS or _is_of_hub(path):
        return path
    return str(user_path(path, setting).absolute())


def hub_name(path: str) -> tuple[str, str]:
    """Return name and commit of a network of the hub; empty for a folder or a pack."""
    name, _, commit = path.partition("@")
    return (name, commit) if _is_of_hub(path) and COMMIT.fullmatch(commit) else ("", "")


def _is_of_hub(path: str) -> bool:
    name, _, commit = path.partition("@")
    return bool(commit and NAMED.fullmatch(name)) and not Path(path).is_dir()


def folder_of(path: str, setting: str = "model.path") -> Path:
    """Return the folder of a pretrained network; fetch it first if it is a pack or of the hub.

    Args:
        path: The folder, the name of a pack, or NAME@COMMIT.
        setting: The setting that has it, for errors.

    Raises:
        SettingsError: there is no such folder, or the path names no commit.
        DataError: it cannot be fetched, or the folder has no configuration.
    """
    if path in PACKS:
        return fetched(path)
    if _is_of_hub(path):
        name, _, commit = path.partition("@")
        folder = _of_hub(name, commit, f"{setting}={path}")
    else:
        folder = _given(path, setting)
    if not (folder / CONFIG).is_file():
        raise DataError(f"{setting}={path}: has no {CONFIG}, so that its architecture is unknown")
    return folder


def configuration(folder: Path, origin: str) -> dict[str, Any]:
    """Return the configuration in a folder, as its file has it.

    Args:
        folder: The folder.
        origin: The setting and its value, for errors.

    Raises:
        DataError: the file is no JSON object.
    """
    try:
        content = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{origin}: its {CONFIG} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{origin}: its {CONFIG} must hold a JSON object")
    return content


def check_weights(folder: Path, origin: str) -> None:
    """Check that a folder has a whole network's weights as safetensors.

    Raises:
        DataError: it has none, a pickle, or adapters.
    """
    if (folder / ADAPTERS).is_file():
        raise DataError(
            f"{origin}: holds adapters ({ADAPTERS}), not a network alone; merge them first:"
            " peft's merge_and_unload().save_pretrained(NEW)"
        )
    whole, index = (folder / name for name in WEIGHTS)
    if whole.is_file():
        return
    if index.is_file():
        _check_parts(folder, index, origin)
        return
    if pickle := next((name for name in PICKLES if (folder / name).is_file()), None):
        raise DataError(
            f"{origin}: its {pickle} is a pickle, which could run code; convert it where you trust"
            " it: AutoModel.from_pretrained(FOLDER).save_pretrained(NEW) writes safetensors"
        )
    raise DataError(f"{origin}: has no weights ({WEIGHTS[0]})")


def _check_parts(folder: Path, index: Path, origin: str) -> None:
    """Check that all files that an index names are safetensors in its folder.

    Raises:
        DataError: one is not, as a pickle could be read, or the index is none.
    """
    try:
        parts = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{origin}: its {index.name} has no weight_map: {cause(error)}") from error
    for part in sorted(map(str, parts)):
        is_plain = Path(part).name == part and part.endswith(".safetensors")
        if not (is_plain and (folder / part).is_file()):
            raise DataError(
                f"{origin}: its {index.name} names {visible(part)}; must be a file of the folder"
                " that ends in .safetensors"
            )


def _given(path: str, setting: str) -> Path:
    folder = user_path(path, setting)
    if folder.is_dir():
        return folder
    typed = path.removeprefix(f"{Path.cwd()}/")  # as settings make it absolute
    shown = f"{setting}={visible(typed)}"
    if folder.exists():
        raise SettingsError(f"{shown}: is a file; must be the folder that holds it")
    if "/" not in typed:
        raise SettingsError(f"{shown}: no such folder, and no pack; packs are {', '.join(PACKS)}")
    if NAMED.fullmatch(typed) and not folder.parent.exists():
        raise SettingsError(
            f"{shown}: no such folder; if it is a network of the hub, add its commit, whose weights"
            f" never change: {typed}@COMMIT, with the 40 digits that its page of files shows"
        )
    raise SettingsError(f"{shown}: no such folder")


def _of_hub(name: str, commit: str, origin: str) -> Path:
    """Return the folder of a network of the hub, downloaded under the data root.

    Raises:
        SettingsError: the commit is none, or the extra is missing.
        DataError: it cannot be downloaded.
    """
    if not COMMIT.fullmatch(commit):
        raise SettingsError(
            f"{origin}: must name a commit by its 40 hexadecimal digits; a branch or a tag changes"
        )
    check_extra(origin)
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            folder = snapshot_download(
                name,
                revision=commit,
                cache_dir=data_root() / MODELS_FOLDER / "hub",
                allow_patterns=[*FILES],
            )
    except Exception as error:  # the hub's client raises errors of several libraries
        first: BaseException = error
        while first.__cause__:
            first = first.__cause__
        cause = " ".join(f"{type(first).__name__}: {first}".split())
        raise DataError(
            f"{origin}: cannot be downloaded from the hub ({visible(cause)}); give a folder with"
            " its files"
        ) from error
    return Path(folder)
