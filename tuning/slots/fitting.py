"""Numbers of slots that fit on the present cluster."""

from __future__ import annotations

from collections.abc import Mapping

import ray

import raysim
from raysim.config import EngineSettings
from raysim.errors import SettingsError
from raysim.execution.autoscaler import autoscaler_runs
from raysim.execution.cluster_health import alive_nodes
from raysim.execution.ray_runtime import ray_runtime
from raysim.execution.resources import ActorPlan, plan_actors
from raysim.process.exits import interruptible


def count_slots(settings: raysim.Settings, jobs: int | None) -> int:
    """Return the number of slots of a command; starts Ray to count them.

    Raises:
        SettingsError: no slot fits on the cluster.
    """
    if jobs is not None:
        return jobs
    engine = settings.engine.model_copy(update={"backend": "ray"})
    with interruptible(), ray_runtime(engine):
        fitting = fitting_actors(engine) // (1 if engine.actors == "auto" else engine.actors)
        return fitting or int(autoscaler_runs())


def at_most(jobs: int | None, runs: int) -> int | None:
    """Return the requested number of slots, at most one per run."""
    return jobs and max(min(jobs, runs), 1)


def fitting_actors(engine: EngineSettings) -> int:
    """Return the number of actors that fit on the present nodes; 0 only with an autoscaler.

    Raises:
        SettingsError: no actor fits, and no autoscaler runs.
    """
    automatic = engine.model_copy(update={"actors": "auto"})
    try:
        return plan_actors(automatic, alive_nodes(), 10**9).actors
    except SettingsError:
        if autoscaler_runs():
            return 0
        raise


def plan_slots(engine: EngineSettings, count: int, actors: int, grows: bool) -> ActorPlan:
    """Return the plan of the actors of `count` slots.

    Args:
        engine: The engine's settings.
        count: Number of slots.
        actors: Number of actors of each slot.
        grows: Whether nodes are started for them.

    Raises:
        SettingsError: the slots do not fit.
    """
    if grows:
        return ActorPlan(count * actors, float(engine.cpus_per_actor), engine.gpus_per_actor)
    fitting = fitting_actors(engine) // actors
    if not count or (count > fitting and engine.gpus_per_actor):
        raise SettingsError(
            f"jobs={count}: {count} runs of {actors} actors do not fit; the cluster fits"
            f" {fitting * actors} actors of engine.gpus_per_actor={engine.gpus_per_actor:g}"
        )
    asked = engine.model_copy(update={"actors": count * actors})
    return plan_actors(asked, alive_nodes(), 10**9)


def free_resources() -> str:
    """Return the free CPUs and GPUs in words."""
    free: Mapping[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    declared: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    names = [name for name in ("CPU", "GPU") if declared.get(name)]
    return "free: " + ", ".join(f"{free.get(n, 0):g} of {declared[n]:g} {n}s" for n in names)
