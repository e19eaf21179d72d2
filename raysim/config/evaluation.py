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
        default=True,
        description="evaluate the test set; false: neither the test set nor the clients' own tests"
        " are opened",
    )
    test_samples: Literal["clients", "all"] = Field(
        default="clients",
        description="test set of natural clients that have test samples: clients, the samples of"
        " the clients' keys (writers, roles); or all samples, from which those of"
        " client_accuracy_... are drawn too",
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
        description="fraction of each client's own samples that is kept from training and tests"
        " that client; clients that have test samples of their own are tested on these,"
        " and none is cut",
    )
    local_test_cut: Literal["stratified", "random"] = Field(
        default="stratified",
        description="cut of local_test: stratified by class, where targets are class numbers; or"
        " random, as PFLlib cuts",
    )
    new_clients: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of the clients, drawn by the seed, that never trains and is tested as"
        " new clients; fraction is a share of the others",
    )
    finetune_epochs: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=0,
        description="epochs of plain local training of the model that a client deploys, before a"
        " further test of it; the fine-tuned model is dropped; 0: none",
    )
    finetune_steps: Count | None = Field(
        default=None,
        description="steps of fine-tuning in place of epochs: evaluation.finetune_steps=3; none:"
        " epochs",
    )
    when: Literal["before", "after"] = Field(
        default="before",
        description="models that clients deploy: before the local training of a round, the newest"
        " broadcast with the state that each client has kept; or after it",
    )
    train_set: bool = Field(
        default=False,
        description="also evaluate the clients' training samples, all together: columns"
        " train_set_...",
    )
    clients: bool = Field(
        default=False,
        description="evaluate clients one by one: natural clients (by_key, natural) on the test"
        " samples of their key, others on test samples in their class proportions",
    )
    trained: bool = Field(
        default=False,
        description="evaluate the models of a round's clients as training left them, before the"
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
