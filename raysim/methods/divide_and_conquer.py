"""Divide and conquer: early and late layers are trained in turns, the others frozen.

Source: Chandran et al., "Weight Divergence Driven Divide-and-Conquer Approach for Optimal Federated
Learning from non-IID Data", 2021, sections 3 and 4.2, figure 2.

    rounds 1, 3, 5, ... (feature-learning): layers 1..split, `local.epochs`, lr
    rounds 2, 4, 6, ... (fine-tuning):      layers split+1..L, `finetune_epochs`,
                                            lr * `finetune_lr_factor`

Layers are the model's weight layers in forward order; a normalisation belongs to the layer before
it. The group that is not trained is frozen, its BatchNorm statistics too. Clients send the trained
group. They receive the layers that have changed since they last received any: after taking part in
the round before, those averaged then, otherwise mostly the whole model.

split="auto" finds the split by a pre-pass: `prepass` + `probe` passes of FedAvg from the same
initial model, each over a separate cohort, within the first round. The round's bytes and seconds
include them; they have separate columns of losses and bytes (`prepass_bytes_up`, ...). W_ref is a
layer's weights after `prepass` passes, W_t after each of the `probe` passes that follow:

    W_d(l) = (1 - cos(W_ref, W_t)) / ||W_ref||                section 4.2.2
    rise(l) = (mean W_d(l+1) - mean W_d(l)) / mean W_d(l)     means over the probe passes

divergence="norm" takes W_d(l) = ||W_ref - W_t|| / ||W_ref|| of Zhao et al. (arXiv:1806.00582), from
which the paper starts. The split is put after the layer l of the largest rise (the first of
equals). If no rise exceeds `min_rise`, the run notes that divergence shows no split, and only the
last layer is fine-tuned, as in the paper. Training then starts from the initial model, or with
continue_from_prepass=true from the pre-pass model.

The paper's split is fixed. That layers be "reassigned to other group based on observed trend in
feature-learning accuracy vs fine-tuning accuracy over few communication rounds" is left to future
work, without a rule. Here, with `move_every` = n, clients send the accuracy, on their training
samples, of the model that they receive. A round's gain is the next cohort's accuracy less its own
cohort's, both weighted by samples; after n rounds of each group,

    spread = (mean gain of fine-tuning - mean gain of feature-learning) / 2

is the accuracy after fine-tuning rounds over the accuracy after feature-learning rounds, less their
common trend. Above `min_spread`, layer `split` is moved to fine-tuning: the paper sees such a
spread where it divides too late (Divide6 and Divide7). Below -`min_spread`, layer split+1 is moved
to feature-learning. A group keeps one layer at least. The gains of the round that moves a layer do
not count. After a new split, or a round without clients, the measurement starts again.

Choices where the paper is silent: W_d is taken over a layer's weight matrices, without biases and
normalisation; "starts to increase" is made the largest relative rise. Norms rise less from layer to
layer than cosines: divergence="norm" needs a smaller `min_rise`. The paper names 4 epochs of
fine-tuning after 20 of feature-learning, and half the learning rate.

In the tables of rounds `phase` is 0 in feature-learning and 1 in fine-tuning, `split` the last
layer before the split; `received_accuracy` is the cohort's, and `spread` stands in the round that
it decides after. `divergence_1` to `divergence_L` of the first round are the layers' mean W_d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Pass, Reduced, Rules, Trained, Upload, View
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.methods.mifl import logits_of
from raysim.numbers.layers import STAGES, WeightLayer, misplaced, weight_layers
from raysim.numbers.tensors import Tensors, as_real, nbytes
from raysim.user_input.limits import Count

Layers = Sequence[WeightLayer]
PREPASS, ACCURACY = "prepass", "received_accuracy"


class DivideAndConquer(FedAvg):
    """FedAvg of the layers before a split in odd rounds, of the later layers in even rounds.

    Helps where clients' data differ in a way that moves the late layers most: features are learned
    long, class-specific layers little. Against FedAvg: no more memory; an epoch of fine-tuning
    costs less, as its backward pass ends at the split; one model up per two rounds instead of two.
    Clients that take part in every round also receive one; a client that missed the round before
    receives the whole model. split="auto" costs `prepass` + `probe` rounds of FedAvg more,
    `move_every` a forward pass over a client's samples, and four bytes, in each round.
    """

    own_server: ClassVar[str] = "moves a part of the layers in each round"
    already_on_clients: ClassVar[str] = "the layers that did not change since they last took part"
    staged: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (
        *map(Column, ("phase", "split", "spread")),
        Column(ACCURACY, "larger", "%"),
        Column("divergence", numbered=True),
    )

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
        default=0.5, gt=0, description="learning rate of fine-tuning, relative to feature-learning"
    )
    continue_from_prepass: bool = Field(
        default=False, description="start from the pre-pass model, not from the initial one"
    )
    move_every: Count | None = Field(
        default=None,
        description="rounds of each group after which a layer may be moved; none: the split stays",
    )
    min_spread: float = Field(
        default=0.01, ge=0, description="accuracy between the groups' rounds that moves a layer"
    )
    # no kept optimizer: its passes train other parameters from round to round
    needs_local: ClassVar[Mapping[str, object]] = {"keep": False}

    @property
    def needs_classes(self) -> str:
        """The setting that needs an accuracy, where it is given."""
        return f"move_every={self.move_every}" if self.move_every else ""

    def init(self, network: nn.Module) -> ServerState:
        """Find the layers and check the split against them.

        Raises:
            SettingsError: the network has one layer, or none after the split, or a tensor that
                belongs to no layer.
        """
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
                f"method.name={self.title}: needs a model in which each tensor belongs to one layer"
                f" of the stages {', '.join(STAGES)}; {odd} does not"
            )
        return super().init(network)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run a round of feature-learning or of fine-tuning, the first one after the pre-pass."""
        layers = weight_layers(now.network)
        metrics: dict[str, float] = {}
        model, split = state.groups["model"], int(state.info.get("split", 0))
        if not split and self.split != "auto":
            split = self.split
        elif not split:
            split, model, metrics = yield from self._prepass(now, layers, model)
        phase = now.number % 2
        group = (torch.arange(len(layers)) >= split) == bool(phase)
        trained = [layer for layer, chosen in zip(layers, group.tolist(), strict=True) if chosen]
        lacking = _lacking(state.groups.get("current", {}), ~group)
        result = yield Pass(
            now.cohort,
            {"model": model},
            Rules(finish=partial(_send, _tensors(trained), self.move_every is not None)),
            epochs=self.finetune_epochs if phase else now.epochs,
            lr=now.lr * self.finetune_lr_factor if phase else now.lr,
            trainable=frozenset(n for layer in trained for n in layer.parameters),
            bytes_down=_bytes_down(model, layers, lacking),
        )
        info: Mapping[str, Any] = {"split": split}
        if self.move_every and result.clients:
            accuracy = float(np.average(result.scalars[ACCURACY], weights=result.samples))
            follows = state.info.get("round") == now.number - 1
            before = {**(state.info if follows else {}), "split": split, "round": now.number}
            info, observed = self._observed(before, accuracy, phase, len(layers))
            metrics |= observed
        groups_after = {
            "model": {**model, **result.means["model"]},
            "current": _lacking_after(lacking, now.cohort, group),
        }
        return ServerState(groups_after, info), {"phase": phase, "split": split, **metrics}

    def _observed(
        self, before: Mapping[str, Any], accuracy: float, phase: int, layers: int
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the next round's split with its observations, and metrics.

        Args:
            before: The split, the round, and the observations of the rounds before: the accuracy of
                the model that the last one received, the number of gains, and their sum, with minus
                signs for feature-learning.
            accuracy: The accuracy of the model that this round received.
            phase: The group of this round; the gain belongs to the round before, of the other one.
            layers: Number of layers L.
        """
        after = {**before, ACCURACY: accuracy, "gains": 0, "gain": 0.0}
        if ACCURACY in before:
            gain = accuracy - before[ACCURACY]
            after["gains"] = before["gains"] + 1
            after["gain"] = before["gain"] + (-gain if phase else gain)
        if not self.move_every or after["gains"] < 2 * self.move_every:
            return after, {ACCURACY: accuracy}
        spread = after["gain"] / after["gains"]
        step = (spread < -self.min_spread) - (spread > self.min_spread)
        split = min(max(before["split"] + step, 1), layers - 1)
        after |= {"gains": 0, "gain": 0.0}
        kept = after if split == before["split"] else {"split": split}
        return kept, {ACCURACY: accuracy, "spread": spread}

    def _prepass(
        self, now: Round, layers: Layers, model: Tensors
    ) -> Generator[Pass, Reduced, tuple[int, Tensors, dict[str, float]]]:
        """Run FedAvg from the model; return the split, the model to start from, and metrics."""
        initial = reference = model
        total = torch.zeros(len(layers), dtype=torch.float64)
        for step in range(self.prepass + self.probe):
            cohort, lr = now.sample(step), now.lr_at(step)
            pass_ = Pass(cohort, {"model": model}, self.rules(), now.epochs, lr, label=PREPASS)
            model = (yield pass_).means["model"]
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
    """Return the norm of the difference of one layer's weights, relative to the reference's norm.

    It is 0 for a reference of zeros, which has no relative difference.
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


def _send(names: Sequence[str], reports: bool, view: View, trained: Trained) -> Upload:
    """Send the trained group; report the accuracy of the received model if asked to."""
    upload = Upload(sums={"model": _pick(view.params, names)})
    if not reports:
        return upload
    samples = trained.data
    predicted = samples.scoring.predict(logits_of(view, view.start, samples))
    return replace(upload, scalars={ACCURACY: float((predicted == samples.y).double().mean())})


def _lacking(current: Tensors, averaged: Tensor) -> dict[int, Tensor]:
    """Return the layers [L] that clients lack; clients that are not named lack all.

    Args:
        current: Clients [n] that hold a current layer, and the layers that each lacks [n, L]. Runs
            from before splits could move name the clients of the round before alone.
        averaged: The layers that these lack: the group of that round [L].
    """
    clients = current["clients"].tolist() if current else []
    lacks = current["lacks"] if "lacks" in current else averaged.expand(len(clients), -1)
    return dict(zip(clients, lacks, strict=True))


def _lacking_after(lacking: Mapping[int, Tensor], cohort: Sequence[int], group: Tensor) -> Tensors:
    """Return the clients that hold a current layer when a group [L] is averaged, as `current`."""
    after = {client: lacks | group for client, lacks in lacking.items()}
    after |= dict.fromkeys(cohort, group)
    held = {client: lacks for client, lacks in after.items() if not lacks.all()}
    return {
        "clients": torch.tensor([*held], dtype=torch.int64),
        "lacks": torch.stack([*held.values()]) if held else group.new_empty((0, len(group))),
    }


def _bytes_down(
    model: Tensors, layers: Layers, lacking: Mapping[int, Tensor]
) -> Callable[[int], int]:
    """Return the bytes that a client receives: of the layers that it lacks."""
    sizes = [nbytes({"model": _pick(model, _tensors([layer]))}) for layer in layers]
    every = torch.tensor(sizes)
    needed = {client: int(every[lacks].sum()) for client, lacks in lacking.items()}
    return lambda client: needed.get(client, sum(sizes))
