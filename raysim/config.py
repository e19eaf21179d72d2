"""Settings: frozen, validated, read from presets, files and `dotted.key=value` overrides.

Wrong settings are rejected here, before anything starts, with one line that names the setting, its
value and the allowed range.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from raysim.aggregation import AGGREGATIONS, Aggregation
from raysim.aggregation.mean import Mean
from raysim.analysis import analysis_names
from raysim.api.channel import with_effect
from raysim.api.class_metrics import metric_names
from raysim.api.component_fields import component_field, ordered_field
from raysim.api.components import call, called, explain, registries
from raysim.api.method import METHODS, Asynchrony, Method
from raysim.api.optimizer import OPTIMIZER, build_optimizer
from raysim.api.rates import RateSettings
from raysim.api.rules import Batching, LocalSteps, LocalWork, Weighting
from raysim.attack import ATTACKS, Attack
from raysim.attack.none import NoAttack
from raysim.channel import STAGES, Stage
from raysim.clock import CLOCKS, Clock
from raysim.clock.none import NoClock
from raysim.combinations import check_rules
from raysim.errors import SettingsError, visible
from raysim.optimizers import Optimizer
from raysim.samples.data import DATASETS, MODELS, PARTITIONS, Dataset, Model, Partition
from raysim.samples.participants import Participants, participants_of
from raysim.selection import SELECTIONS, Selection
from raysim.selection.uniform import Uniform
from raysim.server import SERVER_RULES, ServerRule
from raysim.server.mean import ModelMean
from raysim.temperature import TEMPERATURES, Temperature
from raysim.temperature.constant import Constant
from raysim.user_input import (
    RepeatedKeyError,
    as_typed,
    check_plain,
    dotted,
    or_none,
    parse_json,
    user_path,
)
from raysim.user_input.group import SettingsGroup
from raysim.user_input.limits import (
    LARGEST,
    MOST,
    SEVERAL_SEEDS,
    SMALLEST_RESOURCE,
    Count,
    NodeLabels,
    RayName,
    Seed,
)

OF_OPTIMIZERS = ("momentum", "nesterov", "betas", "alpha", "eps")
"""Settings of local training that some optimizers have; none: the optimizer's default."""
BALANCED = "balanced"
"""Value of `local.class_weights`: weights whose sum over the training set is the same by class."""
Weight = Annotated[float, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
HINTS = {"seeds": SEVERAL_SEEDS}
"""What to write in place of unknown settings, where it is no similar name."""


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


def _are_numbers(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return is_list and all(isinstance(each, int | float) for each in value)


class LocalSettings(RateSettings):
    """Local training on a client."""

    _of: ClassVar[str] = "local"

    epochs: Count = Field(default=1, description="local epochs E; 1 with local.steps")
    steps: Count | None = Field(
        default=None, description="local steps of a client in place of epochs; none: epochs"
    )
    batch_size: Count | Literal["full"] = Field(default=10, description='batch size B, or "full"')
    drop_last: bool = Field(
        default=False, description="leave out an epoch's last batch if it is smaller than B"
    )
    optimizer: str = Field(
        default="sgd", description="sgd, adam, adamw, adagrad, rmsprop, or package.module:Class"
    )
    lr: float = Field(default=0.1, gt=0, description="learning rate")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="of sgd and rmsprop")
    nesterov: bool = Field(default=False, description="Nesterov momentum; needs momentum above 0")
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_pair)] | None = Field(
        default=None, description="of adam and adamw; none: 0.9 and 0.999"
    )
    alpha: Beta | None = Field(default=None, description="of rmsprop; none: 0.99")
    eps: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="added to the root of squares; none: 1e-8, of adagrad 1e-10"
    )
    weight_decay: float = Field(
        default=0.0, ge=0, description="L2 penalty; of adamw decoupled (torch's default is 0.01)"
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="largest norm of the loss's gradient; none: not clipped"
    )
    keep: bool = Field(
        default=False, description="a client keeps its optimizer's state between its rounds"
    )
    tail_average: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of a client's last local steps whose models are averaged; 0: the last",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, le=1, description="share of a target that is spread over all classes"
    )
    class_weights: Annotated[
        tuple[Weight, ...] | Literal["balanced"] | None, BeforeValidator(_class_weights)
    ] = Field(
        default=None,
        description="weight of each class in the loss; balanced: by its samples; none: equal",
    )
    temperature: float = Field(
        default=1.0, gt=0, description="T, divides the logits in the training loss only"
    )

    @property
    def work(self) -> LocalWork:
        """Local epochs, or local steps in their place."""
        return self.epochs if self.steps is None else LocalSteps(self.steps)

    @property
    def batching(self) -> Batching:
        """Batches of an epoch."""
        return Batching(self.batch_size, self.drop_last)

    def build_optimizer(self) -> Optimizer:
        """Return the optimizer with its settings."""
        given = [(name, getattr(self, name)) for name in OF_OPTIMIZERS]
        return build_optimizer(self.optimizer, tuple(each for each in given if each[1] is not None))

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
            raise ValueError(f"keep=true: local.optimizer={self.optimizer} so set keeps nothing")
        return self

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true: needs local.momentum above 0")
        return self


