"""Interface of a selection of the clients that take part in a round.

A selection goes with every method and every policy of the virtual clock. It is asked once a round,
and in asynchronous rounds whenever clients may start; it draws from `Sampling.generator` alone, so
that a resumed run selects the same clients.

Legend: K clients in all, m clients a round, n clients of an array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from raysim.api.columns import Recording
from raysim.api.components import Registry, returns
from raysim.api.privacy import Draw
from raysim.api.rules import Trained, View, Weighting
from raysim.api.state import State, are_arrays
from raysim.api.withheld import COHORT, SINGLE, TIMES, closed
from raysim.errors import SettingsError
from raysim.numbers.arrays import Flags, Floats, Integers

LOSSES, SIZES = "the losses of single clients", "the sizes of clients"
UNIFORM = "choose selection.name=uniform"


def are_lines(lines: Any, *_: object) -> bool:
    """Return whether an object is a sequence of texts, and no text itself."""
    return not isinstance(lines, str) and all(isinstance(line, str) for line in lines)


@dataclass(frozen=True)
class History:
    """Participations of all clients in the committed rounds.

    Attributes:
        losses: Train loss of each client's last participation [K]; NaN before the first. May be
            withheld.
        last_round: Round of that participation, from 1 [K]; 0 before the first.
        times: Number of rounds in which each client has taken part [K].
    """

    losses: Floats = field(metadata=closed(LOSSES, SINGLE, instead=UNIFORM))
    last_round: Integers
    times: Integers

    @classmethod
    def empty(cls, clients: int) -> History:
        """Return the history before the first round of K clients."""
        zeros = (np.zeros(clients, dtype=np.int64) for _ in range(2))
        return cls(np.full(clients, np.nan), *zeros)

    def add(self, number: int, losses: Mapping[int, float]) -> None:
        """Add the train losses of the clients that took part in a round, counted from 1."""
        for client, loss in losses.items():
            self.losses[client] = loss
            self.last_round[client] = number
            self.times[client] += 1

    def for_reading(self) -> History:
        """Return this history with read-only arrays."""
        history = History(self.losses.view(), self.last_round.view(), self.times.view())
        for view in (history.losses, history.last_round, history.times):
            view.flags.writeable = False
        return history


def all_available(clients: Any) -> Flags:
    """Return True for each client [n]."""
    return np.ones(len(clients), dtype=np.bool_)


@dataclass(frozen=True)
class Sampling:
    """Input of `Selection.select`.

    A selection may not read a withheld field: reading it ends the run in one line.

    Attributes:
        number: Rounds committed.
        clients: K, the number of clients in all.
        fraction: The run's `fraction`.
        size: m, the clients of a round; in asynchronous rounds, the clients that may start.
        wanted: Number of clients to select: m + `clock.extra`.
        samples: Training samples of each client [K]; may be withheld.
        generator: `generator()`, `generator(purpose)`: a new source of draws at each call, keyed by
            seed, round and purpose.
        seconds: `seconds(clients)`: expected duration of clients' plain local training [n], in
            virtual seconds; without a clock, samples times local epochs. May be withheld.
        available: `available(clients)`: whether clients are available now [n].
        waits: Whether the server waits for selected clients that are not available now.
        members: In asynchronous rounds, the clients of the starting tier, ascending.
        busy: In asynchronous rounds, the clients that must not be selected.
        state: State of the selection after the last committed round.
        history: Participations of all clients; read it as `losses`, `last_round` and `times`.
    """

    number: int
    clients: int
    fraction: float
    size: int
    wanted: int
    samples: Integers = field(metadata=closed(SIZES, SINGLE, instead=UNIFORM))
    generator: Callable[..., np.random.Generator]
    seconds: Callable[[Any], Floats] = field(
        metadata=closed("the durations of clients", TIMES, instead=UNIFORM)
    )
    available: Callable[[Any], Flags] = all_available
    waits: bool = True
    members: Integers | None = None
    busy: Collection[int] = frozenset()
    state: State = field(default_factory=dict)
    history: History | None = None

    @property
    def losses(self) -> Floats:
        """Train loss of each client's last committed participation [K]; NaN before the first."""
        return self._known.losses

    @property
    def last_round(self) -> Integers:
        """Round of each client's last committed participation, from 1 [K]; 0 before the first."""
        return self._known.last_round

    @property
    def times(self) -> Integers:
        """Number of committed rounds in which each client has taken part [K]."""
        return self._known.times

    @property
    def _known(self) -> History:
        if self.history is None:
            raise SettingsError(
                "reads results in asynchronous rounds, which are planned before there are any; its"
                " class must leave `plans_ahead` False"
            )
        return self.history

    @cached_property
    def candidates(self) -> Integers:
        """Clients that may be selected, ascending [n]; those away only if the server waits.

        Costs time in proportion to K.
        """
        clients = np.arange(self.clients) if self.members is None else self.members
        clients = clients[~np.isin(clients, [*self.busy])] if self.busy else clients
        return clients if self.waits else clients[self.available(clients)]


