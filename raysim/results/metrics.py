"""Metrics: one value of a run, from a column of its rounds.

A metric is written `name(column)` or `name(column, target)`, as `rounds_to(test_accuracy, 0.9)`, or
with a second column, as `at_best(test_accuracy, holdout_accuracy)`.
Columns are in `metrics.parquet`, or sums over the rounds so far: `bytes`, sent and received,
`total_bytes_up`, `total_seconds`, with evaluation and checkpoints, and of a run with a virtual
clock `total_virtual_seconds`, `total_virtual_joules` and `total_lost_clients`, of one under attack
`total_bad_clients_beyond_bound`.

Metrics of an analysis, as `analysis(cka, layer_2)`, `analysis(new_client, epochs)` and
`analysis(new_client, epochs_4)`, are values of its rows of the last evaluated round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from raysim.analysis import ANALYSES
from raysim.analysis.accuracy import CONVERGED
from raysim.api.columns import Column, by_name
from raysim.api.components import call, suggest
from raysim.config import Settings
from raysim.errors import SettingsError, visible
from raysim.results.column_metrics import AT_BEST, NAMES, OF_COLUMN, Metric
from raysim.results.runs import RunRecord
from raysim.samples.data import Model
from raysim.storage.recorder import ANALYSIS
from raysim.storage.summary import reached_at
from raysim.user_input.limits import MOST


class AnalysisValues(NamedTuple):
    """Values of an analysis: their pattern, an example, and the columns of number and value.

    Values without a number are in the columns of their names.
    """

    pattern: str
    example: str
    columns: tuple[str, str] | None = None


OF_ANALYSIS: Mapping[str, AnalysisValues] = {
    "cka": AnalysisValues(r"layer_[1-9]\d{0,3}", "layer_1", ("layer", "cka")),
    "kl_activations": AnalysisValues(r"kl_(mean_client|client_mean)", "kl_mean_client"),
    "new_client": AnalysisValues(r"epochs(_\d{1,4})?", "epochs", ("epochs", "accuracy")),
}


@dataclass(frozen=True)
class AnalysisMetric(Metric):
    """One value of an analysis, of its rows of the last evaluated round.

    Attributes:
        name: The analysis.
        column: The value, one of OF_ANALYSIS.
    """

    def __str__(self) -> str:
        return f"{ANALYSIS}({self.name}, {self.column})"

    def column_in(self, record: RunRecord) -> Column:
        """Return the analysis's column as the analysis declares it."""
        return self._declared

    def column_before(self, settings: Settings) -> Column:
        """Return the same."""
        return self._declared

    @property
    def _declared(self) -> Column:
        number = OF_ANALYSIS[self.name].columns
        of_number = number is not None and self.column != number[0]
        wanted = number[1] if number and of_number else self.column
        declared = by_name(ANALYSES.get(self.name).columns)
        return declared.get(wanted, Column(wanted))

    @property
    def analysis(self) -> str:
        """Name of the analysis."""
        return self.name

    @property
    def takes_reference(self) -> bool:
        """True where a value compares the run with its reference."""
        return ANALYSES.get(self.name).takes_reference

    def definition(self, column: Column | None) -> str:
        """Return one sentence for the page of a table."""
        if self.name == "cka":
            text = f"linear CKA of the last global model and the reference at layer {self._number}"
        elif self._is_divergence:
            text = "mean over the clients of the round of KL divergences of their mean activations"
        elif self.column == "epochs":
            text = (
                "local epochs until the mean accuracy of clients that join is within"
                f" {CONVERGED:g} of the largest, interpolated between those measured"
            )
        else:
            text = f"mean accuracy of clients that join, after {self._number} local epochs"
        return f"{self}: {text}."

    def is_in(self, record: RunRecord) -> bool:
        """Return whether a run has the analysis."""
        return self.name in record.settings.get(ANALYSIS, ())

    def of(self, record: RunRecord) -> float | None:
        """Return the value of a run; None where the last evaluated round has no rows.

        Raises:
            SettingsError: the run lacks the analysis, the reference, the layer or the epochs.
        """
        if not self.is_in(record):
            raise SettingsError(f"{self}: {record.path} is a run without {ANALYSIS}={self.name}")
        if self.takes_reference and record.settings.get("reference") is None:
            raise SettingsError(f"{self}: {record.path} is a run without a reference")
        rows = record.analysis(self.name)
        if self.name == "cka":
            rows = [r for r in rows if (r["first"], r["second"]) == ("after", "reference")]
        number, value = OF_ANALYSIS[self.name].columns or ("round", self.column)
        values: dict[int, list[float]] = {}
        for row in rows:
            values.setdefault(row[number], []).append(row[value])
        means = {
            key: math.fsum(measured) / len(measured) for key, measured in sorted(values.items())
        }
        if self.column == "epochs":
            return reached_at(means.items(), max(means.values(), default=0.0) - CONVERGED)
        wanted = next(iter(means), 0) if self._is_divergence else self._number
        if means and wanted not in means:
            raise SettingsError(f"{self}: {record.path} has {', '.join(map(str, means))}")
        mean = means.get(wanted)
        return mean if mean is None or math.isfinite(mean) else None

    def check(self, settings: Settings) -> None:
        """Check before its start that a run with the analysis will have the value.

        Raises:
            SettingsError: the run will not have it.
        """
        if self.name == "cka":
            if self._number > (layers := _count_layers(settings)):
                raise SettingsError(
                    f"{self}: model.name={settings.model.title} has {layers} layers"
                )
        elif self._is_divergence:
            return
        elif not settings.evaluation.clients:
            raise SettingsError(f"{self}: needs evaluation.clients=true")
        elif settings.cohort_size == settings.clients:
            raise SettingsError(
                f"{self}: fraction={settings.fraction:g}: must leave clients out that can join"
            )

    @property
    def _is_divergence(self) -> bool:
        return OF_ANALYSIS[self.name].columns is None

    @property
    def _number(self) -> int:
        return int(self.column.rpartition("_")[2])


