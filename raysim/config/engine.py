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
        default="ray",
        description="executor: a pool of Ray actors, or inline in the driver's process",
    )
    actors: Annotated[int, Field(ge=1, le=40_000)] | Literal["auto"] = Field(  # Ray's tested limit
        default="auto",
        description="number of actors, at most the clients of a round; auto: one a core that this"
        " process, or the cluster, may use, or as many as the GPUs fit. Ray's autoscaler"
        " starts nodes for a number, and the run begins with the actors that have room;"
        " without an autoscaler a note says if the number exceeds the cores",
    )
    cpus_per_actor: Annotated[float, Field(ge=SMALLEST_RESOURCE)] | Literal["auto"] = Field(
        default="auto",
        description="cores that an actor reserves; auto: min(1, CPUs / actors), and 1 where an"
        " autoscaler runs",
    )
    threads_per_actor: int = Field(
        default=1, ge=1, le=1024, description="torch threads of an actor, at most one a core"
    )
    gpus_per_actor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="fraction of a GPU, and of its memory, that an actor, a slot or an inline run"
        " reserves; 0: train on the CPU, with a line that says so where there are GPUs",
    )
    accelerator_type: RayName | None = Field(
        default=None, description="type of the GPUs to use, by Ray's name: A100, T4; none: any"
    )
    node_labels: NodeLabels = Field(
        default={},
        description='Ray\'s labels of the nodes to use, as JSON: {"ray.io/market-type": "spot"}',
    )
    vectorize: Annotated[int, Field(ge=0, le=MOST)] | Literal["auto"] = Field(
        default=0,
        description="stack size: clients that are trained at once as one stack of tensors; 0: one"
        " client at a time; auto: by GPU memory",
    )
    client_timeout: Annotated[float, Field(gt=0, le=MOST)] | None = Field(
        default=None,
        description="seconds that a client, an evaluated batch or a final sum may take; then the"
        " actor is ended and counts as lost; none: no timeout",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        default="fp32",
        description="fp32: float32, on a GPU too; tf32: products and convolutions of float32 on a"
        " GPU in TF32, which keeps 10 of 23 bits of their inputs; bf16: autocast to"
        " bfloat16. On a GPU the last two need an A100, an RTX 30 or a later one",
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
