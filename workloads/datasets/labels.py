"""Labels of training samples of finished runs, for heat maps of reports."""

from __future__ import annotations

from raysim.api.components import build_component
from raysim.errors import RaysimError
from raysim.federation.prepared import prepared, refuse
from raysim.results.report.partitions import Labels
from raysim.results.runs import RunRecord
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.fetch import data_root


def training_labels(record: RunRecord) -> Labels | None:
    """Return the labels of a run's training samples; None if its dataset is not prepared here.

    A user's own dataset is not imported, and no dataset is fetched.
    """
    from raysim import workloads  # noqa: F401 - registers the datasets

    prefix = "dataset."
    fields = {k.removeprefix(prefix): v for k, v in record.settings.items() if k.startswith(prefix)}
    name = fields.pop("name", None)
    if record.own_task or name not in DATASETS or not (data_root() / name / "prepared").is_dir():
        return None
    try:
        dataset = build_component(DATASETS.get(name), fields, prefix)
        paths = prepared(dataset.for_run(record.seed), data_root(), refuse)
        labels = open_split(paths["train"]).y
    except RaysimError:
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else None
