"""Settings of evaluation: models, samples and rounds."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from raysim.api.class_metrics import metric_names
from raysim.api.rules import LocalSteps, LocalWork
from raysim.user_input.group import SettingsGroup
from raysim.user_input.limits import MOST, Count


class EvaluationSettings(SettingsGroup):
    """Evaluation of models: test set, holdout, training set, and single clients."""

    every: Count = Field(default=1, description="rounds between evaluations")
    test: bool = Field(
        default=True, description="evaluate the test set; false: it is not opened, nor clients' own"
    )
    test_samples: Literal["clients", "all"] = Field(
        default="clients",
        description="test set: the samples of the clients' keys, if natural clients have their own"
        " test samples; or all, which those of client_accuracy_... are also drawn from",
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
        description="fraction of each client's own samples that is kept from training and tests it;"
        " if clients have their own test samples, these do, and none is cut",
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
        " precision, recall, means over the classes with samples",
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
