"""Recorded steps: on a CPU a step's operations are noted once, then run without autograd.

Of a small network's step a third is Python and autograd's bookkeeping. Below them runs a list of
operations that is the same in every step on a batch of the same shape. It is written down as
TorchScript and run by torch's interpreter: the same kernels in the same order, so the same bits.

That holds where a step is a function of tensors, of torch's generator and of shapes alone, as is
all that does not depend on which worker took which step before. What can be seen to break it is
not recorded: a value that Python reads from a tensor, or prints, a tensor from elsewhere, another
generator, a counter in a module, a script that does not return the step's very bits, on the batch
that it is written on and on the next one. Then nothing changes.

The criterion and the penalties of a method are part of a step, and so are its transforms as far as
they come before the momentum: a script of one serves all rules of the same key (`rule_keys`) on
groups of tensors of the same layout. A transform that asks for another gradient is not recorded;
the script is then of the two gradients alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.core.rules import Batch, Rules, Transform, View
from raysim.core.tensors import flatten
from raysim.core.tensors.torch_private import compile_script
from raysim.training.operations import UnrecordableError, source_of
from raysim.training.rule_keys import functions_of_step, key_of_rules

Step = Callable[[Batch, Sequence[Tensor]], Sequence[Tensor]]
Script = Callable[..., Sequence[Tensor]]

STEPS_BEFORE = 100
"""Steps on batches of a shape before they have a script: to write one takes what so many save."""
MAX_KINDS = 32
"""Kinds of steps whose scripts are kept; FedMA's growing layers make new ones every round."""


class RecordedSteps:
    """The scripts of a network's steps, by rules, what is trained and the shapes of all tensors."""

    def __init__(
        self, modules: Callable[[], list[nn.Module]], generators: Sequence[torch.Generator]
    ) -> None:
        """Take what steps use besides tensors.

        Args:
            modules: Returns all modules that a step may call.
            generators: The generators that modules may draw from.
        """
        self._modules, self._generators = modules, generators
        self._kinds: dict[Hashable, StepsOfKind] = {}
        self._rules: Rules | None = None
        self._keys: dict[int, Hashable] = {}  # of these rules, by how many transforms are part

    def of(
        self,
        rules: Rules,
        trainable: frozenset[str] | None,
        view: View,
        transforms: Sequence[Transform],
    ) -> ClientSteps | None:
        """Return what takes a client's steps by script, or None where its rules have no key.

        Args:
            rules: The rules.
            trainable: What is trained.
            view: The client's view.
            transforms: Those of its transforms that are part of the step.
        """
        if self._rules is not rules:  # once a pass
            self._rules, self._keys = rules, {}
        if len(transforms) not in self._keys:
            self._keys[len(transforms)] = key_of_rules(rules, transforms)
        key, tensors = self._keys[len(transforms)], [*view.params.values()]
        if key is None:
            return None
        shapes = tuple(tensor.shape for tensor in tensors)
        layout: Hashable = None
        if functions_of_step(rules, transforms):
            groups = _groups(view)
            unique = {id(tensor): tensor for tensor in groups.values()}
            tensors += unique.values()
            order = {number: index for index, number in enumerate(unique)}
            layout = tuple(
                (name, t.dtype, t.shape, t.stride(), order[id(t)]) for name, t in groups.items()
            )
        kind = (key, trainable, shapes, layout)
        if kind not in self._kinds:
            if len(self._kinds) == MAX_KINDS:
                self._kinds.clear()
            self._kinds[kind] = StepsOfKind(self._modules, self._generators)
        return ClientSteps(self._kinds[kind], tensors)


class ClientSteps:
    """The steps of one client, taken by script where there is one."""

    def __init__(self, kind: StepsOfKind, tensors: Sequence[Tensor]) -> None:
        self._kind, self._tensors = kind, tensors
        self._detached = [tensor.detach() for tensor in tensors]

    def take(
        self, step: Step, batch: Batch, states: Sequence[Tensor] = ()
    ) -> Sequence[Tensor] | None:
        """Take a step by its script and return what it returns; None where it has none."""
        script = self._kind.find(step, batch, self._tensors, states)
        return script(batch.x, batch.y, *self._detached, *states) if script else None

    def take_at(self, points: Sequence[Tensor], batch: Batch) -> Sequence[Tensor] | None:
        """Take a step by its script with other tensors as the network's; None without a script."""
        script = self._kind.scripts.get((batch.x.shape,))
        others = self._detached[len(points) :]
        return script(batch.x, batch.y, *points, *others) if script else None


class GuardedView(View):
    """A view for a step that is recorded: what its script could not follow cannot be read."""

    READABLE = frozenset(
        {"params", "trainable", "start", "broadcast", "state", "personal", "temperature", "at"}
        | {"frozen"}
    )

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name not in GuardedView.READABLE:
            raise UnrecordableError(f"it reads view.{name}")
        return super().__getattribute__(name)


