"""Files that cannot be fetched: which ones are missing is said without preparing a dataset."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from raysim import workloads  # noqa: F401 - registers the datasets
from raysim.api.components import build_component
from raysim.errors import DataError
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.prepared import missing_files

FILES = {
    "cifar100": ("train.bin", "test.bin"),
    "emnist": (
        "emnist-letters-train-images-idx3-ubyte.gz",
        "emnist-letters-train-labels-idx1-ubyte",
        "emnist-letters-test-images-idx3-ubyte.gz",
        "emnist-letters-test-labels-idx1-ubyte",
    ),
    "femnist": ("train/a.json", "test/a.json"),
    "mimic3": ("ADMISSIONS.csv", "PATIENTS.csv.gz", "PRESCRIPTIONS.csv"),
    "chest-xray": tuple(
        f"{split}/{name}/a.png" for split in ("train", "test") for name in ("NORMAL", "PNEUMONIA")
    ),
    "imagenet": tuple(f"{split}/{name}/a.png" for split in ("train", "val") for name in "ab"),
    "aptos": tuple(f"train_images/{code}.png" for code in "abcd"),
    "shakespeare": ("train/a.json", "test/a.json"),
}
"""What a user puts into the folder of each dataset that is not downloaded."""
FIELDS = {"imagenet": {"class_count": 2}, "shakespeare": {"source": "leaf"}}
FIELDS["aptos"] = {"test_share": 0.5}


def build(name):
    return build_component(DATASETS.get(name), FIELDS.get(name, {}), "dataset.")


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_those_that_preparing_asks_for(name, tmp_path):
    dataset = build(name)
    found = missing_files(dataset, tmp_path)
    assert str(tmp_path / name) in found
    with pytest.raises(DataError) as error:
        dataset.prepare(tmp_path, lambda *_: None)
    assert str(error.value) == found


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_missing_once_the_files_are_there(name, tmp_path):
    dataset, folder = build(name), tmp_path / name
    for file in FILES[name]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((2, 2), np.uint8)).save(folder / file, "PNG")
    (folder / "train.csv").write_text("id_code,diagnosis\na,0\nb,0\nc,1\nd,1\n")
    assert missing_files(dataset, tmp_path) == ""
    last = folder / FILES[name][-1]
    last.unlink()
    if name in ("chest-xray", "imagenet"):
        last.parent.rmdir()
    assert missing_files(dataset, tmp_path) != ""


def test_prepared_samples_need_no_published_files(tmp_path):
    (tmp_path / "cifar100/prepared").mkdir(parents=True)
    (tmp_path / "cifar100/prepared/train.arrow").touch()
    assert missing_files(build("cifar100"), tmp_path) == ""


def test_a_missing_file_of_ones_own_is_needed_whatever_is_prepared(tmp_path):
    (tmp_path / "files/prepared/other").mkdir(parents=True)
    (tmp_path / "files/prepared/other/train.arrow").touch()
    path = tmp_path / "mails.csv"
    mails = build_component(DATASETS.get("files"), {"path": str(path), "target": "y"}, "dataset.")
    assert "mails.csv: not there" in missing_files(mails, tmp_path)
    path.write_text("a,y\n1,0\n")
    assert missing_files(mails, tmp_path) == ""


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "synthetic"])
def test_what_can_be_fetched_or_drawn_is_not_missing(name, tmp_path):
    assert missing_files(build(name), tmp_path) == ""


def test_the_plays_of_shakespeare_can_be_fetched(tmp_path):
    plays = build_component(DATASETS.get("shakespeare"), {}, "dataset.")
    assert missing_files(plays, tmp_path) == ""
