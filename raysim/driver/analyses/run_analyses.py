"""Analyses of one run, checked before it starts, and the data that they need.

Legend: n of K clients, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raysim.analysis import ANALYSES
from raysim.analysis.accuracy import own_accuracy
from raysim.analysis.base import Analysis, Extra, Need
from raysim.api.components import call
from raysim.config import Settings
from raysim.driver.evaluation.client_scores import are_classes
from raysim.driver.start.checks.model import complex_parameter
from raysim.driver.uploads.client_figures import Extras
from raysim.errors import RunError, SettingsError
from raysim.federation.evaluation_sets import EvaluationSet, client_test_set
from raysim.federation.federation import Federation, open_samples
from raysim.federation.opened import OpenedSamples
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.numbers.tensors import CPU, Tensors
from raysim.numbers.tensors.calls import structure_of
from raysim.numbers.tensors.packed import as_tensor
from raysim.samples.client_indices import class_counts
from raysim.samples.data import Dataset
from raysim.storage.run_state import RunState
from raysim.storage.sealed.models import read_model
from raysim.training.network import STAGES, Network, lacking_stages

TRAINED = "evaluation.trained"
"""Client part for the accuracy of trained models, in addition to the analyses' parts."""
PROBE_SAMPLES = 200
"""Test samples of the probe."""
MOST_COUNTED = 10_000
"""Most clients whose classes are counted, evenly spaced among all."""


