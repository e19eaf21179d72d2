"""Commit of raysim's own sources, for the run's record.

In a clone, the run asks Git at its start. A package built from a clone has the answer in its file
`source.json`, an upload of `raysim submit` in an environment variable. Imports the standard library
alone, since `setup.py` runs this file where nothing is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[2]
"""Folder of the clone, where this is one; of an installed package, the folder of all packages."""
FILE = Path("raysim", "source.json")
"""File of a wheel or a source archive, from the folder of the package."""
VARIABLE = "RAYSIM_SOURCE"
"""Environment variable of a job, with the content of that file."""
CODE = ("raysim", "workloads", "tuning", "cluster")
SECONDS = 30


@cache
def source() -> dict[str, Any]:
    """Return the commit, and whether the sources differ from it: {"commit": ..., "changed": ...}.

    Where the commit is not known, it is None, and "unknown" says why.
    """
    if (CLONE / FILE).is_file():
        return _record((CLONE / FILE).read_text(encoding="utf-8"))
    if (CLONE / ".git").exists():
        return git_source(CLONE)
    if VARIABLE in os.environ:
        return _record(os.environ[VARIABLE])
    return _unknown("built from sources without git")


def git_source(clone: Path) -> dict[str, Any]:
    """Return the result of `source` for a clone.

    Args:
        clone: Its top folder. Files that are not committed count as changes.
    """
    try:
        commit = _git(clone, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(clone, "status", "--porcelain", *CODE))}
    except FileNotFoundError:
        return _unknown("git is not installed")
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return _unknown(f"git failed: {said.strip().partition(chr(10))[0]}")


def _git(clone: Path, *arguments: str) -> str:
    """Return git's output; a hook's variables are not passed on, as they may name another clone."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(clone), *arguments],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.stdout.strip()


def _record(text: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(text)
        return {"commit": record["commit"], **record}
    except (ValueError, LookupError, TypeError):
        return _unknown("its record is damaged")


def _unknown(reason: str) -> dict[str, Any]:
    return {"commit": None, "unknown": reason}
