"""Labels of training samples of finished runs, for heat maps of reports."""

from __future__ import annotations

from typing import TypeVar

from raysim.api.components import Component, Registry, build_component
from raysim.errors import RaysimError
from raysim.federation.prepared import prepared, refuse
from raysim.results.report.partitions import Labels
from raysim.results.runs import RunRecord
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS, MODELS
from raysim.workloads.datasets.fetch import data_root

C = TypeVar("C", bound=Component)


def _component(record: RunRecord, registry: Registry[C]) -> C:
    """Return a run's component of a kind.

    Raises:
        SettingsError: it has other settings today.
    """
    from raysim.config import apply_overrides  # which imports torch

    prefix = f"{registry.kind}."
    values = {k: v for k, v in record.settings.items() if k.startswith(prefix)}
    groups = {key.rpartition(".")[0] for key in values}
    values = {key: value for key, value in values.items() if key not in groups}
    fields = apply_overrides({}, values)[registry.kind]
    return build_component(registry.get(fields.pop("name")), fields, prefix)


def training_labels(record: RunRecord) -> Labels | None:
    """Return the labels of a run's training samples; None if its dataset is not prepared here.

    They are empty where targets are not classes.

    A user's own dataset is not imported, and no dataset is fetched.
    """
    from raysim import workloads  # noqa: F401 - registers the datasets

    name = str(record.settings.get("dataset.name"))
    if record.own_task or name not in DATASETS or not (data_root() / name / "prepared").is_dir():
        return None
    try:
        dataset = _component(record, DATASETS)
        if str(record.settings.get("model.name")) in MODELS:
            dataset = dataset.for_model(_component(record, MODELS))
        paths = prepared(dataset.for_run(record.seed), data_root(), refuse)
        labels = open_split(paths["train"]).y
    except RaysimError:
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else labels[:0]
