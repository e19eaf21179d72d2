"""Pages of jobs, profiles and manifests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from ray.job_submission import JobDetails
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.api.components import look_up
from raysim.cluster.profiles import PROFILES, find

MANIFESTS = Path(__file__).parent / "manifests"


def job_line(job: JobDetails) -> str:
    """Return a job's id, status, start, duration and command."""
    started, ended = job.start_time or 0, job.end_time or 0  # milliseconds
    moment = datetime.fromtimestamp(started / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    duration = f"{(ended - started) / 1e3:.0f} s" if ended else ""
    return f"{job.submission_id}  {job.status.lower():9}  {moment}  {duration:>7}  {job.entrypoint}"


def profiles(name: str) -> RenderableType:
    """Return the page of a profile, or without a name the table of all profiles.

    Raises:
        SettingsError: there is no such profile.
    """
    if name:
        profile = find(name)
        settings = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in profile.overrides.items()
        ]
        return Group(Text(name, style="bold"), Text("\n".join([profile.about, *settings])))
    table = Table("name", "description", title="profiles", title_justify="left", box=None)
    for profile_name, profile in PROFILES.items():
        table.add_row(profile_name, profile.about)
    return table


def manifests() -> RenderableType:
    """Return the table of the manifests."""
    table = Table("name", "description", title="manifests", title_justify="left", box=None)
    for name in manifest_names():
        heading = next(line for line in manifest(name).splitlines() if line.startswith("# "))
        table.add_row(name, heading.removeprefix("# "))
    return table


def manifest_names() -> list[str]:
    """Return the names of the manifests."""
    return sorted(path.name for path in MANIFESTS.iterdir())


def manifest(name: str) -> str:
    """Return the text of a manifest.

    Raises:
        SettingsError: there is no such manifest.
    """
    files = {path.name: path for path in MANIFESTS.iterdir()}
    return look_up("manifest", name, files).read_text(encoding="utf-8")