@dataclass(frozen=True)
class Results:
    """Results of a round's clients that count; each may be withheld.

    Attributes:
        clients: The clients, ascending [n].
        losses: Their train losses [n].
        reports: The numbers of `Selection.report`, by name [n]; NaN for a client without one.
    """

    clients: Integers = field(
        metadata=closed("the clients of a round that have arrived", COHORT, instead=UNIFORM)
    )
    losses: Floats = field(metadata=closed(LOSSES, SINGLE, instead=UNIFORM))
    reports: Mapping[str, Floats] = field(
        metadata=closed("what single clients report", SINGLE, instead=UNIFORM)
    )


class Selection(Recording, ABC):
    """Selection of clients; its fields are its settings."""

    _lasting: ClassVar[str] = "what lasts belongs in the selection's state"
    _promises: ClassVar[tuple[str, ...]] = ("draw", "plans_ahead")
    needs_sample_losses: ClassVar[bool] = False
    """Whether the task's loss must be a mean over samples, not one of whole batches."""
    plans_ahead: ClassVar[bool] = False
    """Whether it suits asynchronous rounds, which are planned before results: it uses neither
    results nor state."""
    draw: ClassVar[Draw | None] = None
    """The kind of draw, if it depends on nothing that clients have or do; None: a draw that cannot
    be accounted for differential privacy. With "poisson", C*K clients are expected in a round, else
    m. A subclass that overrides `select`, or other code, must state it again, or has None."""
    may_be_empty: ClassVar[bool] = False
    """Whether it may select any number of clients, or none: a round without clients runs no
    pass, leaves the model as it is, and takes only the virtual time until one is available."""

    @returns("a dict of arrays of numbers", are_arrays)
    def init(self, clients: int) -> State:
        """Return the state before the first round of K clients."""
        return {}

    @returns("a sequence of lines", are_lines)
    def notes(self, samples: Integers, size: int, weighting: Weighting) -> Sequence[str]:
        """Return notes on surprises, in lines that are shown before the run.

        Args:
            samples: Training samples of each client that may take part [K].
            size: m, the clients of a round.
            weighting: Weights of the mean of a round.
        """
        return ()

    @abstractmethod
    @returns(
        "a list of clients' numbers",
        lambda returned, *_: all(int(client) == client for client in returned),
    )
    def select(self, sampling: Sampling) -> Sequence[int]:
        """Return distinct clients: `sampling.wanted`, or all candidates if they are fewer.

        Their order matters only for `clock.policy=over_selection`, where it breaks ties: among
        clients that arrive at the same time, earlier ones count first. Clients beyond m are extra.
        """

    def report(self, view: View, trained: Trained) -> Mapping[str, float]:
        """Return numbers that a client reports after its training, for `update`.

        They are columns of `clients.parquet` and cost no bytes.
        """
        return {}

    @returns(
        "its state, a dict of arrays of numbers, and a dict of metrics",
        lambda pair, *_: are_arrays(pair[0]) and isinstance(pair[1], Mapping),
    )
    def update(
        self, sampling: Sampling, selected: Sequence[int], results: Results
    ) -> tuple[State, Mapping[str, float]]:
        """Return the state after a round, and metrics of the round, for `metrics.parquet`.

        Args:
            sampling: The input of `select`.
            selected: The clients that it returned.
            results: Results of the round; if the round was lost, of its passes before.
        """
        return sampling.state, {}


SELECTIONS: Registry[Selection] = Registry("selection", Selection, default="uniform")  # type: ignore[type-abstract]
