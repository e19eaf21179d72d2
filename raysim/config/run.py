"""Settings of a run, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, Self

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
from raysim.api.component_fields import component_field, ordered_field
from raysim.api.components import call, called, explain, registries
from raysim.api.method import METHODS, Asynchrony, Method
from raysim.api.optimizer import OPTIMIZER
from raysim.api.own_loop import OWN_LOOP
from raysim.api.rules import Weighting
from raysim.attack import ATTACKS, Attack
from raysim.attack.none import NoAttack
from raysim.channel import STAGES, Stage
from raysim.clock import CLOCKS, Clock
from raysim.clock.none import NoClock
from raysim.combinations import check_rules
from raysim.config.engine import EngineSettings
from raysim.config.evaluation import EvaluationSettings
from raysim.config.local import LocalSettings
from raysim.config.overrides import apply_overrides
from raysim.errors import SettingsError
from raysim.samples.data import DATASETS, MODELS, PARTITIONS, Dataset, Model, Partition
from raysim.samples.participants import Participants, participants_of
from raysim.selection import SELECTIONS, Selection
from raysim.selection.uniform import Uniform
from raysim.server import SERVER_RULES, ServerRule
from raysim.server.mean import ModelMean
from raysim.temperature import TEMPERATURES, Temperature
from raysim.temperature.constant import Constant
from raysim.user_input import check_plain, dotted, user_path
from raysim.user_input.group import SettingsGroup
from raysim.user_input.limits import LARGEST, SEVERAL_SEEDS, Count, Seed

HINTS = {"seeds": SEVERAL_SEEDS}
"""Remedies for unknown settings without a similar name."""


def _path(setting: str, path: str, *, absolute: bool = False) -> str:
    checked_path = user_path(path, setting)
    return str(checked_path.absolute() if absolute else checked_path)


def _weights_file(path: str) -> str:
    if not path.endswith((".csv", ".parquet")):
        raise ValueError("must be a .csv or .parquet file of weights")
    return _path("weighting", path, absolute=True)


class Settings(SettingsGroup):
    """Everything that a run depends on."""

    dataset: Annotated[Dataset, *component_field(DATASETS)] = Field(
        description="samples to train on"
    )
    partition: Annotated[Partition, *component_field(PARTITIONS)] = Field(
        description="split of the samples over clients"
    )
    model: Annotated[Model, *component_field(MODELS)] = Field(description="network")
    method: Annotated[Method, *component_field(METHODS)] = Field(description="federated method")
    selection: Annotated[Selection, *component_field(SELECTIONS)] = Field(
        default=Uniform(), validate_default=True, description="which clients take part in a round"
    )
    channel: Annotated[Mapping[str, Stage], *ordered_field(STAGES, "channel")] = Field(
        default={}, description="stages that uploads go through, in order: channel.clip.norm=1"
    )
    downlink: Annotated[Mapping[str, Stage], *ordered_field(STAGES, "downlink")] = Field(
        default={},
        description="stages that the broadcast model goes through, in order:"
        " downlink.topk.fraction=0.05",
    )
    aggregation: Annotated[Aggregation, *component_field(AGGREGATIONS)] = Field(
        default=Mean(), description="how updates become one"
    )
    attack: Annotated[Attack, *component_field(ATTACKS)] = Field(
        default=NoAttack(),
        description="what bad clients do, with attack.fraction or attack.per_round",
    )
    clock: Annotated[Clock, *component_field(CLOCKS)] = Field(
        default=NoClock(), description="virtual clock: devices, or none"
    )
    temperature: Annotated[Temperature, *component_field(TEMPERATURES, "local.temperature")] = (
        Field(default=Constant(), description="T by round, client or sample")
    )
    clients: Count = Field(
        default=100, description="number of clients K; natural clients: all, if it is not given"
    )
    rounds: Count = Field(default=100, description="maximum number of rounds")
    fraction: float = Field(
        default=0.1, gt=0, le=1, description="fraction C of the clients that is sampled every round"
    )
    seed: Seed = Field(default=0, description="seed of all random streams")
    weighting: Literal[Weighting, "tokens"] | Annotated[str, AfterValidator(_weights_file)] = Field(
        default="examples",
        description="weights of the mean: examples weights a client by its samples, uniform weights"
        " all clients alike, tokens weights a client by its targets that count in the loss; or a"
        " CSV or Parquet file with the columns client and weight (any scale, above 0). File and"
        " tokens are refused where a method or aggregation.weighting=fixed weighs clients itself",
    )
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="stop when the main score, an accuracy, reaches this value"
    )
    patience: Count | None = Field(
        default=None,
        description="stop after so many rounds without improvement of the metric; at least"
        " evaluation.every, because only evaluated rounds count",
    )
    patience_metric: str | None = Field(
        default=None,
        description="column that patience and model_best.safetensors follow: a column of an"
        " evaluation, train_loss, objective, or one that a component declares; none: the"
        " main score, on held-out samples before others",
    )
    patience_mode: Literal["auto", "max", "min"] = Field(
        default="auto",
        description="whether larger (max) or smaller (min) values of it are better; auto: as the"
        " column is declared",
    )
    out: Annotated[str, AfterValidator(partial(_path, "out"))] | None = Field(
        default=None, description="run directory; none: a new one under runs/"
    )
    checkpoint_every: Count = Field(default=10, description="rounds between checkpoints")
    keep_clients: bool = Field(
        default=False,
        description="keep the networks of the last round's clients in client_models/, as training"
        " left them, before the channel and the aggregation; a file per client and round",
    )
    on_client_error: Literal["stop", "drop"] = Field(
        default="stop",
        description="stop: a client that fails in two processes (inline: twice) stops the run;"
        " drop: it is dropped and counted",
    )
    trace: bool = Field(
        default=False,
        description="record the time of each phase, as columns of metrics.parquet and a Perfetto"
        " trace",
    )
    tracker: Literal["mlflow", "wandb"] | None = Field(
        default=None, description="also log settings, rounds and summary there; changes no result"
    )
    analysis: Annotated[tuple[str, ...], BeforeValidator(analysis_names)] = Field(
        default=(),
        description="analyses of the evaluated rounds: analysis=cka,kl_activations; they change no"
        " bit of the model",
    )
    reference: Annotated[str, AfterValidator(partial(_path, "reference", absolute=True))] | None = (
        Field(
            default=None,
            description="run directory; cka, weight_divergence and norm_divergence compare with its"
            " model; recorded as an absolute path",
        )
    )
    start_from: (
        Annotated[str, AfterValidator(partial(_path, "start_from", absolute=True))] | None
    ) = Field(
        default=None,
        description="run directory, .safetensors file or torch's state_dict (.pth) whose tensors"
        " training starts from, in place of drawn weights; recorded as an absolute path",
    )
    local: LocalSettings = LocalSettings()
    server: Annotated[ServerRule, *component_field(SERVER_RULES)] = Field(
        default=ModelMean(),
        description="how the server moves the model, and the schedule of its rate",
    )
    evaluation: EvaluationSettings = EvaluationSettings()
    engine: EngineSettings = EngineSettings()

    @field_validator("selection")
    @classmethod
    def _of_method(cls, chosen: Selection, others: ValidationInfo) -> Selection:
        """Return the method's own selection, if it has one that does not contradict the given."""
        method: Method | None = others.data.get("method")  # None: it is refused already
        if method is None or (brought := method.selection) is None:
            return chosen
        unlike = [name for name, value in brought if getattr(chosen, name, value) != value]
        defaults = type(brought).model_fields
        changed = [name for name in unlike if getattr(chosen, name) != defaults[name].default]
        fits = chosen == Uniform() or type(chosen) is type(brought)
        return brought if fits and not changed else chosen

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
        has_rate = self.server.rate is not None
        key = "server.lr=" if has_rate else f"the rate of {called(self.method)}, "
        self.server.check_rate(self.rounds, self.server_lr, key)
        return self

    @property
    def server_rule(self) -> ServerRule:
        """The rule of the server: the method's if its name stands for a pair, or `server`."""
        return self.method.server_rule or self.server

    @property
    def server_lr(self) -> float | None:
        """The full learning rate for `server.schedule`: the rule's or the method's, if any."""
        return self.method.server_lr if self.server.rate is None else self.server.rate

    @property
    def data(self) -> Dataset:
        """The dataset that this run reads: of its seed and its model, if it follows these."""
        return call(call(self.dataset, Dataset.for_model, self.model), Dataset.for_run, self.seed)

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
        """Owners of clients' states besides the method: stages, optimizer, own loop."""
        local = self.local
        return (*self.stages, *[OPTIMIZER] * local.keep, *[OWN_LOOP] * bool(local.train))

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
