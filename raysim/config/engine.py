"""Settings of the engine: executor, resources, and numerics."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raysim.user_input.group import SettingsGroup
from raysim.user_input.limits import MOST, SMALLEST_RESOURCE, NodeLabels, RayName


class EngineSettings(SettingsGroup):
    """Executor, resources and numerics of a run.

    Backend, actors and resources change no bit of a result on one machine type; `vectorize` and
    `precision` change it by rounding, and the stack size of vectorize=auto depends on the actors.
    """

    backend: Literal["ray", "inline"] = Field(
        default="ray", description="executor: a pool of Ray actors, or the driver's own process"
    )
    actors: Annotated[int, Field(ge=1, le=40_000)] | Literal["auto"] = Field(  # Ray's tested limit
        default="auto", description="number of actors; auto: one a core, or as many as the GPUs fit"
    )
    cpus_per_actor: Annotated[float, Field(ge=SMALLEST_RESOURCE)] | Literal["auto"] = Field(
        default="auto", description="cores that an actor reserves; auto: min(1, CPUs / actors)"
    )
    threads_per_actor: int = Field(
        default=1, ge=1, le=1024, description="torch threads of an actor, at most one a core"
    )
    gpus_per_actor: float = Field(
        default=0.0, ge=0, le=1, description="GPUs of an actor: a fraction of one, or a whole one"
    )
    accelerator_type: RayName | None = Field(
        default=None, description="GPUs to use, by Ray's name, for example A100; none: any"
    )
    node_labels: NodeLabels = Field(default={}, description="labels of the nodes to use")
    vectorize: Annotated[int, Field(ge=0, le=MOST)] | Literal["auto"] = Field(
        default=0,
        description="stack size: clients trained at once; 0: no stacking; auto: by GPU memory",
    )
    client_timeout: Annotated[float, Field(gt=0, le=MOST)] | None = Field(
        default=None,
        description="seconds a client may take until its actor counts as lost; none: no timeout",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        default="fp32", description="tf32: float32 products of a GPU in TF32; bf16: autocast"
    )
    deterministic: bool = Field(default=True, description="deterministic algorithms on CUDA")

    @model_validator(mode="after")
    def _gpus(self) -> Self:
        if 0 < self.gpus_per_actor < SMALLEST_RESOURCE:
            raise ValueError(
                f"gpus_per_actor={self.gpus_per_actor}: must be 0, or at least {SMALLEST_RESOURCE}"
            )
        if (kind := self.accelerator_type) and not self.gpus_per_actor:
            raise ValueError(f"accelerator_type={kind}: needs engine.gpus_per_actor above 0")
        if self.precision == "tf32" and not self.gpus_per_actor:
            raise ValueError(
                "precision=tf32: needs engine.gpus_per_actor above 0, as a CPU has no TF32"
            )
        return self
