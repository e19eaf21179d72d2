"""Steps as scripts: on a CPU a step's operations are noted once, then run without autograd.

Of a small network's step a third is Python and autograd's bookkeeping. Below them runs a list of
operations that is the same in every step on a batch of the same shape. It is written down as
TorchScript and run by torch's interpreter: the same kernels in the same order, so the same bits.

That holds where a step is a function of tensors, of torch's generator and of shapes alone, as is
all that does not depend on which worker took which step before. What can be seen to break it is
refused: a value that Python reads from a tensor, a tensor from elsewhere, another generator, a
counter in a module, a script that does not return the step's very bits. Then nothing changes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.core.rules import Batch
from raysim.core.torch_private import compile_script
from raysim.training.network import Network
from raysim.training.operations import RefusedError, source_of

Step = Callable[[Batch], Sequence[Tensor]]
Script = Callable[..., Sequence[Tensor]]

STEPS_BEFORE = 100
"""Steps on batches of a shape before they have a script: to write one takes what so many save."""
MOST = 32
"""Kinds of steps whose scripts are kept; FedMA's growing layers make new ones every round."""


class Scripts:
    """The scripts of a network's steps, by what is trained and the shapes of all tensors."""

    def __init__(self, network: Network, generators: Sequence[torch.Generator]) -> None:
        """Take the network and the generators that its modules may draw from."""
        self._network, self._generators = network, generators
        self._kinds: dict[Hashable, ScriptsOfKind] = {}

    def of(self, trainable: frozenset[str] | None) -> ScriptsOfKind:
        """Return the scripts of steps that train these parameters of the network as it is now."""
        shapes = tuple(tensor.shape for tensor in self._network.tensors().values())
        kind = (trainable, shapes)
        if kind not in self._kinds:
            if len(self._kinds) == MOST:
                self._kinds.clear()
            self._kinds[kind] = ScriptsOfKind(self._network, self._generators)
        return self._kinds[kind]


class ScriptsOfKind:
    """The scripts of steps on batches of several shapes."""

    def __init__(self, network: Network, generators: Sequence[torch.Generator]) -> None:
        self._network, self._generators = network, generators
        self._steps: Counter[torch.Size] = Counter()
        self._scripts: dict[torch.Size, Script | None] = {}

    def find(self, step: Step, batch: Batch) -> Script | None:
        """Return a script of a step, or None where the step is to be taken.

        Args:
            step: It depends on the batch, the network's tensors and the generators alone.
            batch: What it is to be taken on next.

        Returns:
            A function of `batch.x`, `batch.y` and the network's tensors in their order, detached.
            It changes the tensors, and returns, what the step does.
        """
        shape = batch.x.shape
        if shape not in self._scripts:
            self._steps[shape] += 1
            if self._steps[shape] <= STEPS_BEFORE:
                return None
            self._scripts[shape] = self._script(step, batch)
        return self._scripts[shape]

    def _script(self, step: Step, batch: Batch) -> Script | None:
        """Write a script and compare it with the step on a batch; leave all as it was."""
        given = [batch.x, batch.y, *self._network.tensors().values()]
        before = _Surroundings(self._network, self._generators, given)
        try:
            source = source_of(lambda: step(batch), given)
            before.check_python()
            script: Script = compile_script(source, "step")
            before.restore()
            taken = [*step(batch), *before.tensors_now()]
            before.restore()
            ran = [*script(*(tensor.detach() for tensor in given)), *before.tensors_now()]
            return script if all(map(_same_bits, taken, ran)) else None
        except Exception:  # of any kind: the step is taken next, and its own errors come again
            return None
        finally:
            before.restore()


class _Surroundings:
    """What a step may read and change, as it was."""

    def __init__(
        self, network: Network, generators: Sequence[torch.Generator], tensors: Sequence[Tensor]
    ) -> None:
        self._network, self._generators = network, generators
        self._tensors = [tensor.detach() for tensor in tensors]
        self._before = self.tensors_now()
        self._python = self._python_now()

    def tensors_now(self) -> list[Tensor]:
        """Return copies of the tensors and of the generators' states."""
        states = [generator.get_state() for generator in self._generators]
        return [*(tensor.clone() for tensor in self._tensors), *states]

    def check_python(self) -> None:
        """Check that nothing changed of which no operation tells.

        Raises:
            RefusedError: a module's attribute did, or another generator was drawn from.
        """
        if repr(self._python_now()) != repr(self._python):
            raise RefusedError("it changes more than tensors")

    def restore(self) -> None:
        """Set everything back."""
        tensors, states = self._before[: len(self._tensors)], self._before[len(self._tensors) :]
        for tensor, value in zip(self._tensors, tensors, strict=True):
            tensor.copy_(value)
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
        attributes, python, numpy = self._python
        for module, values in zip(self._network.modules(), attributes, strict=True):
            vars(module).update(values)
        random.setstate(python)
        np.random.set_state(numpy)

    def _python_now(self) -> tuple[list[dict[str, Any]], Any, Any]:
        kinds = int | float | str | None
        attributes = [
            {name: value for name, value in vars(module).items() if isinstance(value, kinds)}
            for module in self._network.modules()
        ]
        numpy: dict[str, Any] = np.random.get_state(legacy=False)
        return attributes, random.getstate(), numpy


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)
