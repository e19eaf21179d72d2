"""State of a run after a round: all that the next round goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from raysim.api.method import ServerState
from raysim.api.selection import History
from raysim.api.state import State
from raysim.numbers.tensors import Groups, Tensors
from raysim.storage.client_states import Versions
from raysim.storage.in_flight import InFlight


class Best(NamedTuple):
    """Best model of a run's rounds.

    Attributes:
        number: Its round, counted from 1.
        model: The deployed tensors; None where it is the state's own round.
    """

    number: int
    model: Tensors | None


@dataclass(frozen=True)
class RunState:
    """State of a run after a committed round.

    Attributes:
        number: Rounds committed; the number of the next round.
        state: The server's state.
        history: Participations of the clients.
        versions: Version of each client's state [K, 3], or NEVER.
        stack_size: Clients that are trained stacked; None where a run has not decided it yet.
        in_flight: Clients under way, where rounds are asynchronous.
        components: State of each component that keeps one, by the setting that it belongs to.
        downlink: The down-link's state on the server: the model that clients have, and bytes.
        ticks: Virtual time since the start of the run.
        costs: FLOPs that the virtual clock has counted, by kinds of passes.
        best: The best model until its round; None before the first, or where nothing is evaluated.
    """

    number: int
    state: ServerState
    history: History
    versions: Versions
    stack_size: int | None = None
    in_flight: InFlight | None = None
    components: Mapping[str, State] = field(default_factory=dict)
    downlink: Groups = field(default_factory=dict)
    ticks: int = 0
    costs: Mapping[str, list[Any]] = field(default_factory=dict)
    best: Best | None = None

    def kept(self, owner: str) -> State:
        """Return the state of a component; empty if it has none."""
        return self.components.get(owner, {})

    def keeping(self, states: Mapping[str, State]) -> RunState:
        """Return this state with other states of components, by owner."""
        return replace(self, components={**self.components, **states})