class EvaluationSettings(SettingsGroup):
    """Evaluation of the global model: test set, holdout, training set, and single clients."""

    every: Count = Field(default=1, description="rounds between evaluations")
    test: bool = Field(
        default=True, description="evaluate the test set; false: it is not opened, nor clients' own"
    )
    test_samples: Literal["clients", "all"] = Field(
        default="clients",
        description="test set: the samples of the clients' keys where natural clients have test"
        " samples of their own; or all, from which those of client_accuracy_... are drawn, too",
    )
    holdout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of each client's samples that is kept from training and evaluated",
    )
    local_test: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of each client's own samples that is kept from training, on which it"
        " is tested; where clients have test samples of their own, these, and none is cut",
    )
    local_test_cut: Literal["stratified", "random"] = Field(
        default="stratified",
        description="cut of local_test: by class, where targets are class numbers; or at random",
    )
    new_clients: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of the clients that is kept out of training, and tested as new ones",
    )
    finetune_epochs: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=0,
        description="epochs of plain local training of the deployed model before a further test of"
        " each client; 0: none",
    )
    finetune_steps: Count | None = Field(
        default=None,
        description="steps of it in place of evaluation.finetune_epochs; none: epochs",
    )
    when: Literal["before", "after"] = Field(
        default="before",
        description="models that clients deploy: as they are before the local training of a round,"
        " or after it",
    )
    train_set: bool = Field(
        default=False,
        description="evaluate the clients' training samples, too, all together: train_set_...",
    )
    clients: bool = Field(
        default=False,
        description="evaluate clients one by one: on the test samples of their keys where natural"
        " clients have any (evaluation.test_samples=clients), or else on some in their class"
        " proportions",
    )
    trained: bool = Field(
        default=False,
        description="evaluate the models of a round's clients as they were trained, before the"
        " aggregation, on their samples of evaluation.clients",
    )

    metrics: Annotated[tuple[str, ...], BeforeValidator(metric_names)] = Field(
        default=(),
        description="further metrics of a classification, of each evaluated set: auc, f1,"
        " precision, recall, means over the classes that have samples",
    )

    @model_validator(mode="after")
    def _clients_have_tests(self) -> Self:
        if self.clients and not self.test:
            raise ValueError("clients=true: needs evaluation.test=true")
        if self.trained and not self.clients:
            raise ValueError("trained=true: needs evaluation.clients=true")
        return self

    @model_validator(mode="after")
    def _clients_have_own_tests(self) -> Self:
        if self.finetune_steps is not None and self.finetune_epochs:
            raise ValueError(
                f"finetune_steps={self.finetune_steps}: takes the place of"
                f" evaluation.finetune_epochs={self.finetune_epochs}; give one of the two"
            )
        for name in ("finetune_epochs", "finetune_steps", "new_clients"):
            if (value := getattr(self, name)) and not self.local_test:
                raise ValueError(f"{name}={value}: needs evaluation.local_test above 0")
        scored = self.local_test or self.holdout or self.train_set or self.clients
        if self.when == "after" and not scored:
            raise ValueError("when=after: needs evaluation.local_test above 0")
        return self

    @property
    def finetuning(self) -> LocalWork:
        """Epochs or steps of fine-tuning; false for none."""
        return (
            self.finetune_epochs if self.finetune_steps is None else LocalSteps(self.finetune_steps)
        )


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
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast")
    deterministic: bool = Field(default=True, description="deterministic algorithms on CUDA")

    @model_validator(mode="after")
    def _gpus(self) -> Self:
        if 0 < self.gpus_per_actor < SMALLEST_RESOURCE:
            raise ValueError(
                f"gpus_per_actor={self.gpus_per_actor}: must be 0, or at least {SMALLEST_RESOURCE}"
            )
        if (kind := self.accelerator_type) and not self.gpus_per_actor:
            raise ValueError(f"accelerator_type={kind}: needs engine.gpus_per_actor above 0")
        return self


