"""Uploaded files of a job: the raysim package of this machine, and the working directory.

The nodes provide raysim's dependencies; raysim itself is uploaded, so that local changes run there,
and so are methods, models and settings files in the working directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE, RAY_RUNTIME_ENV_IGNORE_GITIGNORE
from ray._private.runtime_env import packaging

from raysim.errors import SettingsError
from raysim.process.source import VARIABLE, source

EXCLUDED = ("runs", "data", "build", "dist")
"""Folders that are not uploaded, like hidden files and virtual environments."""
SHOWN_FILES = 3
"""Number of files that an error names for a too large working directory."""
STOP_SECONDS = 60
"""Seconds that a stopped job has for its checkpoint before it is killed; Ray's default is 3."""


def runtime_env(
    folder: Path, variables: Mapping[str, str], requirements: Path | None
) -> dict[str, Any]:
    """Return Ray's runtime environment of a job.

    Args:
        folder: Working directory; files named by its .gitignore and .rayignore are not uploaded.
        variables: Environment variables of the job.
        requirements: Requirements file of packages that the nodes lack.
    """
    environments = [path.parent.name for path in folder.glob("*/pyvenv.cfg")]
    environment: dict[str, Any] = {
        "working_dir": str(folder),
        "py_modules": [str(_folder_of("raysim"))],
        "excludes": [".?*", "*.egg-info", *(f"/{name}" for name in (*EXCLUDED, *environments))],
        "env_vars": {
            "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
            VARIABLE: json.dumps(source()),  # a clone's `.git` is not uploaded
            **variables,
        },
    }
    if requirements:
        environment["pip"] = str(requirements)
    return environment


def check_size(environment: Mapping[str, Any]) -> None:
    """Check that Ray's dashboard takes the working directory of a runtime environment.

    Raises:
        SettingsError: the directory has too many bytes.
    """
    # Ray packs files uncompressed, with a few hundred bytes for the name of each.
    if sum(_sizes(environment).values()) >= DASHBOARD_CLIENT_MAX_SIZE:
        most = _mebibytes(DASHBOARD_CLIENT_MAX_SIZE)
        raise SettingsError(too_large(environment, f"a cluster takes less than {most}"))


def too_large(environment: Mapping[str, Any], limit: str) -> str:
    """Return the error of a too large working directory: the limit, and the next step."""
    sizes, folder = _sizes(environment), environment["working_dir"]
    largest = sorted(sizes, key=lambda path: -sizes[path])[:SHOWN_FILES]
    names = ", ".join(f"{path} ({_mebibytes(sizes[path])})" for path in largest)
    return (
        f"{folder}: has {_mebibytes(sum(sizes.values()))} to upload; {limit}; name what the job"
        f" does not need in {folder}/.rayignore, as in .gitignore; the largest: {names}"
    )


def _sizes(environment: Mapping[str, Any]) -> dict[Path, int]:
    """Return the bytes of the files that Ray would pack, by path in the working directory."""
    folder, sizes = Path(environment["working_dir"]), dict[Path, int]()

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder)] = path.stat().st_size

    excludes = [packaging._get_excludes(folder, environment["excludes"])]
    gitignore = os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    packaging._dir_travel(folder, excludes, add, include_gitignore=gitignore)
    return sizes


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.3g} MiB"


def check_uploaded(path: Path, folder: Path) -> None:
    """Check that a file is uploaded to the job's working directory.

    Raises:
        SettingsError: the file is outside the working directory, or excluded.
    """
    if path.is_absolute() or ".." in path.parts:
        raise SettingsError(f"{path}: must be a path inside the working directory {folder}")
    if path.parts[0] in EXCLUDED or any(part.startswith(".") for part in path.parts):
        raise SettingsError(
            f"{path}: {', '.join(EXCLUDED)} and hidden files are not uploaded; copy it elsewhere"
        )


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SettingsError(f"{package}: is not installed on this machine; a job uploads it")
    return Path(spec.origin).parent
