"""Recorded steps: a step's operations are recorded once, then run without Python or autograd.

A third of a small network's step on a CPU, and nearly all of it on a GPU, is Python and autograd's
bookkeeping. The operations below are the same in every step on a batch of the same shape. On a CPU
they are written as TorchScript and run by torch's interpreter, on a GPU as a CUDA graph: the same
kernels in the same order, with autograd on or off as in the step, so the same bits.

This requires a step to be a function of tensors, torch's generator and shapes alone, independent of
the worker's earlier steps. Steps that visibly break this are not recorded: Python reads or prints a
value of a tensor, a tensor comes from elsewhere, another generator is drawn from, a module has a
counter, an operation is not known to be the same on tensors without gradient, or the script does
not return the step's very bits, on the recorded batch or on the next one. Such steps run as without
recording.

The criterion and the penalties of a method are part of a step, and so are its transforms before
the momentum: one script serves all rules of the same key (`rule_keys`) on groups of tensors of the
same layout. A transform that computes another gradient is not recorded; the script then covers
only the two gradients. A graph has the rest of the step, too: the optimizer with its slots, the
move, and transforms after the momentum. It reads the learning rate and the client's values from
tensors, and changes its own copies of slots and states, which a client's are copied into.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.api.rules import Batch, LocalValues, Rules, Transform, View
from raysim.errors import MachineError
from raysim.numbers.given import PARTS
from raysim.numbers.tensors import is_base
from raysim.numbers.tensors.torch_private import compile_script
from raysim.training.operations import UnrecordableError, from_elsewhere, source_of
from raysim.training.rule_keys import functions_of_step, key_of_rules
from raysim.training.stacked.cuda_graphs import GraphRecorder, steps_before
from raysim.training.stacked.stacks import Tree, assign, copy_tree, leaves

Step = Callable[[Batch, Sequence[Tensor]], Sequence[Tensor]]
Script = Callable[..., Sequence[Tensor]]

STEPS_BEFORE = 100
"""Steps on batches of one shape before a script is written, which takes the time that it saves in
as many steps. A CUDA graph is recorded sooner, see `cuda_graphs`."""
ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that in evaluation mode take another path while their functions are watched."""
MAX_KINDS = 32
"""Most kinds of steps to keep scripts of; FedMA's growing layers add kinds every round."""


class RecordedSteps:
    """Scripts of a network's steps, by rules, trained parameters and the shapes of all tensors."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        generators: Sequence[torch.Generator],
        recorder: GraphRecorder | None = None,
        base: Sequence[Tensor] = (),
    ) -> None:
        """Prepare for steps that use these modules and generators.

        Args:
            modules: All modules that a step may call; the sequence may grow.
            generators: The generators that modules may draw from.
            recorder: Records steps as CUDA graphs; None writes scripts.
            base: Tensors of the modules that no step changes.
        """
        self._modules, self._generators, self.recorder = modules, generators, recorder
        self._base = base
        self._kinds: dict[Hashable, StepsOfKind] = {}
        self._rules: Rules | None = None
        self._keys: dict[int, Hashable] = {}  # of these rules, by the number of recorded transforms

    def of(
        self,
        rules: Rules,
        trainable: frozenset[str] | None,
        view: View,
        transforms: Sequence[Transform],
        changed: Tree | None = None,
    ) -> ClientSteps | None:
        """Return a client's recorded steps, or None if none of this kind are recorded.

        Args:
            rules: The rules.
            trainable: Names of the trained parameters; None for all.
            view: The client's view.
            transforms: The transforms that are part of the step.
            changed: Further tensors that a CUDA graph changes in place.
        """
        if self._rules is not rules:  # once a pass
            self._rules, self._keys = rules, {}
        if len(transforms) not in self._keys:
            self._keys[len(transforms)] = key_of_rules(rules, transforms)
        key, params = self._keys[len(transforms)], [*view.params.values()]
        if key is None:
            return None
        own: Tree = (
            {part: getattr(view, part) for part in PARTS}
            if functions_of_step(rules, transforms)
            else {}
        )
        own = {**own, **(changed or {})}
        order: dict[int, int] = {}
        layout = tuple(
            (path, t.dtype, t.shape, t.stride(), order.setdefault(id(t), len(order)))
            for path, t in leaves(own)
        )
        shapes = tuple(tensor.shape for tensor in params)
        places = tuple(tensor.data_ptr() for tensor in params) if self.recorder else ()
        kind = (key, changed is not None, trainable, shapes, layout, view.values, places)
        if kind not in self._kinds:
            if len(self._kinds) == MAX_KINDS:
                self.clear()
            self._kinds[kind] = StepsOfKind(self._modules, self._generators, self.recorder)
        of_kind = self._kinds[kind]
        if self.recorder:
            if not of_kind.records:
                return None
            own = of_kind.kept(own)
        unique = {id(tensor): tensor for _, tensor in leaves(own)}
        parts = {part: own[part] for part in PARTS if part in own}
        guarded = GuardedView(**{**vars(view), **parts})
        tensors = [*params, *unique.values(), *self._base]
        return ClientSteps(of_kind, tensors, guarded, own)

    def clear(self) -> None:
        """Free what is recorded."""
        for kind in self._kinds.values():  # clients that are done may still refer to them
            kind.clear()
        self._kinds.clear()

    def give_up(self) -> bool:
        """Free what is recorded and record nothing more; return whether that may free memory."""
        if self.recorder is None or not (self._kinds or self.recorder.works):
            return False
        if self.recorder.works:
            self.recorder.give_up()
        self.clear()
        return True


class ClientSteps:
    """Steps of one client, taken by script if there is one.

    Attributes:
        guarded: The view for recording a step.
        changed: The tensors that CUDA graphs read and change, which start as the client's.
    """

    def __init__(
        self, kind: StepsOfKind, tensors: Sequence[Tensor], guarded: GuardedView, changed: Tree
    ) -> None:
        self._kind, self._tensors = kind, tensors
        self.guarded, self.changed = guarded, changed
        self._detached = [tensor.detach() for tensor in tensors]

    def take(
        self, step: Step, batch: Batch, states: Sequence[Tensor] = (), joined: int = 1
    ) -> Sequence[Tensor] | None:
        """Take a step by its script and return the result; None without a script."""
        script = self._kind.find(step, batch, self._tensors, states, joined)
        return script(batch.x, batch.y, *self._detached, *states) if script else None

    def take_at(self, points: Sequence[Tensor], batch: Batch) -> Sequence[Tensor] | None:
        """Take a step by its script at other tensors than the network's; None without a script."""
        if self._kind.recorder:  # a graph is of the network's own tensors
            return None
        script = self._kind.scripts.get((batch.x.shape, 1))
        others = self._detached[len(points) :]
        return script(batch.x, batch.y, *points, *others) if script else None


