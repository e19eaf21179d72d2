"""Uploaded files of a job: the raysim package of this machine, and the working directory.

The nodes provide raysim's dependencies; raysim itself is uploaded, so that local changes run there,
and so are methods, models and settings files in the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.core.errors import SettingsError

EXCLUDED = ("runs", "data", "build", "dist")
"""Folders that are not uploaded, like hidden files and virtual environments."""
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
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **variables},
    }
    if requirements:
        environment["pip"] = str(requirements)
    return environment


def check_uploaded(path: Path, folder: Path) -> None:
    """Check that a file is uploaded to the job's working directory.

    Raises:
        SettingsError: it is outside the working directory, or excluded.
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
