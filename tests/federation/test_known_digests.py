"""Digests of samples that are prepared already, to compare a finished run's with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

import raysim
from raysim.config import Settings
from raysim.federation.prepared import known_digests, prepared
from raysim.samples.arrow import checksum
from raysim.samples.data import Dataset
from raysim.workloads.datasets.files.saved import HuggingFace
from tests.federation.own_dataset import Own
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_saved import hub
from tests.workloads.datasets.test_mnist import Tiny


def settings_of(dataset: Dataset, **fields: Any) -> Settings:
    return raysim.load_config("mnist-fedavg", fields).model_copy(update={"dataset": dataset})


class Published(Tiny):
    """A dataset of published files, fetched from where they were made."""

    title: ClassVar[str] = Tiny.folder


def of_the_hub() -> HuggingFace:
    return HuggingFace(path="someone/mails", target="spam", client="site")


def saved(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    layouts.hugging_face(Path(folder))


def with_other_settings(root: Path, dataset: Dataset) -> None:
    """Leave a prepared file, of other settings of the dataset."""
    other = root / dataset.title / "prepared/other/train.arrow"
    other.parent.mkdir(parents=True)
    other.touch()


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


@pytest.mark.parametrize("dataset", [Published, of_the_hub])
def test_nothing_is_prepared_for_a_comparison(dataset, tmp_path, monkeypatch):
    asked, chosen = hub(monkeypatch, saved), dataset()
    with_other_settings(tmp_path, chosen)
    before = contents(tmp_path)
    assert known_digests(settings_of(chosen), tmp_path) == {}
    assert contents(tmp_path) == before and asked == []


def test_a_dataset_of_ones_own_is_not_prepared_for_the_first_time(tmp_path):
    assert known_digests(settings_of(Own()), tmp_path) == {}
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("dataset", [Published, of_the_hub])
def test_what_is_prepared_has_its_digests(dataset, tmp_path, monkeypatch):
    hub(monkeypatch, saved)
    paths = prepared(dataset(), tmp_path, lambda *_: None)
    expected = {split: checksum(paths[split]) for split in ("train", "test")}
    assert known_digests(settings_of(dataset()), tmp_path) == expected
    untested = settings_of(dataset(), **{"evaluation.test": False})
    assert known_digests(untested, tmp_path) == {"train": expected["train"]}


def test_a_dataset_without_a_test_set_has_one_of_its_training_samples(tmp_path):
    dataset = Published(pooled=True)
    paths = prepared(dataset, tmp_path, lambda *_: None)
    assert known_digests(settings_of(dataset), tmp_path) == {"train": checksum(paths["train"])}
