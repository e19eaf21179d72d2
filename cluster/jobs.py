"""Jobs of a Ray cluster, through the API of its dashboard (`ray.job_submission`).

With RAY_AUTH_MODE=token, Ray sends the token of this machine: RAY_AUTH_TOKEN, else the file
RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import requests
from pydantic import ValidationError
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from raysim.cluster.upload import check_size, too_large
from raysim.errors import RunError, SettingsError
from raysim.execution.cluster_health import check_reachable

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Seconds without an answer after which a request has failed."""
NOT_RAY = (LookupError, TypeError, AttributeError, requests.JSONDecodeError, ValidationError)
"""Errors of Ray's client if an answer is not from Ray's dashboard."""
TOO_LARGE = "status code 413"
"""Part of the error of Ray's client if a server rejects the number of bytes."""
LONGEST_ANSWER = 300
"""Most characters of a server's answer in an error, since it may be a page of HTML."""
RAY_LOGGERS = ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
"""Loggers silenced below errors: their lines would mix with the job's log."""


class _Client(JobSubmissionClient):
    """Ray's client with a limit on the wait for answers."""

    def _do_request(self, *arguments: Any, **options: Any) -> requests.Response:
        return super()._do_request(*arguments, timeout=ANSWER_SECONDS, **options)


class Jobs:
    """Jobs of one cluster.

    Args:
        address: URL of its dashboard; None takes it from the environment variables.

    Raises:
        SettingsError: the address is not a URL.
        RunError: no Ray cluster answers, or it rejects the token.
    """

    def __init__(self, address: str | None = None) -> None:
        source, self.address = _resolve_address(address)
        for name in RAY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        parts = urlsplit(self.address)
        try:  # a connection first: Ray's own attempts take minutes to fail
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
            check_reachable(f"{parts.hostname}:{port}", CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise RunError(f"{source}={self.address}: cannot be reached: {error}") from error
        os.environ["RAY_API_SERVER_ADDRESS"] = self.address  # Ray prefers it to an argument
        with self._as_run_error():
            self._client = _Client()

    def submit(self, arguments: Sequence[str], runtime_env: Mapping[str, Any]) -> str:
        """Upload the runtime environment and start `raysim ARGUMENTS...`; return the job's id.

        Raises:
            RaysimError: the cluster rejects the upload or the job.
        """
        with self._as_run_error(), _naming_files(runtime_env):
            check_size(runtime_env)
            return self._client.submit_job(
                entrypoint=shlex.join(["python3", "-m", "raysim", *arguments]),
                runtime_env=dict(runtime_env),
            )

    def follow(self, job: str, write: Callable[[str], None]) -> JobDetails:
        """Write a job's log as it grows; return the details of the ended job.

        Raises:
            RunError: there is no such job, or the connection was lost.
        """

        async def tail() -> None:
            async for text in self._client.tail_job_logs(job):
                write(text)

        self.details(job)  # raises if there is no such job
        with self._as_run_error():
            asyncio.run(tail())
        if not (details := self.details(job)).status.is_terminal():
            raise RunError(
                f"{job}: the connection was lost; the job may still be running; follow it with:"
                f" raysim job logs {job}"
            )
        return details

    def log(self, job: str) -> str:
        """Return the log of a job so far."""
        with self._as_run_error():
            return self._client.get_job_logs(job)

    def stop(self, job: str) -> bool:
        """Stop a job after a checkpoint; return whether it was running."""
        with self._as_run_error():
            return self._client.stop_job(job)

    def details(self, job: str) -> JobDetails:
        """Return the details of a job."""
        with self._as_run_error():
            return self._client.get_job_info(job)

    def all(self) -> list[JobDetails]:
        """Return the submitted jobs, oldest first."""
        with self._as_run_error():
            listed = [job for job in self._client.list_jobs() if job.submission_id]
        return sorted(listed, key=lambda job: job.start_time or 0)

    @contextmanager
    def _as_run_error(self) -> Iterator[None]:
        """Convert errors of failed requests to a RunError of one line."""
        try:
            yield
        except AuthenticationError as error:
            summary = str(error).partition("\n")[0].partition(". ")[0][:LONGEST_ANSWER]
            raise RunError(
                f"{self.address}: {summary} (set RAY_AUTH_MODE=token, and the token in"
                " RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
            ) from error
        except (requests.Timeout, TimeoutError) as error:
            raise RunError(f"{self.address}: no answer in {ANSWER_SECONDS:g} s") from error
        except NOT_RAY as error:
            raise RunError(f"{self.address}: is not the dashboard of a Ray cluster") from error
        except (RuntimeError, ValueError, OSError, aiohttp.ClientError) as error:
            answer = str(error).strip()[:LONGEST_ANSWER]
            raise RunError(f"{self.address}: {answer}") from error


@contextmanager
def _naming_files(runtime_env: Mapping[str, Any]) -> Iterator[None]:
    """Name large files if a server, or a proxy before it, takes fewer bytes than Ray's.

    Raises:
        SettingsError: the server has rejected the number of bytes.
    """
    try:
        yield
    except RuntimeError as error:
        if TOO_LARGE not in str(error):
            raise
        raise SettingsError(too_large(runtime_env, "the server takes less (413)")) from error


def exit_code(details: JobDetails) -> int:
    """Return the exit code of a finished job's command."""
    return 0 if details.status == JobStatus.SUCCEEDED else details.driver_exit_code or 1


def _resolve_address(address: str | None) -> tuple[str, str]:
    """Return the name of the option or variable that gives the address, and the URL."""
    sources = {"--address": address} | {name: os.environ.get(name) for name in ADDRESS_VARIABLES}
    source, url = next(
        ((name, value) for name, value in sources.items() if value), ("--address", DEFAULT_ADDRESS)
    )
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(
            f"{source}={url}: must be the URL of a Ray dashboard, such as {DEFAULT_ADDRESS}"
            " (--address overrides the environment)"
        )
    return source, url.rstrip("/")
