"""EMNIST: small idx files with transposed images."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.mnist import Emnist
from tests.workloads.datasets.idx_files import encode_idx


def ignore(what: str, done: int, total: int) -> None:
    pass


def put(root: Path, split: str, labels: list[int]) -> np.ndarray:
    """Write the four files of a split; return the upright images, the same for both parts."""
    upright = np.random.default_rng(0).integers(256, size=(len(labels), 28, 28), dtype=np.uint8)
    (root / "emnist").mkdir(exist_ok=True)
    for part in ("train", "test"):
        stem = str(root / "emnist" / f"emnist-{split}-{part}")
        lying = np.stack([image.T for image in upright])
        images = encode_idx(lying)
        Path(f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        content = encode_idx(np.array(labels, dtype=np.uint8))
        Path(f"{stem}-labels-idx1-ubyte").write_bytes(content)
    return upright


def test_letters_stand_upright_and_count_from_zero(tmp_path: Path) -> None:
    upright = put(tmp_path, "letters", [1, 26, 5])
    for path in Emnist().prepare(tmp_path, ignore).values():
        read = open_split(path)
        assert np.array_equal(read.x[:, 0], upright)
        assert read.y.tolist() == [0, 25, 4]


def test_splits_are_prepared_apart(tmp_path: Path) -> None:
    put(tmp_path, "letters", [1, 26])
    put(tmp_path, "byclass", [0, 61, 7])
    letters = Emnist().prepare(tmp_path, ignore)
    byclass = Emnist(split="byclass").prepare(tmp_path, ignore)
    assert open_split(letters["test"]).y.tolist() == [0, 25]
    assert open_split(byclass["test"]).y.tolist() == [0, 61, 7]
    assert Emnist(normalised=True, padded=True).prepare(tmp_path, ignore) == letters


@pytest.mark.parametrize(
    ("split", "label", "message"),
    [
        ("letters", 0, "image 1 has label 0; allowed are 1 to 26"),
        ("letters", 27, "image 1 has label 27; allowed are 1 to 26"),
        ("byclass", 62, "image 1 has label 62; allowed are 0 to 61"),
        ("digits", 10, "image 1 has label 10; allowed are 0 to 9"),
    ],
)
def test_other_labels_are_named(tmp_path: Path, split: str, label: int, message: str) -> None:
    put(tmp_path, split, [1, label, 2])
    with pytest.raises(DataError, match=f"emnist-{split}-train-labels-idx1-ubyte: {message}"):
        Emnist.model_validate({"split": split}).prepare(tmp_path, ignore)
    assert not (tmp_path / "emnist" / "prepared").exists()


def test_truncated_images_are_named(tmp_path: Path) -> None:
    put(tmp_path, "letters", [1, 2])
    images = tmp_path / "emnist" / "emnist-letters-test-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(DataError, match=f"{images}: not a complete gzip file"):
        Emnist().prepare(tmp_path, ignore)
    images.write_bytes(gzip.compress(encode_idx(np.zeros((2, 28, 28), np.uint8))[:-1]))
    with pytest.raises(DataError, match=r"test-images-idx3-ubyte: holds 1567 values; .* = 1568"):
        Emnist().prepare(tmp_path, ignore)


def test_missing_files_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    message = r"emnist: emnist-balanced-train-images-idx3-ubyte, .*, from gzip\.zip of https://"
    with pytest.raises(DataError, match=message):
        Emnist(split="balanced").prepare(tmp_path, ignore)


def test_the_registered_name() -> None:
    dataset = DATASETS.get("emnist")()
    assert dataset.settings() == {
        "name": "emnist",
        "padded": False,
        "normalised": False,
        "split": "letters",
        "pooled": False,
        "means": [0.1307],
        "deviations": [0.3081],
    }
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == 26
