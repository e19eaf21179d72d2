"""FEMNIST in LEAF's format, in small files made here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.femnist import Femnist

# '0', '9', 'A', 'Z', 'a', 'z', as LEAF numbers them.
LABELS = {"f0001_41": [0, 9, 10, 35], "f0002_17": [36, 61]}


def ignore(what: str, done: int, total: int) -> None:
    pass


def bytes_of(writer: str) -> np.ndarray:
    generator = np.random.default_rng(len(LABELS[writer]))
    return generator.integers(256, size=(len(LABELS[writer]), 784))


def published() -> dict[str, Any]:
    """Return images as LEAF writes them: `(array / 255).tolist()` for each image."""
    data = {
        writer: {"x": [(image / 255).tolist() for image in bytes_of(writer)], "y": list(labels)}
        for writer, labels in LABELS.items()
    }
    return {"users": list(data), "num_samples": [4, 2], "user_data": data}


def put(root: Path, train: Any) -> Path:
    for split, value in (("train", train), ("test", published())):
        folder = root / "femnist" / split
        folder.mkdir(parents=True)
        (folder / "all_data_0_niid_1_keep_0_9.json").write_text(json.dumps(value))
    return root / "femnist" / "train" / "all_data_0_niid_1_keep_0_9.json"


def test_the_published_values_come_back(tmp_path: Path) -> None:
    put(tmp_path, published())
    paths = Femnist().prepare(tmp_path, ignore)
    expected = np.concatenate([bytes_of(writer) for writer in LABELS]).reshape(-1, 1, 28, 28)
    for split in ("train", "test"):
        read = open_split(paths[split])
        assert read.x.dtype == np.uint8
        assert np.array_equal(read.x, expected)
        assert read.y.dtype == np.int64
        assert read.y.tolist() == [0, 9, 10, 35, 36, 61]
        assert read.columns["writer"].tolist() == [0, 0, 0, 0, 1, 1]
    writers = open_split(paths["writers"])
    assert writers.x.tolist() == list(LABELS)
    assert writers.y.tolist() == [8, 4]


def test_letters_are_the_26_of_the_alphabet(tmp_path: Path) -> None:
    put(tmp_path, published())
    dataset = Femnist(letters=True)
    paths = dataset.prepare(tmp_path, ignore)
    read = open_split(paths["train"])
    assert dataset.classes == 26
    assert open_split(paths["writers"]).y.tolist() == [8, 4]  # digits included
    assert read.y.tolist() == [0, 25, 0, 25]
    assert read.columns["writer"].tolist() == [0, 0, 1, 1]
    assert np.array_equal(read.x[0].ravel(), bytes_of("f0001_41")[2])


def test_both_kinds_lie_side_by_side(tmp_path: Path) -> None:
    put(tmp_path, published())
    everything = Femnist().prepare(tmp_path, ignore)["train"]
    Femnist(letters=True).prepare(tmp_path, ignore)
    assert len(open_split(everything)) == 6


def test_labels_written_as_floats_are_read(tmp_path: Path) -> None:
    train = published()
    train["user_data"]["f0002_17"]["y"] = [36.0, 61.0]
    put(tmp_path, train)
    assert open_split(Femnist().prepare(tmp_path, ignore)["train"]).y.tolist()[-2:] == [36, 61]


def test_decoding_gives_the_floats_of_the_files() -> None:
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert torch.equal(Femnist().decode(raw), torch.tensor([0.0, 0.2, 1.0]))


IMAGE = [0.0] * 784
DAMAGES = {
    "short image": ("x", [IMAGE, IMAGE[:-1]], "sample 1 has 783 values, not 784"),
    "no image": ("x", [0.5, IMAGE], "sample 0 has no list, not 784"),
    "bytes": ("x", [IMAGE, [255.0] * 784], "sample 1 has the value 255.0 at pixel 0; allowed"),
    "other levels": ("x", [IMAGE, [0.0, 0.123, *IMAGE[2:]]], "sample 1 has the value 0.123 at"),
    "negative": ("x", [[-1 / 255] * 784, IMAGE], "sample 0 has the value -0.00392"),
    "nan": ("x", [IMAGE, [float("nan")] * 784], "sample 1 has the value nan at pixel 0"),
    "infinite": ("x", [IMAGE, [float("inf")] * 784], "sample 1 has the value inf at pixel 0"),
    "words": ("x", [IMAGE, ["white"] * 784], "`x` and `y` must hold numbers"),
    "nested": ("x", [[[0.0]] * 784] * 2, "`x` and `y` must hold numbers, not lists"),
    "ragged": ("x", [[[0.0]] * 784, IMAGE], "`x` and `y` must hold numbers"),
    "too large": ("y", [3, 62], "sample 1 has label 62; allowed are 0 to 61"),
    "below 0": ("y", [-1, 3], "sample 0 has label -1; allowed are 0 to 61"),
    "half": ("y", [3, 3.5], "sample 1 has label 3.5; allowed are 0 to 61"),
    "none": ("y", [3, None], "sample 1 has label None; allowed are 0 to 61"),
    "lists": ("y", [[3], [4]], "`x` and `y` must hold numbers, not lists"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_leaves_nothing_prepared(tmp_path: Path, damage: str) -> None:
    part, values, message = DAMAGES[damage]
    train = published()
    train["user_data"]["f0002_17"][part] = values
    path = put(tmp_path, train)
    with pytest.raises(DataError, match=f"^{path}: user f0002_17: {message}"):
        Femnist().prepare(tmp_path, ignore)
    assert {entry.name for entry in path.parents[1].iterdir()} == {".lock", "train", "test"}


def test_where_nothing_is_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"femnist/train: no \*\.json found.*preprocess\.sh -s niid"
    ):
        Femnist().prepare(tmp_path, ignore)


def test_registered() -> None:
    dataset = DATASETS.get("femnist")()
    assert dataset.settings() == {"name": "femnist", "letters": False}
    assert (dataset.shape, dataset.classes) == ((1, 28, 28), 62)
