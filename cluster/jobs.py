"""The jobs of a Ray cluster, over the API of its dashboard (`ray.job_submission`).

Where the cluster asks for a token, Ray takes it from here with RAY_AUTH_MODE=token: RAY_AUTH_TOKEN,
else the file RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token.
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
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from raysim.core.errors import RunError, SettingsError
from raysim.execution.cluster_health import reach

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ENVIRONMENT = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
CONNECT_SECONDS = 10.0
CHATTY = ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
"""Loggers that would mix with the job's own log."""


class Jobs:
    """The jobs of one cluster.

    Args:
        address: The URL of its dashboard; by default what the environment names.

    Raises:
        SettingsError: the address is no URL.
        RunError: there is no Ray cluster, or it does not take the token.
    """

    def __init__(self, address: str | None = None) -> None:
        source, self.address = _chosen(address)
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        _reach(source, self.address)
        os.environ["RAY_API_SERVER_ADDRESS"] = self.address  # Ray prefers it to an argument
        with self._in_one_line():
            self._client = JobSubmissionClient()

    def submit(self, words: Sequence[str], runtime_env: Mapping[str, Any]) -> str:
        """Upload what a job needs and start `raysim WORDS...`; return the job's id."""
        with self._in_one_line():
            return self._client.submit_job(
                entrypoint=shlex.join(["python3", "-m", "raysim", *words]),
                runtime_env=dict(runtime_env),
            )

    def follow(self, job: str, write: Callable[[str], None]) -> JobDetails:
        """Write a job's log as it grows; return what became of the job when it has ended.

        Raises:
            RunError: there is no such job, or the connection was lost.
        """

        async def tail() -> None:
            async for text in self._client.tail_job_logs(job):
                write(text)

        self.details(job)  # there is one
        with self._in_one_line():
            asyncio.run(tail())
        if not (details := self.details(job)).status.is_terminal():
            raise RunError(f"{job}: the connection was lost; the job may well go on")
        return details

    def log(self, job: str) -> str:
        """Return what a job has logged so far."""
        with self._in_one_line():
            return self._client.get_job_logs(job)

    def stop(self, job: str) -> bool:
        """Ask a job to checkpoint and stop; return whether it was running."""
        with self._in_one_line():
            return self._client.stop_job(job)

    def details(self, job: str) -> JobDetails:
        """Return what Ray knows of a job."""
        with self._in_one_line():
            return self._client.get_job_info(job)

    def all(self) -> list[JobDetails]:
        """Return the jobs that were submitted, the oldest first."""
        with self._in_one_line():
            listed = [job for job in self._client.list_jobs() if job.submission_id]
        return sorted(listed, key=lambda job: job.start_time or 0)

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Raise as a RunError what Ray raises of a request that failed."""
        try:
            yield
        except AuthenticationError as error:
            said = str(error).partition("\n")[0].partition(". ")[0]
            raise RunError(
                f"{self.address}: {said} (RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN,"
                " the file RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
            ) from error
        except (RuntimeError, ValueError, OSError, aiohttp.ClientError) as error:
            raise RunError(f"{self.address}: {error}") from error


def exit_code(details: JobDetails) -> int:
    """Return a finished job's exit code, as a command that had run here would have had it."""
    return 0 if details.status == JobStatus.SUCCEEDED else details.driver_exit_code or 1


def _chosen(given: str | None) -> tuple[str, str]:
    """Return where the address comes from, and the URL."""
    named = {"--address": given} | {name: os.environ.get(name) for name in ENVIRONMENT}
    source, url = next(
        ((name, value) for name, value in named.items() if value), ("--address", DEFAULT_ADDRESS)
    )
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(
            f"{source}={url}: must be the URL of a Ray dashboard, such as {DEFAULT_ADDRESS}"
            " (--address overrules the environment)"
        )
    return source, url.rstrip("/")


def _reach(source: str, url: str) -> None:
    """Knock; Ray itself would wait for minutes."""
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        reach(f"{parts.hostname}:{port}", CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise RunError(f"{source}={url}: cannot be reached: {error}") from error