class GuardedView(View):
    """View for a recorded step, which refuses reads that its script could not follow."""

    READABLE = frozenset(
        {"params", "trainable", "start", "broadcast", "state", "personal", "values", "at", "scaled"}
        | {"buffers", "received", *LocalValues._fields}
    )

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name not in GuardedView.READABLE:
            raise UnrecordableError(f"it reads view.{name}")
        return super().__getattribute__(name)


class StepsOfKind:
    """Scripts of one kind of steps, on batches of several shapes."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        generators: Sequence[torch.Generator],
        recorder: GraphRecorder | None,
    ) -> None:
        self._modules, self._generators, self.recorder = modules, generators, recorder
        self._kept: Tree | None = None
        self.records = True
        """False once steps were tried, and none of this kind could be recorded."""
        self._steps: Counter[Hashable] = Counter()
        self._tried: dict[Hashable, Script] = {}
        self.scripts: dict[Hashable, Script | None] = {}
        """Scripts by the shape of the batch and the strides of the states."""

    def clear(self) -> None:
        """Free the scripts, and the tensors that graphs read."""
        self._tried.clear()
        self.scripts.clear()
        self._kept = None

    def kept(self, own: Tree) -> Tree:
        """Return a client's tensors in this kind's own ones, which its graphs read."""
        if self._kept is None:
            self._kept = copy_tree(own)
        else:
            assign(self._kept, own)
        return self._kept

    def find(
        self,
        step: Step,
        batch: Batch,
        tensors: Sequence[Tensor],
        states: Sequence[Tensor],
        joined: int = 1,
    ) -> Script | None:
        """Return a script of a step, or None if the step itself must be taken.

        Args:
            step: The step, a function of batch, states, tensors and generators alone.
            batch: The next batch.
            tensors: The tensors that the step may read and change, besides the batch.
            states: States returned by the previous step; of the same shapes in every step.
            joined: The number of steps that it is, on as many batches that are joined in one.

        Returns:
            A function of `batch.x`, `batch.y`, the detached tensors and the states. It changes the
            same tensors and returns the same values as the step.
        """
        shape = (batch.x.shape, *(state.stride() for state in states), joined)
        if shape not in self.scripts:
            self._steps[shape] += 1
            if self._steps[shape] <= (steps_before() if self.recorder else STEPS_BEFORE):
                return None
            if shape not in self._tried:
                script = self._script(step, batch, tensors, states)
                if script is not None:
                    self._tried[shape] = script
                    return script
            else:  # a recorded constant may differ on another batch
                script = self._tried.pop(shape)
                agrees = self._agrees(script, step, batch, tensors, states)
                script = script if agrees else None
            self.scripts[shape] = script
            self.records = any(self.scripts.values())
        return self.scripts[shape]

    def _agrees(
        self,
        script: Script,
        step: Step,
        batch: Batch,
        tensors: Sequence[Tensor],
        states: Sequence[Tensor],
    ) -> bool:
        """Return whether a script agrees with the step; restore all tensors and generators."""
        detached = [state.detach() for state in states]
        inputs = [batch.x, batch.y, *tensors, *detached]
        before = _StepSnapshot(self._modules, self._generators, inputs)
        agrees = False
        try:
            taken = [*step(batch, detached), *before.tensors_now()]
            before.restore()
            ran = [*script(*(tensor.detach() for tensor in inputs)), *before.tensors_now()]
            agrees = all(map(_same_bits, taken, ran))
        except MachineError:
            raise
        except torch.OutOfMemoryError:
            if self.recorder:
                self.recorder.give_up()
            return False
        except Exception:  # noqa: S110 - of any kind, as below
            pass
        finally:
            before.restore()
        if self.recorder and not agrees:
            self.recorder.fail("the graph of a step does not give its bits")
        return agrees

    def _script(
        self, step: Step, batch: Batch, tensors: Sequence[Tensor], states: Sequence[Tensor]
    ) -> Script | None:
        """Write a script and compare it with the step on a batch; restore everything."""
        if any(isinstance(m, ATTENTION) and not m.training for m in self._modules):
            return None
        if self.recorder and not self._fits_a_graph(batch, tensors):
            return None
        detached = [state.detach() for state in states]  # a first state may be one of the tensors
        inputs = [batch.x, batch.y, *tensors, *detached]
        before = _StepSnapshot(self._modules, self._generators, inputs)
        try:
            if self.recorder:
                self._refuse_others(lambda: step(batch, detached), inputs, before)
                script = _graph_of(self.recorder, step, batch)
                before.check_python()
            else:
                source = source_of(lambda: step(batch, detached), inputs)
                before.check_python()
                script = compile_script(source, "step")
            before.restore()
            return script if self._agrees(script, step, batch, tensors, states) else None
        except MachineError:
            raise
        except torch.OutOfMemoryError:
            if self.recorder:
                self.recorder.give_up()
            return None
        except Exception:  # of any kind: the step itself is taken next and raises its own errors
            return None
        finally:
            before.restore()

    def _fits_a_graph(self, batch: Batch, tensors: Sequence[Tensor]) -> bool:
        """Return whether a CUDA graph can take this step.

        cuDNN keeps draws of dropout between layers, and makes others once a seed is set. Tensors of
        the host would be constants.
        """
        recurrent = any(isinstance(m, nn.RNNBase) and m.dropout for m in self._modules)
        return not (recurrent or any(t.device != batch.x.device for t in tensors))

    def _refuse_others(
        self, step: Callable[[], object], inputs: Sequence[Tensor], before: _StepSnapshot
    ) -> None:
        """Check that a step reads no memory that may be another's by the next replay.

        Raises:
            UnrecordableError: it does; a note says so.
        """
        resident = [t for m in self._modules for t in (*m.parameters(), *m.buffers())]
        for _ in range(2):  # the first step may make what later ones read
            other = from_elsewhere(step, [*inputs, *resident])
            before.restore()
        if other and self.recorder:
            self.recorder.fail(other)
            raise UnrecordableError(other)


class _StepSnapshot:
    """Snapshot of the state that a step may read and change."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        generators: Sequence[torch.Generator],
        tensors: Sequence[Tensor],
    ) -> None:
        self._modules, self._generators = modules, generators
        self._given = [tensor for tensor in tensors if not is_base(tensor)]
        self._tensors = [tensor.detach() for tensor in self._given]
        self._before = self.tensors_now()
        self._python = self._python_now()

    def tensors_now(self) -> list[Tensor]:
        """Return copies of the tensors and of the generators' states."""
        states = [generator.get_state() for generator in self._generators]
        return [*(tensor.clone() for tensor in self._tensors), *states]

    def check_python(self) -> None:
        """Check that nothing changed without an operation.

        Raises:
            UnrecordableError: a module's attribute changed, or another generator was drawn from.
        """
        if _text(self._python_now()) != _text(self._python):
            raise UnrecordableError("it changes more than tensors")

    def restore(self) -> None:
        """Restore the snapshot."""
        tensors, states = self._before[: len(self._tensors)], self._before[len(self._tensors) :]
        for now, tensor, value in zip(self._given, self._tensors, tensors, strict=True):
            if now.data_ptr() != tensor.data_ptr():
                now.data = tensor
            if not torch.equal(tensor, value):  # others may read a tensor that no step changes
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


def _graph_of(recorder: GraphRecorder, step: Step, batch: Batch) -> Script:
    """Return a CUDA graph of a step without states, with the arguments and results of a script.

    Raises:
        UnrecordableError: the step cannot be recorded.
    """

    def recorded(inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return (*step(batch._replace(x=inputs["x"], y=inputs["y"]), ()),)

    graph = recorder(recorded, {"x": batch.x, "y": batch.y})
    if graph is None:
        raise UnrecordableError("it is not recorded as a CUDA graph")

    def script(x: Tensor, y: Tensor, *_: Tensor) -> Sequence[Tensor]:
        loss, value, *rest = graph({"x": x, "y": y})
        kept = loss.clone()  # the next step overwrites what the graph returns
        return kept, kept if value is loss else value.clone(), *(each.clone() for each in rest)

    return script


def _text(python: Any) -> str:
    """Return the text of a snapshot; `repr` of NumPy's state takes milliseconds."""
    return json.dumps(python, default=np.ndarray.tolist)


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)
