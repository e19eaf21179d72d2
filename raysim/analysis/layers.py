"""Layers compared: divergence of weights, and similarity of features.

Sources: Divide-and-Conquer, section 4.2.2 and figures 5 and 7 (weight divergence; the reference is
the model after a pre-pass, here the model of the run `reference`), and the one that it starts from
(Zhao et al., arXiv:1806.00582, 2018: the norm of the difference); FLex&Chill, section 4.4,
appendix E (linear CKA by layer, on test samples that the seed draws, before the activation
function).

Legend: N samples, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raysim.analysis.base import Analysis, ClientPart, Columns, Extra, MeasuredRound, Need
from raysim.analysis.formulas import cka, gram
from raysim.api.columns import Column
from raysim.api.rules import Trained, View
from raysim.methods.divide_and_conquer import norm_divergence, weight_divergence
from raysim.numbers.layers import WeightLayer, weight_layers
from raysim.numbers.tensors import Tensors, buffer_names, flatten, unflatten
from raysim.numbers.tensors.calls import call_at

MOST_COMPARED = 20
"""Most clients of a cohort that are compared with each other, in ascending order."""


class WeightDivergence(Analysis):
    """Weight divergence of each layer of the global model from a reference.

    It is (1 - cos(reference, model)) / ||reference||. The reference is the model of the run
    `reference`, or else the initial model.
    """

    needs: ClassVar[tuple[Need, ...]] = ("stages",)
    takes_reference: ClassVar[bool] = True
    of_layer: ClassVar[Callable[[WeightLayer, Tensors, Tensors], float]] = weight_divergence

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per trained layer: its divergence."""
        layers = trained_layers(evaluated.network)
        reference = evaluated.initial if evaluated.reference is None else evaluated.reference
        return {
            "layer": np.arange(1, len(layers) + 1),
            "path": np.array([layer.path for layer in layers]),
            "divergence": np.array(
                [type(self).of_layer(layer, reference, evaluated.after) for layer in layers]
            ),
        }


class NormDivergence(WeightDivergence):
    """Norm divergence of each layer: ||reference - model|| / ||reference||."""

    of_layer: ClassVar[Callable[[WeightLayer, Tensors, Tensors], float]] = norm_divergence


class Cka(Analysis):
    """Linear CKA of each layer's outputs, between clients' trained and global models.

    The models are the cohort's clients', the global model `before` and `after` the round,
    and the `reference` if a run is named. Layers that are not called as modules have no outputs to
    compare, and no rows: the projection within torch's attention, for one.
    """

    needs: ClassVar[tuple[Need, ...]] = ("stages",)
    takes_reference: ClassVar[bool] = True
    extras: ClassVar[tuple[Extra, ...]] = ("probe",)
    columns = (Column("cka", "larger"),)

    def client_part(self, network: nn.Module) -> ClientPart:
        """Return the measurement of the trained model's layers."""
        return partial(_grams_of_trained, network)

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per layer and pair of models."""
        clients = sorted(evaluated.trained)[:MOST_COMPARED]
        grams = {f"client {client}": evaluated.trained[client] for client in clients}
        others = {"before": evaluated.before, "after": evaluated.after}
        if evaluated.reference is not None:
            others["reference"] = evaluated.reference
        part = partial(_grams_of_groups, evaluated.network, tuple(others))
        sent = {"probe": evaluated.probe, **others}
        measured = evaluated.measure(part, evaluated.cohort[:1], sent)
        for tensors in measured.values():
            for name, group in unflatten(tensors).items():
                grams[name] = group
        pairs = [*combinations(grams, 2)]
        layers = enumerate(trained_layers(evaluated.network), 1)
        numbers = {
            layer.path: number
            for number, layer in layers
            if grams and all(layer.path in layer_grams for layer_grams in grams.values())
        }
        paths = [*numbers]
        return {
            "layer": np.repeat(np.array([*numbers.values()], dtype=np.int64), len(pairs)),
            "path": np.repeat(np.array(paths, dtype=str), len(pairs)),
            "first": np.array([first for first, _ in pairs] * len(paths)),
            "second": np.array([second for _, second in pairs] * len(paths)),
            "cka": np.array(
                [
                    cka(grams[first][path].numpy(), grams[second][path].numpy())
                    for path in paths
                    for first, second in pairs
                ]
            ),
        }


def _grams_of_trained(network: nn.Module, view: View, trained: Trained) -> Tensors:
    return _grams(network, {**trained.base, **view.params}, view.broadcast["probe"]["x"])


def _grams_of_groups(
    network: nn.Module, groups: tuple[str, ...], view: View, trained: Trained
) -> Tensors:
    """Return the Gram matrices of the models in some groups, named `group/path`."""
    x = view.broadcast["probe"]["x"]
    models = {name: {**trained.base, **view.broadcast[name]} for name in groups}
    return flatten({name: _grams(network, tensors, x) for name, tensors in models.items()})


def _grams(network: nn.Module, tensors: Tensors, x: Tensor) -> Tensors:
    """Return the Gram matrix [N, N] of each layer's outputs, by path."""
    by_path = layer_outputs(network, tensors, x)
    return {path: gram(outputs) for path, outputs in by_path.items()}


def trained_layers(network: nn.Module) -> list[WeightLayer]:
    """Return the weight layers that are trained, in forward order.

    A method's frozen copies (FedFusion) are left out, so that a layer has one number in all
    methods.
    """
    return [
        layer
        for layer in weight_layers(network)
        if any(parameter.requires_grad for parameter in layer.module.parameters())
    ]


def layer_outputs(network: nn.Module, tensors: Tensors, x: Tensor) -> dict[str, Tensor]:
    """Return the outputs [N, ...] of each trained weight layer by path, with the given tensors."""
    by_path: dict[str, Tensor] = {}
    # Copies, because `forward` may change buffers in place.
    buffers = {name: tensors[name].clone() for name in buffer_names(network)}

    def note(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        by_path[path] = output[0] if isinstance(output, tuple) else output

    hooks = [
        network.get_submodule(layer.path).register_forward_hook(partial(note, layer.path))
        for layer in trained_layers(network)
    ]
    try:
        with torch.no_grad():
            call_at(network, {**tensors, **buffers}, x.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return by_path
