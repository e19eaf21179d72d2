"""Settings of local training on a client."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raysim.api.optimizer import build_optimizer
from raysim.api.own_loop import loop_of
from raysim.api.rates import RateSettings
from raysim.api.rules import Batching, LocalSteps, LocalWork
from raysim.optimizers import Optimizer
from raysim.user_input import as_typed
from raysim.user_input.limits import Count

OF_OPTIMIZERS = ("momentum", "nesterov", "betas", "alpha", "eps")
"""Settings of local training that some optimizers have; none: the optimizer's default."""
BALANCED = "balanced"
"""Value of `local.class_weights`: weights with the same sum over the training set by class."""
Weight = Annotated[float, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _pair(value: Any) -> Any:
    """Return a list of two numbers as a tuple."""
    if value is None or (_are_numbers(value) and len(value) == 2):
        return None if value is None else tuple(value)
    raise ValueError("must be a list of 2 numbers")


def _class_weights(value: Any) -> Any:
    """Return a list of numbers as a tuple."""
    if value in (None, BALANCED):
        return value
    if _are_numbers(value):
        return tuple(value)
    raise ValueError(f"must be a list of numbers, or {BALANCED}")


def _loop(value: str) -> str:
    """Return the name of a training loop, which can be imported."""
    loop_of(value)
    return value


def _are_numbers(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return is_list and all(isinstance(number, int | float) for number in value)


class LocalSettings(RateSettings):
    """Local training on a client."""

    _of: ClassVar[str] = "local"

    epochs: Count = Field(default=1, description="local epochs E; must be 1 with local.steps")
    steps: Count | None = Field(
        default=None,
        description="local steps of a client in place of epochs: local.epochs=1 local.steps=20;"
        " none: epochs",
    )
    batch_size: Count | Literal["full"] = Field(
        default=10, description="batch size B; full: all samples of a client"
    )
    accumulate: Count = Field(
        default=1,
        description="parts of a batch, whose gradients are added: the step is the whole batch's,"
        " and the activations of one part at a time are in memory",
    )
    drop_last: bool = Field(
        default=False,
        description="leave out the last batch of an epoch if it has fewer samples than B, as"
        " DataLoader(drop_last=True); a client with fewer samples than B keeps its one"
        " batch",
    )
    optimizer: str = Field(
        default="sgd", description="sgd, adam, adamw, adagrad, rmsprop, or package.module:Class"
    )
    lr: float = Field(default=0.1, gt=0, description="learning rate")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of sgd and rmsprop")
    nesterov: bool = Field(
        default=False, description="Nesterov momentum of sgd; needs momentum above 0"
    )
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_pair)] | None = Field(
        default=None,
        description="betas of adam and adamw: local.betas=[0.9,0.99]; none: 0.9 and 0.999",
    )
    alpha: Beta | None = Field(
        default=None, description="smoothing constant of rmsprop; none: 0.99"
    )
    eps: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="added to the root of squares by all optimizers except sgd; none: 1e-8, of"
        " adagrad 1e-10",
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="L2 penalty; of adamw the decoupled decay, which torch sets to 0.01",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="largest norm of the gradient of a step; none: not clipped"
    )
    train: Annotated[str, AfterValidator(_loop)] | None = Field(
        default=None,
        description="my_module:function, a loop of your own in place of these steps; none: these",
    )
    cost: float = Field(
        default=1.0, gt=0, description="work of a local step for the clock, in steps as counted"
    )
    keep: bool = Field(
        default=False,
        description="a client keeps its optimizer's state and continues with it in its next round",
    )
    tail_average: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of a client's last local steps whose models are averaged: 0.5 averages"
        " the last half; 0: the model after the last step",
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of a sample's target that is spread over all classes",
    )
    class_weights: Annotated[
        tuple[Weight, ...] | Literal["balanced"] | None, BeforeValidator(_class_weights)
    ] = Field(
        default=None,
        description="weight of each class in the loss: local.class_weights=[1,5]; balanced: by the"
        " classes' counts in the training set; none: equal",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="softmax temperature T, which divides the logits in the training loss, not in"
        " evaluation; test_loss_at_temperature is the test loss at T. With another"
        " temperature.name this is T of the first round, or of most clients",
    )

    @property
    def work(self) -> LocalWork:
        """Local epochs, or local steps in their place."""
        return self.epochs if self.steps is None else LocalSteps(self.steps)

    @property
    def work_in_words(self) -> str:
        """Number of local epochs, or of local steps in their place."""
        number, thing = (self.steps, "step") if self.steps else (self.epochs, "epoch")
        return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

    @property
    def batching(self) -> Batching:
        """Batches of an epoch."""
        return Batching(self.batch_size, self.drop_last)

    def build_optimizer(self) -> Optimizer:
        """Return the optimizer with its settings."""
        settings = [(name, getattr(self, name)) for name in OF_OPTIMIZERS]
        return build_optimizer(
            self.optimizer, tuple(setting for setting in settings if setting[1] is not None)
        )

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        if self.steps is not None and self.epochs != 1:
            raise ValueError(
                f"steps={self.steps}: takes the place of local.epochs={self.epochs}; with it, give"
                " local.epochs=1"
            )
        return self

    @model_validator(mode="after")
    def _some_class_has_weight(self) -> Self:
        if isinstance(self.class_weights, tuple) and not any(self.class_weights):
            raise ValueError(f"class_weights={as_typed(self.class_weights)}: must have one above 0")
        return self

    @model_validator(mode="after")
    def _optimizer_has_settings(self) -> Self:
        optimizer = self.build_optimizer()
        for name in OF_OPTIMIZERS:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default and name not in type(optimizer).model_fields:
                key = f"local.optimizer={self.optimizer}"
                raise ValueError(f"{name}={as_typed(value)}: {key} has no {name}")
        if self.keep and not optimizer.slots:
            raise ValueError(
                f"keep=true: local.optimizer={self.optimizer} keeps nothing at its settings"
            )
        return self

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true: needs local.momentum above 0")
        return self
