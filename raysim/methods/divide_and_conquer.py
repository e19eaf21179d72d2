"""Divide and conquer: early and late layers are trained in turns, the others frozen.

Source: Chandran et al., "Weight Divergence Driven Divide-and-Conquer Approach for Optimal Federated
Learning from non-IID Data", 2021, sections 3 and 4.2, figure 2.

    rounds 1, 3, 5, ... (feature-learning): layers 1..split, `local.epochs`, lr
    rounds 2, 4, 6, ... (fine-tuning):      layers split+1..L, `finetune_epochs`,
                                            lr * `finetune_lr_factor`

Layers are the model's weight layers in forward order; a normalisation belongs to the layer before
it. The group that is not trained is frozen, its BatchNorm statistics too. Clients send the trained
group. They receive what has changed since they last received it: after taking part in the round
before, the group averaged then, otherwise the whole model.

split="auto" finds the split by a pre-pass: `prepass` + `probe` passes of FedAvg from the same
initial model, each over a cohort of its own, within the first round. The round's bytes and seconds
include them; their losses and bytes have columns of their own (`prepass_bytes_up`, ...). W_ref is a
layer's weights after `prepass` passes, W_t after each of the `probe` passes that follow:

    W_d(l) = (1 - cos(W_ref, W_t)) / ||W_ref||                section 4.2.2, divergence="cosine"
    W_d(l) = ||W_ref - W_t|| / ||W_ref||                      that of Zhao et al., "norm"
    rise(l) = (mean W_d(l+1) - mean W_d(l)) / mean W_d(l)     means over the probe passes

The split is put after the layer l of the largest rise (the first of equals). If no rise exceeds
`min_rise`, the run notes that divergence shows no split, and only the last layer is fine-tuned, as
in the paper. Training then starts from the initial model, or with continue_from_prepass=true from
the pre-pass model.

Choices where the paper is silent: W_d is taken over a layer's weight matrices, without biases and
normalisation; "starts to increase" is made the largest relative rise. Norms rise less from layer to
layer than cosines: divergence="norm" needs a smaller `min_rise`. The paper names 4 epochs of
fine-tuning beside 20 of feature-learning, and half the learning rate.

In the tables of rounds `phase` is 0 in feature-learning and 1 in fine-tuning, `split` the last
layer before the split; `divergence_1` to `divergence_L` of the first round are the layers' mean
W_d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.core.errors import SettingsError
from raysim.core.layers import STAGES, WeightLayer, misplaced, weight_layers
from raysim.core.method import Passes, Round, ServerState
from raysim.core.rules import Pass, Reduced, Rules, Trained, Upload, View
from raysim.core.tensors import Tensors, as_real, frozen_names, nbytes
from raysim.core.user_input.limits import Count
from raysim.methods.fedavg import FedAvg

Layers = Sequence[WeightLayer]
PREPASS = "prepass"


class DivideAndConquer(FedAvg):
    """FedAvg of the layers before a split in odd rounds, of the later layers in even rounds.

    Helps where clients' data differ in a way that moves the late layers most: features are learned
    long, class-specific layers little. Against FedAvg: no more memory; an epoch of fine-tuning
    costs less, as its backward pass ends at the split; one model up per two rounds instead of two.
    Clients that take part in every round also receive one; a client that missed the round before
    receives the whole model. split="auto" costs `prepass` + `probe` rounds of FedAvg more.
    """

    staged: ClassVar[bool] = True

    split: Count | Literal["auto"] = Field(
        default="auto", description='layers of feature-learning, 1 to L-1; "auto" runs a pre-pass'
    )
    prepass: Count = Field(default=5, description="pre-pass steps before the reference model")
    probe: Count = Field(default=3, description="pre-pass steps compared with the reference")
    divergence: Literal["cosine", "norm"] = Field(
        default="cosine", description="W_d of the pre-pass: of directions, or of the difference"
    )
    min_rise: float = Field(
        default=2.0, ge=0, description="relative rise of divergence that shows a split"
    )
    finetune_epochs: Count = Field(default=4, description="local epochs of fine-tuning")
    finetune_lr_factor: float = Field(
        default=0.5, gt=0, description="learning rate of fine-tuning over that of feature-learning"
    )
    continue_from_prepass: bool = Field(
        default=False, description="start from the pre-pass model, not from the initial one"
    )

    @property
    def needs_local(self) -> Mapping[str, object]:
        """No kept optimizer: its passes train other parameters from round to round."""
        return {"keep": False}

    def init(self, network: nn.Module) -> ServerState:
        """Find the layers and check the split against them.

        Raises:
            SettingsError: the network has one layer, or none after the split, or a tensor that
                belongs to no layer.
        """
        self._check_layers(network)
        return super().init(network)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run a round of feature-learning or of fine-tuning, the first one after the pre-pass."""
        layers = weight_layers(now.network)
        metrics: dict[str, float] = {}
        model, split = state.groups["model"], int(state.info.get("split", 0))
        if self.split != "auto":
            split = self.split
        elif not split:
            split, model, metrics = yield from self._prepass(now, layers, model)
        groups = layers[:split], layers[split:]
        phase = now.number % 2
        trained, frozen = (_tensors(groups[i]) for i in (phase, 1 - phase))
        result = yield Pass(
            now.cohort,
            {"model": model},
            Rules(finish=partial(_send, trained)),
            epochs=self.finetune_epochs if phase else now.epochs,
            lr=now.lr * self.finetune_lr_factor if phase else now.lr,
            trainable=frozenset(n for layer in groups[phase] for n in layer.parameters),
            bytes_down=_bytes_down(
                model, frozen, state.groups.get("current", {}), frozen_names(now.network)
            ),
        )
        # In the next round these clients lack only the group that was averaged now.
        current = {"clients": torch.tensor(now.cohort, dtype=torch.int64)}
        groups_after = {"model": {**model, **result.means["model"]}, "current": current}
        return ServerState(groups_after, {"split": split}), {
            "phase": phase,
            "split": split,
            **metrics,
        }

    def _prepass(
        self, now: Round, layers: Layers, model: Tensors
    ) -> Generator[Pass, Reduced, tuple[int, Tensors, dict[str, float]]]:
        """Run FedAvg from the model; return the split, the model to start from, and metrics."""
        initial = reference = model
        total = torch.zeros(len(layers), dtype=torch.float64)
        for step in range(self.prepass + self.probe):
            cohort, lr = now.sample(step), now.lr_at(step)
            work = Pass(cohort, {"model": model}, self.rules(), now.epochs, lr, label=PREPASS)
            model = (yield work).means["model"]
            if step == self.prepass - 1:
                reference = model
            elif step >= self.prepass:
                diverged = DIVERGENCES[self.divergence]
                measured = [diverged(layer, reference, model) for layer in layers]
                total += torch.tensor(measured, dtype=torch.float64)
        mean: list[float] = (total / self.probe).tolist()
        metrics = {f"divergence_{i}": value for i, value in enumerate(mean, 1)}
        return (
            self._choose(mean, now.note),
            model if self.continue_from_prepass else initial,
            metrics,
        )

    def _choose(self, divergence: Sequence[float], note: Callable[[str], None]) -> int:
        split, rise = largest_rise(divergence)
        if rise > self.min_rise:
            return split
        shown = ", ".join(f"{value:.3g}" for value in divergence)
        note(
            f"warning: the weight divergence of layers 1 to {len(divergence)} ({shown}) shows no"
            f" split: its largest relative rise is {rise:.3g}, method.min_rise is"
            f" {self.min_rise:g}; only the last layer will be fine-tuned"
        )
        return len(divergence) - 1

    def _check_layers(self, network: nn.Module) -> None:
        layers = weight_layers(network)
        if len(layers) < 2:
            raise SettingsError(
                f"method.name={self.title}: needs a model with at least 2 weight layers; this one"
                f" has {len(layers)}"
            )
        if self.split != "auto" and self.split >= len(layers):
            raise SettingsError(
                f"method.split={self.split}: must be 1 to {len(layers) - 1}, or auto; the model has"
                f" {len(layers)} weight layers"
            )
        if odd := misplaced(network, layers):
            raise SettingsError(
                f"method.name={self.title}: needs a model each of whose tensors belongs to one"
                f" layer of the stages {', '.join(STAGES)}; {odd} does not"
            )


