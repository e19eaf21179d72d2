"""Interface of a temperature: the T that the server sets, round by round, and its changes.

A loss of local training sees logits / T. A temperature goes with every method: the engine gives its
T to each pass over clients, to analyses, and to the loss that is evaluated at T. It is asked once a
round, on the committed state alone, so that a resumed run has the same temperatures.

Legend: K clients in all, n clients of an array, B batch, C classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from raysim.api.components import Acting, Registry, returns
from raysim.api.rules import Batch, Outputs, View
from raysim.api.selection import SIZES, History
from raysim.api.state import State, are_arrays
from raysim.api.withheld import COHORT, SINGLE, TIMES, closed
from raysim.numbers.arrays import Floats, Integers

CONSTANT = "choose temperature.name=constant"


@dataclass(frozen=True)
class TemperatureRound:
    """Input of `Temperature.choose`.

    Attributes:
        number: Rounds committed.
        temperature: `local.temperature`.
        samples: Training samples of each client [K]; may be withheld.
        history: Losses and participations of all clients in the committed rounds. It or
            its losses may be withheld.
        seconds: `seconds(clients)`: expected duration of clients' plain local training [n], in
            virtual seconds; without a clock, samples times local epochs. May be withheld.
        generator: `generator(purpose)`: a new source of draws at each call, keyed by seed, round
            and purpose.
        state: State of the temperature after the last committed round; read-only.
    """

    number: int
    temperature: float
    samples: Integers = field(metadata=closed(SIZES, SINGLE, instead=CONSTANT))
    history: History = field(
        metadata=closed("the participations and losses of single clients", COHORT, instead=CONSTANT)
    )
    seconds: Callable[[Any], Floats] = field(
        metadata=closed("the durations of clients", TIMES, instead=CONSTANT)
    )
    generator: Callable[[str], np.random.Generator]
    state: State = field(default_factory=dict)


def _is_temperature(value: Any) -> bool:
    return math.isfinite(value) and value > 0


class Temperature(Acting, ABC):
    """Temperature of local training; its fields are its settings."""

    _promises: ClassVar[tuple[str, ...]] = ("follows_clients",)
    _lasting: ClassVar[str] = "what lasts belongs in the temperature's state"
    varies: ClassVar[bool] = True
    """Whether T may differ from `local.temperature`: rounds then have a column `temperature`."""

    @property
    def follows_clients(self) -> bool:
        """True if T follows clients' reports, the model's scores, or the other clients.

        The default is True for a class with its own `update` or `by_client`.
        """
        kind = type(self)
        return (kind.update, kind.by_client) != (Temperature.update, Temperature.by_client)

    @property
    def reads(self) -> Mapping[str, str]:
        """Columns of rounds that `update` needs, each with the cause of its absence in words.

        The engine refuses a run without one of them before it starts.
        """
        return {}

    @returns("a dict of arrays of numbers", are_arrays)
    def init(self, clients: int) -> State:
        """Return the state before the first round of K clients."""
        return {}

    @abstractmethod
    @returns("a temperature, a number above 0", lambda returned, *_: _is_temperature(returned))
    def choose(self, round_: TemperatureRound) -> float:
        """Return the T of a round, above 0: for its clients, and for the loss evaluated at T."""

    @returns(
        "for each client a temperature, a number above 0",
        lambda returned, *_: all(map(_is_temperature, returned.values())),
    )
    def by_client(
        self, round_: TemperatureRound, temperature: float, clients: Sequence[int]
    ) -> Mapping[int, float]:
        """Return the T of clients of a pass, where it differs from the round's.

        Args:
            round_: The input of `choose`.
            temperature: The T that it returned.
            clients: The clients of the pass, ascending.
        """
        return {}

    def of_samples(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the T of each sample of a batch [B], for a method's criterion.

        As a rule of local training it is a function of tensors that branches on no value. No
        gradient flows through its result. In a class without it all samples have the client's T.

        Args:
            view: The client in training; `view.temperature` is its T.
            outputs: The network's outputs on the batch; logits [B, C] are not divided by T.
            batch: The batch.
        """
        raise NotImplementedError

    @returns("its state, a dict of arrays of numbers", are_arrays)
    def update(
        self, round_: TemperatureRound, temperature: float, row: Mapping[str, float | None]
    ) -> State:
        """Return the state after a round.

        Args:
            round_: The input of `choose`.
            temperature: The T that it returned.
            row: The round's row of `metrics.parquet`: `train_loss`, and if the round is evaluated
                by `evaluation.every`, `holdout_loss`, `test_accuracy` and so on. They are None in
                other rounds. This includes the last round, which a longer run would not evaluate.
        """
        return round_.state


TEMPERATURES: Registry[Temperature] = Registry("temperature", Temperature, default="constant")  # type: ignore[type-abstract]