def _path(setting: str, path: str, *, absolute: bool = False) -> str:
    found = user_path(path, setting)
    return str(found.absolute() if absolute else found)


def _weights_file(path: str) -> str:
    if not path.endswith((".csv", ".parquet")):
        raise ValueError("must be a .csv or .parquet file of weights")
    return _path("weighting", path, absolute=True)


class Settings(SettingsGroup):
    """Everything that a run depends on."""

    dataset: Annotated[Dataset, *component_field(DATASETS)]
    partition: Annotated[Partition, *component_field(PARTITIONS)]
    model: Annotated[Model, *component_field(MODELS)]
    method: Annotated[Method, *component_field(METHODS)]
    selection: Annotated[Selection, *component_field(SELECTIONS)] = Field(
        default=Uniform(), validate_default=True
    )
    channel: Annotated[Mapping[str, Stage], *ordered_field(STAGES, "channel")] = Field(
        default={}, description="stages that uploads go through, in order, by name"
    )
    downlink: Annotated[Mapping[str, Stage], *ordered_field(STAGES, "downlink")] = Field(
        default={}, description="stages that the broadcast model goes through, in order, by name"
    )
    aggregation: Annotated[Aggregation, *component_field(AGGREGATIONS)] = Mean()
    attack: Annotated[Attack, *component_field(ATTACKS)] = NoAttack()
    clock: Annotated[Clock, *component_field(CLOCKS)] = NoClock()
    temperature: Annotated[Temperature, *component_field(TEMPERATURES, "local.temperature")] = (
        Constant()
    )
    clients: Count = Field(
        default=100, description="number of clients K; natural clients: all, if it is not given"
    )
    rounds: Count = Field(default=100, description="maximum number of rounds")
    fraction: float = Field(default=0.1, gt=0, le=1, description="fraction C of clients a round")
    seed: Seed = Field(default=0, description="seed of all random streams")
    weighting: Weighting | Annotated[str, AfterValidator(_weights_file)] = Field(
        default="examples",
        description="weights of the mean: samples, all alike, or those of a table, CSV or Parquet:"
        " client, weight",
    )
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="stop when the main score, an accuracy, reaches this value"
    )
    patience: Count | None = Field(
        default=None, description="stop after so many rounds in which the metric has not improved"
    )
    patience_metric: str | None = Field(
        default=None,
        description="column of rounds, of patience and model_best.safetensors; none: the main"
        " score, on held-out samples before others",
    )
    patience_mode: Literal["auto", "max", "min"] = Field(
        default="auto",
        description="whether larger or smaller values of it are better; auto: as it is declared",
    )
    out: Annotated[str, AfterValidator(partial(_path, "out"))] | None = Field(
        default=None, description="run directory; none: a new one under runs/"
    )
    checkpoint_every: Count = Field(default=10, description="rounds between checkpoints")
    keep_clients: bool = Field(
        default=False,
        description="keep the networks of the last round's clients as they have trained them",
    )
    on_client_error: Literal["stop", "drop"] = Field(
        default="stop", description="a client that failed twice stops the run, or is dropped"
    )
    trace: bool = Field(default=False, description="record the time of a round's phases")
    tracker: Literal["mlflow", "wandb"] | None = Field(
        default=None, description="log settings, rounds and summary there, too"
    )
    analysis: Annotated[tuple[str, ...], BeforeValidator(analysis_names)] = Field(
        default=(), description="measurements of evaluated rounds; they change no bit of the model"
    )
    reference: Annotated[str, AfterValidator(partial(_path, "reference", absolute=True))] | None = (
        Field(default=None, description="run directory with whose model analyses compare")
    )
    start_from: (
        Annotated[str, AfterValidator(partial(_path, "start_from", absolute=True))] | None
    ) = Field(
        default=None,
        description="run directory, .safetensors file or torch's state_dict (.pth) with whose"
        " tensors training starts",
    )
    local: LocalSettings = LocalSettings()
    server: Annotated[ServerRule, *component_field(SERVER_RULES)] = ModelMean()
    evaluation: EvaluationSettings = EvaluationSettings()
    engine: EngineSettings = EngineSettings()

    @field_validator("selection")
    @classmethod
    def _of_method(cls, given: Selection, others: ValidationInfo) -> Selection:
        """Return the method's own selection, if it has one that does not contradict the given."""
        method: Method | None = others.data.get("method")  # None: it is refused already
        if method is None or (own := method.selection) is None:
            return given
        unlike = [name for name, value in own if getattr(given, name, value) != value]
        defaults = type(own).model_fields
        changed = [name for name in unlike if getattr(given, name) != defaults[name].default]
        fits = given == Uniform() or type(given) is type(own)
        return own if fits and not changed else given

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        check_rules(self)
        return self

    @model_validator(mode="after")
    def _patience_sees_evaluations(self) -> Self:
        every = self.evaluation.every
        if self.patience is not None and self.patience < every:
            raise ValueError(f"patience={self.patience}: must be at least evaluation.every={every}")
        return self

    @model_validator(mode="after")
    def _rates_suit_rounds(self) -> Self:
        self.local.check_rate(self.rounds, self.local.lr, "local.lr=")
        own = self.server.rate is not None
        key = "server.lr=" if own else f"the rate of {called(self.method)}, "
        self.server.check_rate(self.rounds, self.server_lr, key)
        return self

    @property
    def server_rule(self) -> ServerRule:
        """The rule of the server: that of a method which is a name for a pair, or `server`."""
        return self.method.server_rule or self.server

    @property
    def server_lr(self) -> float | None:
        """The full learning rate that `server.schedule` has: the rule's or the method's, if any."""
        return self.method.server_lr if self.server.rate is None else self.server.rate

    @property
    def data(self) -> Dataset:
        """The dataset that this run reads: of its seed, if it follows that."""
        return call(self.dataset, Dataset.for_run, self.seed)

    @property
    def stages(self) -> Mapping[str, Stage]:
        """The stages of the channel that have an effect, in order."""
        return with_effect(self.channel)

    @property
    def down_stages(self) -> Mapping[str, Stage]:
        """The stages of the down-link that have an effect, in order."""
        return with_effect(self.downlink)

    @property
    def keepers(self) -> tuple[str, ...]:
        """Owners of what clients keep, besides the method: stages, and the optimizer."""
        return (*self.stages, *([OPTIMIZER] if self.local.keep else []))

    @property
    def participants(self) -> Participants:
        """The clients that may take part in training."""
        return participants_of(self.clients, self.evaluation.new_clients, self.seed)

    @property
    def cohort_size(self) -> int:
        """Clients per round, m = max(round(C*K), 1), of K that may take part."""
        return max(round(self.fraction * len(self.participants)), 1)

    @property
    def expected_cohort(self) -> float:
        """Expected number of clients of a round: C*K of Poisson cohorts, m of others."""
        if self.selection.draw == "poisson":
            return self.fraction * len(self.participants)
        return float(self.cohort_size)

    @property
    def asynchrony(self) -> Asynchrony | None:
        """Overlap of rounds, as the method states it; None if they do not overlap."""
        return call(self.method, Method.asynchrony, self.cohort_size)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as nested plain values, as written to `config.json`."""
        return self.model_dump(mode="json")

    def override(self, overrides: Mapping[str, Any]) -> Settings:
        """Return new settings with dotted keys replaced; naming a component resets its fields.

        Raises:
            SettingsError: a key is unknown, or a value has the wrong type or range.
        """
        raw = self.to_dict()
        if self.method.selection is not None:  # goes with the method, which brings it again
            del raw["selection"]
        return parse(apply_overrides(raw, overrides))


def parse(raw: Mapping[str, Any]) -> Settings:
    """Validate nested plain values.

    Raises:
        SettingsError: a setting is wrong; the message names it, its value and the allowed range.
    """
    check_plain(raw)
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        elsewhere = partial(_of_components, raw)
        line = explain(error, Settings, hints=HINTS, elsewhere=elsewhere)
        raise SettingsError(line) from error
    for key, value in dotted(settings.to_dict()).items():
        if isinstance(value, float) and abs(value) > LARGEST:
            raise SettingsError(
                f"{key}={value:g}: must be at most {LARGEST:.4g}, the largest number in float32"
            )
    return settings


def _of_components(raw: Mapping[str, Any], name: str) -> list[str]:
    """Return the settings of a name that components of a run have, by dotted key."""
    keys = []
    for registry in registries():
        with suppress(Exception):  # no such component; the first error is of another setting
            component = registry.get(raw[registry.kind]["name"])
            keys += [f"{registry.kind}.{name}"] if name in component.model_fields else []
    return keys


def apply_overrides(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with dotted keys replaced.

    A component's name is applied before its fields, and a group before its keys; else they are
    applied as they are given, a group where it is first mentioned. So a new name of an ordered
    mapping stands behind those that are there, in the order given. Where a name names another
    component, the fields of the one before are dropped.
    """
    given = list(overrides)
    scopes = {k: k.removesuffix("name") if k.endswith(".name") else f"{k}." for k in given}

    def order(key: str) -> tuple[int, int]:
        inside = [k for k in given if k == key or k.startswith(scopes[key])]
        outside = [k for k in given if k != key and key.startswith(scopes[k])]
        return given.index(inside[0]), len(outside)

    result = dict(raw)
    for key in sorted(given, key=order):
        *groups, last = key.split(".")
        node = result
        for group in groups:
            inner = node.get(group, {})
            if not isinstance(inner, Mapping):
                raise SettingsError(f"{key}: {group} is a value, not a group of settings")
            node[group] = node = dict(inner)  # what is given stays as it is
        if last == "name" and node.get("name") != overrides[key]:
            node.clear()
        node[last] = overrides[key]
    return result


def parse_override(text: str) -> tuple[str, Any]:
    """Split `dotted.key=value`; parse the value as JSON, `none` as None, else as a string.

    Raises:
        SettingsError: there is no `=`, or a key of the value is given twice.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"{visible(repr(text))}: overrides are written dotted.key=value")
    try:
        return key.strip(), parse_json(value)
    except RepeatedKeyError as error:
        raise SettingsError(f"{visible(text)}: {error}") from error
    except ValueError:  # no JSON, or a number or nesting that no setting has
        return key.strip(), or_none(value.strip())
