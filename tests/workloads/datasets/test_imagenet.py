"""ImageNet: a few class folders, prepared in parts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import ConcatArray, open_split
from raysim.samples.data import DATASETS
from raysim.workloads.datasets import image_files
from raysim.workloads.datasets.imagenet import ImageNet

CLASSES = ("n01440764", "n01443537", "n02084071")


def ignore(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five training and two validation images a class, of which a part holds four."""
    monkeypatch.setattr(image_files, "PART_BYTES", 4 * 3 * 8 * 8)
    for split, count in (("train", 5), ("val", 2)):
        for label, name in enumerate(CLASSES):
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            for number in reversed(range(count)):
                image = Image.new("RGB", (30, 10), (0, 0, 0))
                image.paste((50 * label, 10 * number, 100), (10, 0, 20, 10))
                path = tmp_path / "imagenet" / split / name / f"{name}_{number}.JPEG"
                image.save(path, "PNG" if number == 0 else "JPEG", quality=100)
    return tmp_path / "imagenet"


def test_class_folders_become_parts_in_the_order_of_their_names(folder: Path) -> None:
    dataset = ImageNet(image_size=8, class_count=3)
    paths = dataset.prepare(folder.parent, ignore)
    for split, count in (("train", 5), ("test", 2)):
        read = open_split(paths[split])
        assert isinstance(read.x, ConcatArray)
        assert read.x.shape == (3 * count, 3, 8, 8)
        labels = np.repeat(np.arange(3), count)
        assert read.y.tolist() == labels.tolist()
        middle = read.x[:][:, :, 4, 4].astype(int)
        expected = np.stack([50 * labels, 10 * np.tile(np.arange(count), 3), 0 * labels + 100], 1)
        assert np.abs(middle - expected).max() <= 6  # JPEG halves the resolution of colours
        some = np.array([3 * count - 1, 0])
        assert np.array_equal(read.x[some], read.x[:][some])


def test_the_middle_square_is_kept(folder: Path) -> None:
    paths = ImageNet(image_size=8, class_count=3).prepare(folder.parent, ignore)
    first = open_split(paths["train"]).x[:1]  # a PNG, hence exact
    # Of the black sides no more is left than what their neighbours' averages take in.
    assert first[..., 1:-1].tolist() == [[[[value] * 6] * 8 for value in (0, 0, 100)]]
    assert first[0, 2].min() > 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "train").rename(f / "x"), "train: not there; put the class folders there"),
        (
            lambda f: (f / "train/n03").mkdir(),
            "train: holds 4 class folders; dataset.class_count is 3",
        ),
        (lambda f: (f / "val" / CLASSES[1]).rename(f / "x"), f"val/{CLASSES[1]}: not there"),
        (lambda f: (f / "val/ILSVRC2012_val_1.JPEG").touch(), "val/ILSVRC2012_val_1.JPEG: is no"),
    ],
)
def test_what_is_wrong_with_the_folders_is_named(folder: Path, change, message: str) -> None:
    change(folder)
    with pytest.raises(DataError, match=f"{folder}/{message}"):
        ImageNet(image_size=8, class_count=3).prepare(folder.parent, ignore)
    assert not (folder / "prepared").exists()


def test_a_damaged_validation_image_is_named_and_nothing_is_kept(folder: Path) -> None:
    image = folder / "val" / CLASSES[2] / f"{CLASSES[2]}_1.JPEG"
    image.write_bytes(image.read_bytes()[:100])
    with pytest.raises(DataError, match=f"{image}: cannot be decoded"):
        ImageNet(image_size=8, class_count=3).prepare(folder.parent, ignore)
    assert {path.name for path in folder.iterdir()} == {".lock", "train", "val"}


def test_the_registered_name() -> None:
    dataset = DATASETS.get("imagenet")()
    assert dataset.settings() == {
        "name": "imagenet",
        "normalised": True,
        "image_size": 224,
        "class_count": 1000,
    }
    assert dataset.shape == (3, 224, 224)
    assert dataset.classes == 1000
