"""Commands `raysim submit` and `raysim job`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ray.job_submission import JobStatus
from rich.console import Console

from raysim.cluster.jobs import Jobs, exit_code
from raysim.cluster.pages import job_line
from raysim.cluster.upload import check_uploaded, runtime_env
from raysim.errors import SettingsError, without_passwords
from raysim.process import exits


def submit(
    arguments: Sequence[str],
    *,
    address: str | None,
    variables: Sequence[str],
    requirements: Path | None,
    follow: bool,
    console: Console,
) -> int:
    """Submit `raysim ARGUMENTS...` as a job; return its exit code, or 0 if it is not followed.

    Args:
        arguments: Command line after `raysim`, already validated.
        address: URL of the cluster's dashboard.
        variables: Environment variables of the job, as NAME=VALUE.
        requirements: Requirements file of packages that the nodes lack.
        follow: Follow the log until the job ends.
        console: Console for messages and the log.

    Raises:
        RaysimError: a variable, the address, the token or the upload is wrong.
    """
    for text in (*arguments, *variables):
        _check_no_password(text)
    folder = Path.cwd()
    environment = runtime_env(folder, dict(_variable(text) for text in variables), requirements)
    jobs = Jobs(address)
    _print(console, f"uploading {folder} to {jobs.address}")
    job = jobs.submit(arguments, environment)
    _print(console, f"job {job}: submitted")
    if follow:
        return logs(job, address=address, follow=True, console=console)
    _print(console, _next_commands(job, address))
    return 0


def logs(job: str, *, address: str | None, follow: bool, console: Console) -> int:
    """Print a job's log; return the job's exit code, or 0 if it is not followed.

    Raises:
        RaysimError: there is no such cluster or job, or the connection was lost.
    """
    jobs = Jobs(address)
    if not follow:
        console.out(jobs.log(job), end="", highlight=False)
        return 0
    try:
        with exits.interruptible():
            details = jobs.follow(job, lambda text: console.out(text, end="", highlight=False))
    except KeyboardInterrupt as stop:
        _print(console, f"job {job}: still running\n{_next_commands(job, address)}")
        return exits.exit_code(stop)
    if details.status == JobStatus.FAILED and details.driver_exit_code is None:
        _print(console, details.message or "")  # not started or killed: the log has no reason
    _print(console, f"job {job}: {str(details.status).lower()}")
    return exit_code(details)


def status(job: str, *, address: str | None, console: Console) -> None:
    """Print the status of a job."""
    _print(console, job_line(Jobs(address).details(job)))


def list_jobs(*, address: str | None, console: Console) -> None:
    """Print the jobs of a cluster, one per line."""
    for job in Jobs(address).all():
        _print(console, job_line(job))


def stop(job: str, *, address: str | None, console: Console) -> None:
    """Stop a job after a checkpoint."""
    running = Jobs(address).stop(job)
    status = "stopping, after a checkpoint" if running else "was not running"
    _print(console, f"job {job}: {status}")


def check_folder(setting: str, path: str | Path | None) -> None:
    """Check that a job's results do not lie in its uploaded working directory.

    Raises:
        SettingsError: no path is given, or a relative one.
    """
    if path is None or not Path(path).is_absolute():
        raise SettingsError(
            f"{setting}={path or 'none'}: must be an absolute path on storage that outlives the"
            " job and is the same on all nodes, such as /shared/runs/NAME"
        )


def check_file(config: str) -> None:
    """Check that a settings file is uploaded with the job; presets need no file.

    Raises:
        SettingsError: the file is outside the uploaded files.
    """
    if Path(config).suffix in {".toml", ".json"}:
        check_uploaded(Path(config), Path.cwd())


def _check_no_password(text: str) -> None:
    """Check that a part of a job's command or environment holds no password.

    Raises:
        SettingsError: the part holds one; Ray would show it to everyone who may list jobs.
    """
    if without_passwords(text) != text:
        raise SettingsError(
            f"{text}: the password would stand in the cluster's list of jobs; write the URL to a"
            " file that the cluster's nodes see and give --storage @FILE, or start Ray there with"
            " RAYSIM_STORAGE set"
        )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingsError(f"--env={text}: must be NAME=VALUE")
    return name, value


def _next_commands(job: str, address: str | None) -> str:
    option = f" --address {address}" if address else ""
    commands = {"follow": "logs", "status": "status", "stop": "stop"}
    return "\n".join(
        f"{purpose}: raysim job {command} {job}{option}" for purpose, command in commands.items()
    )


def _print(console: Console, text: str) -> None:
    console.print(without_passwords(text), highlight=False, markup=False, soft_wrap=True)
