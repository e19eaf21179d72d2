"""Starting or joining Ray, quietly, and choosing an executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch

from raysim.config import EngineSettings
from raysim.core.errors import RunError, SettingsError
from raysim.execution.base import Executor, InlineExecutor
from raysim.execution.cluster_health import check_reachable
from raysim.execution.ray_pool import ActorPool
from raysim.execution.resources import Node, plan_actors
from raysim.execution.worker import WorkerSpec
from raysim.storage.trace import Stopwatch

CONNECT_SECONDS = 10.0


@contextmanager
def ray_runtime(engine: EngineSettings) -> Iterator[None]:
    """Hold a Ray instance for a run: the caller's, the one at RAY_ADDRESS, or one of our own.

    Raises:
        RunError: RAY_ADDRESS names a cluster that cannot be joined, a token is missing, or Ray
            cannot be started.
    """
    if engine.backend == "inline" or ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "local")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        check_reachable(address, CONNECT_SECONDS)
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray's own are of many kinds, and bare where a start takes too long
        own = address == "local"
        failed = "Ray cannot be started" if own else f"RAY_ADDRESS={address}: cannot be joined"
        raise RunError(f"{failed}: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def alive_nodes() -> list[Node]:
    """Return what the nodes of the cluster declare; Ray must be running."""
    return [
        Node(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]


def make_executor(spec: WorkerSpec, watch: Stopwatch) -> Executor:
    """Build the executor that the settings ask for; Ray must be running for "ray".

    Raises:
        SettingsError: the settings ask for more than the machine or cluster has.
    """
    engine = spec.settings.engine
    if engine.backend == "ray":
        cohort = spec.settings.cohort_size
        return ActorPool(spec, lambda: plan_actors(engine, alive_nodes(), cohort), watch)
    if engine.gpus_per_actor > torch.cuda.device_count():
        raise SettingsError(
            f"engine.gpus_per_actor={engine.gpus_per_actor:g}: this machine has"
            f" {torch.cuda.device_count()} GPUs"
        )
    return InlineExecutor(spec)
