"""Tensors of the rules' companions, which are trained in addition to a network."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor

from raysim.numbers.tensors import Tensors
from raysim.training.update import Update

U = TypeVar("U", bound=Update)


class Beside(Generic[U]):
    """Tensors of a companion, of one client or of a stack, with their own optimizer.

    Attributes:
        tensors: The tensors.
        state: State of the companion.
        update: The updates of the tensors, started.
    """

    def __init__(self, tensors: dict[str, Tensor], state: dict[str, Tensor], update: U) -> None:
        """Start at tensors and a state that nothing else uses: steps change them in place."""
        self.tensors, self.state, self.update = tensors, state, update

    def step(self, gradients: Tensors, state: Tensors) -> None:
        """Take a step along gradients, and take over the next state."""
        params = [*self.tensors.values()]
        directions = self.update.directions([gradients[name] for name in self.tensors])
        self.update.move(params, self.update.add_decoupled_decay(directions, params))
        for name, value in state.items():
            self.state[name].copy_(value)

    def tree(self) -> dict[str, Tensors]:
        """Return tensors and state by their kinds."""
        return {"tensors": self.tensors, "state": self.state}
