"""Base of an analysis, and the round that it measures.

Legend: K clients, N samples, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import nn

from raysim.api.columns import Column
from raysim.api.components import Component
from raysim.api.rules import Batch, Outputs, Trained, View
from raysim.api.scoring import FORWARD_ROWS
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Groups, Tensors

Columns = Mapping[str, Array]
"""Columns of a table [n] or [n, ...]; none for no rows."""
ClientPart = Callable[[View, Trained], Tensors]
"""Measures a client in a worker, as its training ends; returns small tensors by name."""
Need = Literal[
    "stages",
    "classes",
    "predicted_classes",
    "client_accuracy",
    "language",
    "real_inputs",
    "real_model",
    "two_inputs",
]
Extra = Literal["probe", "own_test"]


class Measure(Protocol):
    """Runs a client part on clients, with the global model, without training."""

    def __call__(
        self,
        part: ClientPart,
        clients: Sequence[int],
        groups: Groups = ...,
        extras: tuple[Extra, ...] = ...,
    ) -> Mapping[int, Tensors]:
        """Return per client its values; `groups` are broadcast in addition to "model"."""
        ...


class Train(Protocol):
    """Runs a round of the method on one client, and drops the result."""

    def __call__(self, part: ClientPart, client: int, epochs: int) -> Mapping[int, Tensors]:
        """Return the values of the client part after the last training; it may use `own_test`."""
        ...


@dataclass(frozen=True, kw_only=True)
class MeasuredRound:
    """Input of `Analysis.rows`: an evaluated round.

    Attributes:
        number: The round, counted from 1.
        first: Whether it is the first evaluated round.
        lr: Its learning rate.
        cohort: The clients that were trained, ascending.
        everyone: The clients that may take part, ascending.
        network: The network's structure, without values, in evaluation mode.
        initial: The deployed tensors before the first round.
        before: The deployed tensors before the round.
        after: The deployed tensors after it.
        reference: The model of the run that `reference` names; None without one.
        trained: Per client, the values of the client part.
        probe: Some test samples, the same in every round: inputs "x" and targets "y".
        predicted: Predictions [N] of the test set.
        targets: Targets [N] of the test set.
        accuracy: Returns per client the accuracy of the global model, not of the client's deployed
            model, on the client's own test samples.
        accuracy_before: Returns the same for the global model before the round.
        class_counts: Returns clients [n] and their samples per class [n, C].
        end_tokens: Returns the tokens that end a text.
        as_text: Returns rows of tokens [n, T] as texts.
        new_clients: Returns clients that never took part, at most the given number.
        measure: Runs a client part on the global model.
        train: Runs a round of the method on one client.
    """

    number: int
    first: bool
    lr: float
    cohort: tuple[int, ...]
    everyone: Sequence[int]
    network: nn.Module
    initial: Tensors
    before: Tensors
    after: Tensors
    reference: Tensors | None
    trained: Mapping[int, Tensors]
    probe: Tensors
    predicted: Array
    targets: Array
    accuracy: Callable[[], Mapping[int, float]]
    accuracy_before: Callable[[], Mapping[int, float]]
    class_counts: Callable[[], tuple[Array, Array]]
    end_tokens: Callable[[], Sequence[int]]
    as_text: Callable[[Array], Sequence[str]]
    new_clients: Callable[[int], Sequence[int]]
    measure: Measure
    train: Train


class Analysis(Component, ABC):
    """A measurement of a run; see `raysim.analysis`."""

    needs: ClassVar[tuple[Need, ...]] = ()
    """Properties of the run without which it cannot be measured."""
    takes_reference: ClassVar[bool] = False
    """Whether it compares with the run that `reference` names."""
    extras: ClassVar[tuple[Extra, ...]] = ()
    """Samples for the client part: `view.broadcast["probe"]`, `own_test(view)`."""
    columns: ClassVar[Sequence[Column]] = ()
    """Declarations of its columns: which of two values is better, and their unit."""
    classes: ClassVar[tuple[str, ...]] = ()
    """Its columns of class numbers; `NAME_name` has the names, where the data has any."""

    def client_part(self, network: nn.Module) -> ClientPart | None:
        """Return the measurement of a client at the end of its training; None for no measurement.

        Args:
            network: The network's structure, as `MeasuredRound.network`.
        """
        return None

    @abstractmethod
    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return the rows of a round, without the column `round`.

        Accuracies, `measure` and `train` run on the workers.
        """


def outputs(view: View, tensors: Tensors, x: torch.Tensor) -> Iterator[Outputs]:
    """Yield the outputs of the network with the given tensors, for inputs [N, ...] in batches."""
    for rows in torch.split(x, FORWARD_ROWS):
        yield view.at(tensors, rows.clone())  # a network may change its inputs


def at_equal_distances(samples: Batch, most: int) -> Batch:
    """Return at most `most` samples, at equal distances."""
    count = len(samples.y)
    chosen = torch.linspace(0, count - 1, min(count, most)).long().to(samples.y.device)
    return samples._replace(
        x=samples.x.index_select(0, chosen), y=samples.y.index_select(0, chosen)
    )


def own_test(view: View) -> Tensors:
    """Return the client's own test samples, inputs "x" and targets "y"; none if it has none."""
    position = int(view.personal["own_test"]["position"])
    if position < 0:
        return {}
    samples = view.broadcast["own_test"]
    rows = slice(*samples["offsets"][position : position + 2].tolist())
    return {"x": samples["x"][rows], "y": samples["y"][rows]}
