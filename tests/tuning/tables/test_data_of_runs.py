"""A sweep over seeds on data that is drawn: one set for all seeds, or `dataset.seed=run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.results.compare import group_runs
from raysim.results.origins import origin_notes, origins_of
from raysim.results.runs import RunRecord, read_run
from raysim.storage.checkpoints import TRAINING_SAMPLES
from raysim.workloads.datasets.labels import training_labels

SMALL: dict[str, Any] = {
    **{"dataset.users": 3, "dataset.samples": 12, "dataset.test_samples": 4, "clients": 3},
    **{"fraction": 1.0, "rounds": 1, "method.name": "fedavg", "local.batch_size": 4},
}


@pytest.fixture(autouse=True)
def data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))


def swept(out: Path, **settings: Any) -> dict[int, RunRecord]:
    """Return the runs of a sweep over two seeds, by seed."""
    sweep = raysim.sweep("fedmax-synthetic", SMALL | settings, seeds=[3, 5], jobs=1, out=out)
    records = [read_run(Path(run)) for run in sweep.runs["run_dir"].to_pylist()]
    return {record.seed: record for record in records}


def test_runs_have_the_data_of_their_seeds(slots, tmp_path):
    own = swept(tmp_path / "own", **{"dataset.seed": "run"})
    shared = swept(tmp_path / "shared", **{"dataset.seed": 5})
    data = {key: run.sealed(TRAINING_SAMPLES) for key, run in (own | {"5": shared[5]}).items()}
    assert data[5] == data["5"] == shared[3].sealed(TRAINING_SAMPLES) != data[3]
    assert own[5].digest == shared[5].digest and own[3].digest != shared[3].digest
    labels = [training_labels(run) for run in (own[3], own[5], shared[3])]
    first, second, third = labels
    assert np.array_equal(second, third) and not np.array_equal(first, second)
    # They are one row of a comparison, whose samples are to differ.
    assert [len(group.records) for group in group_runs([*own.values()])] == [2]
    assert origin_notes({str(key): origins_of(run) for key, run in own.items()}) == []
