"""Points around the corners of a polygon: their moments, and that draws depend on fields alone."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.samples.arrow import open_split
from raysim.workloads.datasets.plane import Plane


def splits_of(dataset, root):
    return {name: open_split(path) for name, path in dataset.prepare(root, print).items()}


def test_moments_of_each_class(tmp_path):
    dataset = Plane(corners=5, samples=4000, test_samples=900, deviation=0.2, seed=3)
    assert (dataset.shape, dataset.classes) == ((2,), 5)
    splits = splits_of(dataset, tmp_path)
    for split, count in (("train", 4000), ("test", 900)):
        x, y = np.asarray(splits[split].x), np.asarray(splits[split].y)
        assert np.bincount(y).tolist() == [count] * 5 and x.dtype == np.float32
        for c in range(5):
            corner = [np.cos(2 * np.pi * c / 5), np.sin(2 * np.pi * c / 5)]
            own = x[y == c]
            assert np.abs(own.mean(0) - corner).max() < 5 * 0.2 / count**0.5
            assert np.cov(own.T) == pytest.approx(0.04 * np.eye(2), abs=5 * 0.06 / count**0.5)
    train, test = ({*map(tuple, splits[name].x.tolist())} for name in ("train", "test"))
    assert train.isdisjoint(test)


def test_draws_depend_on_the_seed_and_corners_without_deviation_are_met(tmp_path):
    x = [np.asarray(splits_of(Plane(seed=seed), tmp_path)["train"].x) for seed in (0, 0, 1)]
    assert (x[0] == x[1]).all() and (x[0] != x[2]).all()
    met = splits_of(Plane(corners=4, samples=1, deviation=0.0), tmp_path)["train"].x
    assert np.asarray(met) == pytest.approx(np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]), abs=1e-7)
