"""Network of a run: runs at its own tensors or at given ones, with the outputs of its stages.

A module's own `forward` decides the outputs. If it is proven to be just its three stages, these
run instead, which saves the wrappers of nested modules.

A `forward` may change its input in place: it runs on a copy if others may read the input. It may
also bind a buffer to a new tensor (`self.mean = ...`), while the engine holds the old one: see
`bindings`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raysim.api.rules import Batch, Outputs
from raysim.api.scoring import (
    FORWARD_ROWS,
    FORWARD_TOKENS,
    GPU_FORWARD_ROWS,
    GPU_FORWARD_TOKENS,
)
from raysim.numbers.arrays import Array
from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import Tensors, buffer_names
from raysim.numbers.tensors.base import base_on, resting
from raysim.numbers.tensors.torch_private import foreach_copy_, has_hooks
from raysim.training.bindings import Bindings

STAGES = ("features", "hidden", "head")


class Network(nn.Module):
    """A user's module that returns the outputs of its stages, if it has any."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.bindings = Bindings(module)
        self._staged = not lacking_stages(module, STAGES)
        self.is_composition = self._staged and is_composition(module)
        """Whether `forward` is proven to be head(hidden(features(x)))."""
        self._stages = (
            [_chain(getattr(module, stage)) for stage in STAGES] if self.is_composition else None
        )
        self.has_batchnorm = has_batch_norm(module)
        self.buffer_names, self._resting = buffer_names(module), resting(module)
        self._layout = torch.contiguous_format
        self._trains: tuple[frozenset[str] | None] | None = None

    def placed(self, device: torch.device) -> Network:
        """Move to a device, in the memory layout with the fastest convolutions there.

        On a CPU channels-last saves a quarter of a plain CNN's step and adds a fifth to a step of
        ResNet-18 (`tests/benchmarks/layout.py`): it slows 512 channels on maps of one pixel.
        """
        convolves = any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        if device.type == "cpu" and convolves and not self.has_batchnorm:
            self._layout = torch.channels_last
        base_on(self.module, device)
        self.to(device)
        if self._layout is torch.channels_last:
            for parameter in self.bindings.tensors.values():
                if parameter.dim() == 4:
                    parameter.data = parameter.to(memory_format=torch.channels_last)
        self.bindings = Bindings(self.module)
        return self

    def forward(self, x: Tensor) -> Outputs:
        """Return the logits for inputs x [B, ...], and the outputs of the stages."""
        if self._stages is None:
            return self._forward_own(x)
        outputs = []
        for stage in self._stages:
            for layer in stage:
                x = layer(x)
            outputs.append(x)
        return Outputs(*outputs)

    def _forward_own(self, x: Tensor) -> Outputs:
        """Run the module's own forward, and keep the outputs of its stages."""
        seen: dict[str, Tensor] = {}

        def note(stage: str, module: nn.Module, given: Any, output: Tensor) -> None:
            seen[stage] = output

        hooks = [
            self.module.get_submodule(stage).register_forward_hook(partial(note, stage))
            for stage in (STAGES[:2] if self._staged else ())
        ]
        try:
            logits = self.module(x)
        finally:
            for hook in hooks:
                hook.remove()
        return Outputs(seen.get("features"), seen.get("hidden"), logits)

    def compose(self, x: Tensor) -> Tensor:
        """Return head(hidden(features(x))), whatever the module's own forward is."""
        for stage in STAGES:
            x = self.module.get_submodule(stage)(x)
        return x

    def load(self, tensors: Tensors) -> None:
        """Copy tensors into the module; parameters and buffers take their shapes."""
        with torch.no_grad():
            self.bindings.restore()
            alike: list[tuple[Tensor, Tensor]] = []
            for name, target in self.bindings.tensors.items():
                if target.shape != tensors[name].shape:
                    self._resize(name, tensors[name])
                else:
                    alike.append((target, tensors[name]))
            if alike:
                foreach_copy_(*zip(*alike, strict=True))

    def load_buffers(self, tensors: Tensors) -> None:
        """Copy the buffers among tensors into the module, as `forward` may have changed them."""
        with torch.no_grad():
            self.bindings.restore()
            for name in self.bindings.buffers:
                self.bindings.tensors[name].copy_(tensors[name])

    def laid_out(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return tensors in the memory layout of the module's tensors, copied if theirs differs."""
        laid = self.tensors()
        return {
            name: torch.empty_like(laid[name]).copy_(tensor)
            if name in laid and _differ_in_layout(tensor, laid[name])
            else tensor
            for name, tensor in tensors.items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the live parameters and buffers, without those of the base."""
        return dict(self.bindings.tensors)

    def trainable_names(self, trainable: frozenset[str] | None) -> list[str]:
        """Return the names of the trained parameters, all or only the given ones."""
        return [
            name
            for name, tensor in self.tensors().items()
            if tensor.requires_grad and (trainable is None or name in trainable)
        ]

    @property
    def normalises_batches(self) -> bool:
        """True if a layer of BatchNorm takes the statistics of batches, as in training."""
        return any(isinstance(each, BATCH_NORMS) and each.training for each in self.modules())

    def train(self, mode: bool = True) -> Network:
        """Enter training mode with all modules, or evaluation mode."""
        self._trains = None
        return super().train(mode)

    def train_only(self, trainable: frozenset[str] | None) -> None:
        """Enter training mode; modules with all their own parameters frozen stay in evaluation.

        So do modules of the base.
        """
        if self._trains == (trainable,):
            return  # saves a walk through all modules for every client
        self.train()
        self._trains = (trainable,)
        for module in self._resting:
            module.training = False  # not its children, which may be trained
        if trainable is None:
            return
        for prefix, module in self.module.named_modules():
            names = {f"{prefix}.{n}".lstrip(".") for n, _ in module.named_parameters(recurse=False)}
            # Not recurrent modules: cuDNN has no backward pass for them in evaluation mode.
            if names and not names & trainable and not isinstance(module, nn.RNNBase):
                module.eval()

    def at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at given tensors, in this module's present mode."""
        return self.at_with_rebound(tensors, x)[0]

    def at_with_rebound(self, tensors: Tensors, x: Tensor) -> tuple[Outputs, dict[str, Tensor]]:
        """Return the outputs at given tensors, and the new tensors of buffers that `forward` binds.

        Raises:
            RunError: a new value is no tensor of the buffer's shape and dtype.
        """
        named = {f"module.{n}": tensor for n, tensor in self.bindings.places(tensors).items()}
        outputs: Outputs = functional_call(self, named, (x,))  # a forward's own buffers stay
        places = {name.removeprefix("module."): tensor for name, tensor in named.items()}
        return outputs, self.bindings.rebound_among(places, tensors)

    def aside(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return tensors with copies of the buffers, which `forward` may change in place."""
        names = [name for name in self.bindings.buffers if name in tensors]
        return {**tensors, **{name: tensors[name].clone() for name in names}}

    def frozen(self) -> Network:
        """Return a copy in evaluation mode."""
        copied = Network(copy.deepcopy(self.module)).eval()
        for module in copied.modules():
            if isinstance(module, nn.RNNBase) and not module.dropout:
                module.train()  # the same outputs; cuDNN has a backward pass only in this mode
        return copied

    def _resize(self, name: str, tensor: Tensor) -> None:
        path, _, attribute = name.rpartition(".")
        owner, before = self.module.get_submodule(path), self.bindings.tensors[name]
        layout = self._layout if tensor.dim() == 4 else torch.contiguous_format
        new = tensor.clone(memory_format=layout)
        if isinstance(before, nn.Parameter):
            new = nn.Parameter(new, requires_grad=before.requires_grad)
        setattr(owner, attribute, new)
        self.bindings.tensors[name] = new


def _differ_in_layout(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.stride() != second.stride()


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a module has a layer of BatchNorm that trains, which one sample cannot.

    Layers of the base do not.
    """
    resting_layers = {*resting(module)}
    return any(
        isinstance(each, BATCH_NORMS) and each not in resting_layers for each in module.modules()
    )


def is_composition(module: nn.Module) -> bool:
    """Return whether a module's forward is proven to be head(hidden(features(x))).

    Its code names the stages and nothing else, so it tests no type or mode. It runs on stand-ins
    that can only go through the stages: its result went through each once, in this order.
    """
    forward = type(module).forward
    code = getattr(forward, "__code__", None)
    if "forward" in vars(module) or has_hooks(module) or code is None:
        return False
    if code.co_freevars or not set(code.co_names) <= set(STAGES):
        return False
    values = [object() for _ in range(len(STAGES) + 1)]
    calls: list[int] = []

    def run(number: int, value: object) -> object:
        calls.append(number)
        return values[number + 1] if value is values[number] else None

    stand_in = SimpleNamespace(**{s: partial(run, number) for number, s in enumerate(STAGES)})
    try:
        output = forward(stand_in, values[0])
    except Exception:  # of any kind: it does more than call its stages
        return False
    return output is values[-1] and calls == [*range(len(STAGES))]


def _chain(module: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """Return the functions that a module applies in turn.

    The wrappers of nested modules' calls, which do nothing without hooks, took 6% of a small
    network's step.
    """
    if type(module) is nn.Sequential and not has_hooks(module):
        return [function for child in module for function in _chain(child)]
    return [module if has_hooks(module) else module.forward]


def lacking_stages(module: nn.Module, needed: Iterable[str]) -> list[str]:
    """Return the stages that a method needs and a module lacks."""
    return [s for s in needed if not isinstance(getattr(module, s, None), nn.Module)]


def score(
    network: Network,
    samples: Batch,
    divisors: Sequence[float] = (1.0,),
    *,
    with_outputs: bool = False,
) -> tuple[tuple[float, ...], tuple[Array, ...]]:
    """Return the sums of the losses, and what metrics are given [n, ...]; the outputs, if wanted.

    Each divisor has its own loss, of the outputs divided by it.

    The function waits for the device once, at the end, so the device does not idle between batches.
    The network runs on copies of the inputs, which took 1% of the time of a network of two layers.
    """
    losses: list[Tensor] = []
    arrays: list[tuple[Tensor, ...]] = []
    counts: list[int] = []
    weighted = samples.scoring.weights is not None and not samples.scoring.whole_batch
    most = _rows_of_a_pass(samples)
    for start in range(0, len(samples.y), most):
        batch = samples.part(start, start + most)
        batch = batch._replace(x=batch.x.clone())
        outputs = network(batch.x).in_float32().logits
        loss = _sum_of_losses if weighted else Batch.loss
        losses += [loss(batch, outputs if t == 1 else outputs / t) for t in divisors]
        given = outputs.clone() if with_outputs else outputs
        compared = batch.scoring.compared(given, batch.y)
        arrays.append((compared, outputs) if with_outputs else (compared,))
        counts.append(1 if weighted else len(batch.y))
    means = torch.stack(losses).double().view(-1, len(divisors)).tolist()
    sums = [0.0] * len(divisors)
    for batch_means, count in zip(means, counts, strict=True):
        sums = [total + mean * count for total, mean in zip(sums, batch_means, strict=True)]
    joined = (torch.cat(parts).cpu().numpy() for parts in zip(*arrays, strict=True))
    return tuple(sums), tuple(joined)


def _sum_of_losses(batch: Batch, outputs: Tensor) -> Tensor:
    """Return the sum of the samples' losses, to divide by a whole set's weight."""
    return batch.losses(outputs).sum()


def _rows_of_a_pass(samples: Batch) -> int:
    """Return the most samples of a forward pass without training."""
    on_gpu = samples.y.is_cuda and not samples.scoring.whole_batch
    if samples.lengths is None:
        return GPU_FORWARD_ROWS if on_gpu else FORWARD_ROWS
    positions = GPU_FORWARD_TOKENS if on_gpu else FORWARD_TOKENS
    return max(1, positions // samples.x.shape[1])
