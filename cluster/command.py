"""What `raysim submit` and `raysim job` do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ray.job_submission import JobStatus
from rich.console import Console

from raysim.cluster.jobs import Jobs, exit_code
from raysim.cluster.pages import job_line
from raysim.cluster.upload import check_uploaded, runtime_env
from raysim.core.errors import SettingsError

INTERRUPTED = 130


def submit(
    words: Sequence[str],
    *,
    address: str | None,
    variables: Sequence[str],
    requirements: Path | None,
    follow: bool,
    console: Console,
) -> int:
    """Start `raysim WORDS...` as a job; return its exit code, or 0 where it is not followed.

    Args:
        words: What would be typed after `raysim`, checked already.
        address: The URL of the cluster's dashboard.
        variables: Environment variables of the job, as NAME=VALUE.
        requirements: Packages that the nodes lack, as pip reads them.
        follow: Whether to follow the log until the job ends.
        console: Where to say it.

    Raises:
        RaysimError: something is wrong that the user can mend.
    """
    here = Path.cwd()
    environment = runtime_env(here, dict(_variable(text) for text in variables), requirements)
    jobs = Jobs(address)
    _say(console, f"uploading {here} to {jobs.address}")
    job = jobs.submit(words, environment)
    _say(console, f"job {job}: submitted")
    if follow:
        return logs(job, address=address, follow=True, console=console)
    _say(console, _how(job, address))
    return 0


def logs(job: str, *, address: str | None, follow: bool, console: Console) -> int:
    """Print a job's log; return the job's exit code, or 0 where it is not followed.

    Raises:
        RaysimError: there is no such cluster or job, or the connection was lost.
    """
    jobs = Jobs(address)
    if not follow:
        console.out(jobs.log(job), end="", highlight=False)
        return 0
    try:
        details = jobs.follow(job, lambda text: console.out(text, end="", highlight=False))
    except KeyboardInterrupt:
        _say(console, f"job {job}: goes on\n{_how(job, address)}")
        return INTERRUPTED
    if details.status == JobStatus.FAILED and details.driver_exit_code is None:
        _say(console, details.message or "")  # it never started, or was killed: no log says why
    _say(console, f"job {job}: {str(details.status).lower()}")
    return exit_code(details)


def status(job: str, *, address: str | None, console: Console) -> None:
    """Print what has become of a job."""
    _say(console, job_line(Jobs(address).details(job)))


def list_jobs(*, address: str | None, console: Console) -> None:
    """Print the jobs of a cluster, a line each."""
    for job in Jobs(address).all():
        _say(console, job_line(job))


def stop(job: str, *, address: str | None, console: Console) -> None:
    """Ask a job to checkpoint and stop."""
    running = Jobs(address).stop(job)
    _say(console, f"job {job}: {'stopping, after a checkpoint' if running else 'was not running'}")


def check_folder(setting: str, path: str | Path | None) -> None:
    """Check that a job's results will outlive the job and the folder that was uploaded with it.

    Raises:
        SettingsError: the path is none, or relative to that folder.
    """
    if path is None or not Path(path).is_absolute():
        raise SettingsError(
            f"{setting}={path or 'none'}: must be an absolute path on storage that outlives the"
            " job and is the same on all nodes, such as /shared/runs/NAME"
        )


def check_file(config: str) -> None:
    """Check that settings in a file, where a run takes them from one, go with the job.

    Raises:
        SettingsError: the file lies where nothing is uploaded from.
    """
    if Path(config).suffix in {".toml", ".json"}:
        check_uploaded(Path(config), Path.cwd())


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingsError(f"--env={text}: environment variables are written NAME=VALUE")
    return name, value


def _how(job: str, address: str | None) -> str:
    at = f" --address {address}" if address else ""
    return "\n".join(
        f"{what}: raysim job {command} {job}{at}"
        for what, command in {"follow": "logs", "ask": "status", "stop": "stop"}.items()
    )


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