class StepsOfKind:
    """The scripts of steps on batches of several shapes."""

    def __init__(
        self, modules: Callable[[], list[nn.Module]], generators: Sequence[torch.Generator]
    ) -> None:
        self._modules, self._generators = modules, generators
        self._steps: Counter[Hashable] = Counter()
        self._tried: dict[Hashable, Script] = {}
        self.scripts: dict[Hashable, Script | None] = {}
        """By the shape of the batch and the strides of the states."""

    def find(
        self, step: Step, batch: Batch, tensors: Sequence[Tensor], states: Sequence[Tensor]
    ) -> Script | None:
        """Return a script of a step, or None where the step is to be taken.

        Args:
            step: It depends on the batch, the states, the tensors and the generators alone.
            batch: What it is to be taken on next.
            tensors: Those that it may read and change, besides the batch.
            states: What the step before returned of its own; of the same shapes in every step.

        Returns:
            A function of `batch.x`, `batch.y`, the tensors, detached, and the states. It changes
            the tensors, and returns, what the step does.
        """
        shape = (batch.x.shape, *(state.stride() for state in states))
        if shape not in self.scripts:
            self._steps[shape] += 1
            if self._steps[shape] <= STEPS_BEFORE:
                return None
            if shape not in self._tried:
                script = self._script(step, batch, tensors, states)
                if script is not None:
                    self._tried[shape] = script
                    return script
            else:  # a value that was taken for a constant is another one on another batch
                script = self._tried.pop(shape)
                agrees = self._agrees(script, step, batch, tensors, states)
                script = script if agrees else None
            self.scripts[shape] = script
        return self.scripts[shape]

    def _agrees(
        self,
        script: Script,
        step: Step,
        batch: Batch,
        tensors: Sequence[Tensor],
        states: Sequence[Tensor],
    ) -> bool:
        """Return whether a script does what the step does; all is left as it was."""
        own = [state.detach() for state in states]
        given = [batch.x, batch.y, *tensors, *own]
        before = _StepSnapshot(self._modules(), self._generators, given)
        try:
            taken = [*step(batch, own), *before.tensors_now()]
            before.restore()
            ran = [*script(*(tensor.detach() for tensor in given)), *before.tensors_now()]
            return all(map(_same_bits, taken, ran))
        except Exception:  # of any kind, as below
            return False
        finally:
            before.restore()

    def _script(
        self, step: Step, batch: Batch, tensors: Sequence[Tensor], states: Sequence[Tensor]
    ) -> Script | None:
        """Write a script and compare it with the step on a batch; leave all as it was."""
        own = [state.detach() for state in states]  # a first state may be one of the tensors
        given = [batch.x, batch.y, *tensors, *own]
        before = _StepSnapshot(self._modules(), self._generators, given)
        try:
            source = source_of(lambda: step(batch, own), given)
            before.check_python()
            script: Script = compile_script(source, "step")
            before.restore()
            return script if self._agrees(script, step, batch, tensors, states) else None
        except Exception:  # of any kind: the step is taken next, and its own errors come again
            return None
        finally:
            before.restore()


class _StepSnapshot:
    """Snapshot of everything that a step may read and change."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        generators: Sequence[torch.Generator],
        tensors: Sequence[Tensor],
    ) -> None:
        self._modules, self._generators, self._given = modules, generators, tensors
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
            UnrecordableError: a module's attribute did, or another generator was drawn from.
        """
        if repr(self._python_now()) != repr(self._python):
            raise UnrecordableError("it changes more than tensors")

    def restore(self) -> None:
        """Set everything back."""
        tensors, states = self._before[: len(self._tensors)], self._before[len(self._tensors) :]
        for given, tensor, value in zip(self._given, self._tensors, tensors, strict=True):
            if given.data_ptr() != tensor.data_ptr():
                given.data = tensor
            tensor.copy_(value)
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
        attributes, python, numpy = self._python
        for module, values in zip(self._modules, attributes, strict=True):
            vars(module).update(values)
        random.setstate(python)
        np.random.set_state(numpy)

    def _python_now(self) -> tuple[list[dict[str, Any]], Any, Any]:
        kinds = int | float | str | None
        attributes = [
            {name: value for name, value in vars(module).items() if isinstance(value, kinds)}
            for module in self._modules
        ]
        numpy: dict[str, Any] = np.random.get_state(legacy=False)
        return attributes, random.getstate(), numpy


def _groups(view: View) -> dict[str, Tensor]:
    """Return the tensors of a view besides the network's, by group and name."""
    named = {
        f"{kind}/{group}": tensors
        for kind in ("broadcast", "state", "personal")
        for group, tensors in getattr(view, kind).items()
    }
    return flatten({"start": view.start, **named})


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)