class Analyses:
    """Analyses of one run, checked before it starts.

    Attributes:
        chosen: The analyses, by name.
        parts: The analyses' client parts, and TRAINED if the settings ask for it.
        extras_of_parts: Samples that the client parts need.
        reference: The model of the run that `reference` names; None without one.
    """

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        network: nn.Module,
        initial: RunState,
        note: Callable[[str], None],
    ) -> None:
        """Check that the run can be measured.

        Args:
            settings: The run's settings.
            federation: The run's samples.
            network: The network as it was built.
            initial: The checkpoint before the first round.
            note: Called with a line if the model of `reference` is damaged.

        Raises:
            SettingsError: the run cannot be measured, or `reference` has no such model.
        """
        self.settings, self.federation, self.network = settings, federation, network
        self.initial = settings.method.deployed(initial.state)
        self.chosen: dict[str, Analysis] = {
            name: ANALYSES.get(name)() for name in settings.analysis
        }
        for name, analysis in self.chosen.items():
            for need in analysis.needs:
                if problem := self._lacks(need):
                    raise SettingsError(f"analysis={name}: {problem}")
        self.reference = self._read_reference(note)
        parts = {
            name: analysis.client_part(self.structure) for name, analysis in self.chosen.items()
        }
        self.parts = {name: part for name, part in parts.items() if part}
        needed = {extra for name in self.parts for extra in self.chosen[name].extras}
        if settings.evaluation.trained:
            self.parts[TRAINED] = own_accuracy
            needed.add("own_test")
        self.extras_of_parts = tuple(sorted(needed))

    @cached_property
    def structure(self) -> nn.Module:
        """The network without values, in evaluation mode."""
        return structure_of(self.network)

    def _lacks(self, need: Need) -> str:
        """Return why the run does not meet a need; "" if it does."""
        lacking = lacking_stages(self.network, STAGES)
        if need == "stages" and lacking:
            stages = f"needs a model with the stages {', '.join(STAGES)}"
            return f"{stages}; this one lacks {', '.join(lacking)}"
        if need in ("classes", "predicted_classes"):
            return self._lacks_classes(need)
        if need == "client_accuracy" and not self.settings.evaluation.clients:
            return "needs evaluation.clients=true"
        if need in ("real_inputs", "two_inputs", "language"):
            return self._unsuitable_inputs(need)
        if need == "real_model" and (name := complex_parameter(self.network)):
            return f"needs a model of real parameters; {name} is complex"
        return ""

    def _lacks_classes(self, need: Need) -> str:
        """Return why targets, or predictions for the probe, are no classes; "" if they are."""
        if not self.federation.scoring.classifies:
            return "the task is no classification; leave it out"
        if need == "classes":
            return ""
        network = Network(self.network).eval()
        with torch.no_grad():
            outputs = network(self.probe["x"][:2].clone()).in_float32().logits
            predicted = self.federation.scoring.predict(outputs).cpu().numpy()
        others = "needs a class for each sample, and Scoring.predict returns others; leave it out"
        return "" if are_classes(predicted) else others

    def _unsuitable_inputs(self, need: Need) -> str:
        """Return why inputs do not suit a need; "" if they do."""
        x = self.probe["x"]
        if need == "language":
            is_text = self.federation.sequences and self.federation.preparation
            predicts = is_text and self.probe["y"].dim() == 2
            return "" if predicts else "needs a dataset of text whose next token is predicted"
        if not x.is_floating_point():
            return f"needs inputs of real numbers; these are {x.dtype}"
        if need == "two_inputs" and x[0].numel() != 2:
            return f"needs inputs of two numbers; these are of shape {tuple(x.shape[1:])}"
        return ""

    def _read_reference(self, note: Callable[[str], None]) -> Tensors | None:
        """Return the model of the run that `reference` names."""
        folder = self.settings.reference
        if folder is None:
            return None
        if not any(analysis.takes_reference for analysis in self.chosen.values()):
            raise SettingsError(f"reference={folder}: no analysis of this run compares with it")
        try:
            model = read_model(Path(folder), note)
        except RunError as error:
            raise SettingsError(
                f"reference={folder}: has no model that can be read ({error}); give the run"
                " directory of a run of the same network, or its new place if it was moved"
            ) from error
        for name, tensor in self.initial.items():
            if name not in model or model[name].shape != tensor.shape:
                raise SettingsError(f"reference={folder}: is a run of another network ({name})")
        return model

    @cached_property
    def probe(self) -> Tensors:
        """Test samples that all clients share."""
        test, chosen = open_samples(self.federation.test), self.federation.test_rows
        total = len(test) if chosen is None else len(chosen)
        draws = stream(self.settings.seed, "probe")
        count = min(total, PROBE_SAMPLES)
        rows = np.sort(draws.choice(total, count, replace=False, shuffle=False))
        rows = rows if chosen is None else chosen[rows]
        x = as_tensor(np.ascontiguousarray(test.x[rows]))
        return {
            "x": self.federation.inputs.test(x, torch.from_numpy(rows)),
            "y": as_tensor(np.ascontiguousarray(test.y[rows])),
        }

    @cached_property
    def own_tests(self) -> EvaluationSet:
        """Test samples of each client, for `client_accuracy_...`."""
        return client_test_set(self.federation, self.settings)

    @cached_property
    def _opened(self) -> OpenedSamples:
        return OpenedSamples(self.federation, CPU)

    def extras(self, names: tuple[Extra, ...], clients: Sequence[int]) -> Extras:
        """Return the groups with samples for client parts."""
        groups: dict[str, Tensors] = {"probe": self.probe} if "probe" in names else {}
        if "own_test" not in names:
            return groups, {}
        evaluated = self.own_tests.clients
        places = np.searchsorted(evaluated, np.asarray(clients))
        positions = {
            client: position
            for client, position in zip(clients, places.tolist(), strict=True)
            if evaluated[position : position + 1].tolist() == [client]
        }
        samples = [
            self._opened.of_client(self.own_tests, position) for position in positions.values()
        ]
        if samples:
            groups["own_test"] = {
                "x": torch.cat([sample.x for sample in samples]),
                "y": torch.cat([sample.y for sample in samples]),
                "offsets": torch.tensor([0, *accumulate(len(sample.y) for sample in samples)]),
            }
        numbers = {client: number for number, client in enumerate(positions)}
        # Positions, not samples: stacked clients need tensors of one shape.
        return groups, {
            client: {"own_test": {"position": torch.tensor(numbers.get(client, -1))}}
            for client in clients
        }

    def end_tokens(self) -> Sequence[int]:
        """Return the tokens that end a text."""
        ends: Sequence[int] = call(self.settings.data, Dataset.end_tokens)
        return ends

    def as_text(self, tokens: Array) -> Sequence[str]:
        """Return rows of tokens [n, T] as texts."""
        texts: Sequence[str] = call(self.settings.data, Dataset.as_text, tokens)
        return texts

    def class_counts(self) -> tuple[Any, Any]:
        """Return clients [n] and their samples per class [n, C]."""
        labels = open_samples(self.federation.train).y
        total = len(self.federation.client_indices.sizes)
        clients = np.linspace(0, total - 1, min(total, MOST_COUNTED)).astype(np.int64)
        classes = 1 + int(labels.max())
        return clients, class_counts(self.federation.client_indices, labels, classes, clients)