def largest_rise(divergence: Sequence[float]) -> tuple[int, float]:
    """Return the layers before the largest relative rise between neighbours, and that rise."""
    rises = [
        after / before - 1 if before > 0 else (math.inf if after > 0 else 0.0)
        for before, after in pairwise(divergence)
    ]
    largest = max(rises)
    return rises.index(largest) + 1, largest


def weight_divergence(layer: WeightLayer, reference: Tensors, model: Tensors) -> float:
    """Return W_d of one layer's weights: the cosine distance over the norm of the reference."""
    before, after = _weights(layer, reference), _weights(layer, model)
    norms = before.norm() * after.norm()
    if norms == 0:
        return 0.0
    return float((1 - before @ after / norms).clamp(min=0) / before.norm())


def norm_divergence(layer: WeightLayer, reference: Tensors, model: Tensors) -> float:
    """Return the norm of the difference of one layer's weights over that of the reference.

    It is 0 where the reference is, of which no weight can be a fraction.
    """
    before, after = _weights(layer, reference), _weights(layer, model)
    return float((before - after).norm() / before.norm()) if before.any() else 0.0


DIVERGENCES: Mapping[str, Callable[[WeightLayer, Tensors, Tensors], float]] = {
    "cosine": weight_divergence,
    "norm": norm_divergence,
}
"""Divergences of a layer's weights, by their setting."""


def _weights(layer: WeightLayer, tensors: Tensors) -> Tensor:
    """Return a layer's weights in one row [n], in float64."""
    return torch.cat([as_real(tensors[name]).double().reshape(-1) for name in layer.weights])


def _tensors(layers: Layers) -> list[str]:
    """Return the names of the layers' parameters and buffers."""
    return [name for layer in layers for name in (*layer.parameters, *layer.buffers)]


def _pick(tensors: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}


def _send(names: Sequence[str], view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": _pick(view.params, names)})


def _bytes_down(
    model: Tensors, changed: Sequence[str], current: Tensors, fixed: Collection[str]
) -> Callable[[int], int]:
    """Return the bytes that a client receives: of the group averaged last, or of the model.

    Two rounds change every tensor, so only clients of the last one lack less.
    """
    clients = frozenset(current["clients"].tolist()) if current else frozenset()
    part, everything = (nbytes({"model": each}, fixed) for each in (_pick(model, changed), model))
    return lambda client: part if client in clients else everything