def _count_layers(settings: Settings) -> int:
    """Return the number of trained weight layers of the network; 0 without stages.

    One that is built for sizes read from the samples counts as long enough.
    """
    from raysim.analysis.layers import trained_layers
    from raysim.numbers.layers import STAGES

    shape, classes = settings.dataset.shape, settings.dataset.classes
    if shape is None or classes is None:
        return MOST
    network = call(settings.model, Model.build, shape, classes)
    return len(trained_layers(network)) if all(hasattr(network, name) for name in STAGES) else 0


def parse_analysis(text: str, name: str, value: str) -> AnalysisMetric:
    """Return the metric of an analysis.

    Raises:
        SettingsError: the analysis has no such metric.
    """
    if name not in OF_ANALYSIS:
        raise SettingsError(
            f"metric={text}: {name} has no metrics; {suggest(name, [*OF_ANALYSIS])}"
        )
    if not re.fullmatch(OF_ANALYSIS[name].pattern, value):
        example = OF_ANALYSIS[name].example
        raise SettingsError(f"metric={text}: must be as {ANALYSIS}({name}, {example})")
    return AnalysisMetric(name, value)


__all__ = ["NAMES", "Metric", "parse_metric"]

SHAPE = re.compile(r"\s*(\w+)\s*\(\s*([\w.-]+)\s*(?:,\s*([^\s,()]+)\s*)?\)\s*")


def parse_metric(text: str) -> Metric:
    """Return the metric that a text names.

    Raises:
        SettingsError: the text names no metric.
    """
    shape = SHAPE.fullmatch(text)
    if shape is None:
        raise SettingsError(
            f"metric={visible(repr(text))}: must be name(column) or name(column, target)"
        )
    name, column, argument = shape.groups()
    if name == ANALYSIS:
        return parse_analysis(text, column, argument or "")
    if name not in NAMES:
        raise SettingsError(f"metric={text}: no such metric; {suggest(name, [*NAMES, ANALYSIS])}")
    if name in OF_COLUMN:
        if argument is not None:
            raise SettingsError(f"metric={text}: {name} takes no target")
        return Metric(name, column)
    if name == AT_BEST:
        if argument is None:
            raise SettingsError(
                f"metric={text}: needs a second column, as in"
                f" {AT_BEST}(test_accuracy, holdout_accuracy)"
            )
        return Metric(name, column, by=argument)
    try:
        target = float(argument or "")
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise SettingsError(f"metric={text}: needs a target, as in {name}({column}, 0.9)")
    return Metric(name, column, target)
