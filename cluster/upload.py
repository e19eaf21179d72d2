"""What a job takes with it: the code that is installed here, and the working directory.

The nodes hold what raysim depends on; raysim itself comes from here, so that a change made here
runs there, and so do methods, models and files of settings in the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.core.errors import SettingsError

LEFT_OUT = ("runs", "data", "build", "dist")
"""Folders of the working directory that stay here, as do hidden files and virtual environments."""
STOP_SECONDS = 60
"""What a stopped job has for its checkpoint before it is killed; Ray's default is 3."""


def runtime_env(
    folder: Path, variables: Mapping[str, str], requirements: Path | None
) -> dict[str, Any]:
    """Return Ray's runtime environment of a job.

    Args:
        folder: The working directory; what its .gitignore and .rayignore name stays here too.
        variables: Environment variables of the job.
        requirements: Packages that the nodes lack, as pip reads them.
    """
    environments = [path.parent.name for path in folder.glob("*/pyvenv.cfg")]
    environment: dict[str, Any] = {
        "working_dir": str(folder),
        "py_modules": [str(_folder_of("raysim"))],
        "excludes": [".?*", "*.egg-info", *(f"/{name}" for name in (*LEFT_OUT, *environments))],
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **variables},
    }
    if requirements:
        environment["pip"] = str(requirements)
    return environment


def check_uploaded(path: Path, folder: Path) -> None:
    """Check that a file will be in the job's working directory too.

    Raises:
        SettingsError: it lies elsewhere, or in what is left out.
    """
    if path.is_absolute() or ".." in path.parts:
        raise SettingsError(f"{path}: must be a path inside the working directory {folder}")
    if path.parts[0] in LEFT_OUT or any(part.startswith(".") for part in path.parts):
        raise SettingsError(
            f"{path}: is not uploaded, as {', '.join(LEFT_OUT)} and hidden files are left out;"
            " copy it elsewhere"
        )


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SettingsError(f"{package}: is not installed here, and a job needs it")
    return Path(spec.origin).parent
