"""Local training, one client at a time.

A real module with autograd, in-place updates of all parameters at once and one gather per epoch; on
a CPU, repeated steps run as scripts, which do the same without autograd. The network stays
resident; a client costs a copy of the broadcast model into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from raysim.api.rules import Batch, Outputs, Rules, Upload, View
from raysim.config import LocalSettings
from raysim.numbers.tensors import CPU, Tensors
from raysim.numbers.tensors.torch_private import can_record_steps
from raysim.training.client_training import ClientTraining
from raysim.training.job import ClientJob, LocalLosses
from raysim.training.network import Network
from raysim.training.objective import derivatives, objective
from raysim.training.recorded_steps import RecordedSteps
from raysim.training.update import Update


class SequentialTrainer:
    """Trains clients one after another on one resident network."""

    def __init__(self, network: Network, local: LocalSettings, precision: str) -> None:
        self.network = network
        self.local, self.optimizer = local, local.build_optimizer()
        self._frozen: Network | None = None
        self._buffer: Batch | None = None
        self._device = next((p.device for p in network.parameters()), CPU)
        self._bf16 = precision == "bf16"
        # The generators that a module may draw from. Not torch.manual_seed, which without CUDA
        # records every call for a later initialisation of CUDA.
        self._generators = [torch.default_generator]
        if self._device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        records = self._device.type == "cpu" and can_record_steps()
        self.recorded = RecordedSteps(self._modules, self._generators) if records else None

    def _modules(self) -> list[nn.Module]:
        frozen = self._frozen.modules() if self._frozen else ()
        return [*self.network.modules(), *frozen]

    def run(self, job: ClientJob) -> tuple[Upload, LocalLosses]:
        """Train one client; return its upload and its losses."""
        before = self.rng_state()
        self.seed(job.torch_seed)
        try:
            return ClientTraining(self, job.with_samples_read()).run()
        finally:
            self.set_rng_state(before)

    def update(self, lr: float) -> Update:
        """Return the updates of a client's parameters."""
        return Update(self.local, self.optimizer, lr)

    def outputs(self, x: Tensor) -> Outputs:
        """Return the resident network's outputs; logits are in float32 at any precision."""
        if not self._bf16:
            return self.network.forward(x)  # not __call__: the wrapper has no hooks
        with self.autocast():
            return self.network(x).in_float32()  # type: ignore[no-any-return]

    def autocast(self) -> Any:
        """Return the context of forward passes."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def buffer(self, data: Batch, n: int) -> Batch:
        """Return a resident buffer for n ordered samples of an epoch, for samples like these."""
        if self._buffer is None or len(self._buffer.y) < n:
            self._buffer = data._replace(x=torch.empty_like(data.x), y=torch.empty_like(data.y))
        return data._replace(x=self._buffer.x[:n], y=self._buffer.y[:n])

    @property
    def frozen(self) -> Network:
        """Copy of the network in evaluation mode, to run at given tensors."""
        if self._frozen is None:
            self._frozen = self.network.frozen()
        return self._frozen

    def at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at given tensors, in evaluation mode, without gradient."""
        with torch.no_grad(), self.autocast():
            laid_out = self.network.laid_out(self.frozen.aside(tensors))
            return self.frozen.at(laid_out, x.clone()).in_float32()

    def gradient(
        self,
        rules: Rules,
        view: View,
        tensors: Tensors,
        batch: Batch,
        *,
        along: Tensors | None = None,
        change_outputs: Callable[[Outputs], Outputs] | None = None,
    ) -> Tensors:
        """Return `View.gradient` of `finish`: in evaluation mode."""
        points = {n: t.detach().clone() for n, t in tensors.items()}
        trainable = [points[name].requires_grad_() for name in view.trainable]
        with torch.enable_grad():
            with self.autocast():
                outputs = self.frozen.at(points, batch.x.clone()).in_float32()
            outputs = change_outputs(outputs) if change_outputs else outputs
            value = objective(rules, replace(view, params=points), outputs, batch)
            vector = [along[name] for name in view.trainable] if along is not None else None
            gradients = derivatives(value, trainable, vector)
        with torch.no_grad():
            decayed = self.update(0.0).add_weight_decay(gradients, vector or trainable)
        return dict(zip(view.trainable, decayed, strict=True))

    def seed(self, seed: int) -> None:
        """Seed the generators that dropout may draw from."""
        for generator in self._generators:
            generator.manual_seed(seed)

    def rng_state(self) -> list[Tensor]:
        """Return the states of the generators that dropout may draw from."""
        return [generator.get_state() for generator in self._generators]

    def set_rng_state(self, states: Sequence[Tensor]) -> None:
        """Set the states of the generators that dropout may draw from."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
