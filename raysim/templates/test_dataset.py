"""Tests of NewDataset: its samples, and a run on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import raysim
from raysim.templates.dataset import NewDataset


def test_samples_are_the_same_each_time() -> None:
    """Draw 40 samples of eight numbers for each of three clients, twice."""
    first, second = ([*NewDataset(people=3).samples(40, seed=0)] for _ in range(2))
    assert [client for _, _, client in first] == [0] * 40 + [1] * 40 + [2] * 40
    assert all(x.shape == (8,) and y in (0, 1) for x, y, _ in first)
    np.testing.assert_array_equal([x for x, *_ in first], [x for x, *_ in second])


def test_a_run_learns_them(tmp_path: Path) -> None:
    """Train a linear model on the natural clients."""
    settings = {
        "dataset.name": "raysim.templates.dataset:NewDataset",
        "partition.name": "natural",
        "model.name": "linear",
        "clients": 10,
        "fraction": 0.5,
        "rounds": 5,
        "target_accuracy": None,
        "engine.backend": "inline",
        "out": str(tmp_path / "run"),
    }
    result = raysim.run(raysim.load_config("mnist-fedavg", settings))
    assert result.summary["final_accuracy"] > 0.8
