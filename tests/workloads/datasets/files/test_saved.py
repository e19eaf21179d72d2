"""Hugging Face's hub, with a double of `datasets`; `test_formats` reads what that saves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysim.errors import DataError, SettingsError
from raysim.federation.prepared import open_prepared, prepared
from raysim.samples.data import Split
from raysim.workloads.datasets.files.saved import HuggingFace
from raysim.workloads.datasets.prepared import missing_files
from tests.workloads.datasets.files import layouts


def read(root: Path, **fields: Any) -> Split:
    chosen = HuggingFace(path="someone/mails", target="spam", client="site", **fields)
    return open_prepared(chosen, prepared(chosen, root, lambda *_: None)["train"])


def hub(monkeypatch: pytest.MonkeyPatch, save: Callable[[str], Any]) -> list[str]:
    """Put a hub in the place of the library's; return the names that it is asked for."""
    asked: list[str] = []

    def load_dataset(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(save_to_disk=save)

    double = SimpleNamespace(load_dataset=load_dataset, __spec__=ModuleSpec("datasets", None))
    monkeypatch.setitem(sys.modules, "datasets", double)
    return asked


def test_a_dataset_of_the_hub_is_fetched_once(tmp_path, monkeypatch):
    def save(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        layouts.hugging_face(Path(folder))

    asked = hub(monkeypatch, save)
    first, again = read(tmp_path), read(tmp_path, standardise=True)
    assert asked == ["someone/mails"]
    assert np.array_equal(first.x, layouts.X[~layouts.TEST]) and len(again) == len(first)


def test_a_split_of_another_name_is_tested_on(tmp_path, monkeypatch):
    def save(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        layouts.hugging_face(Path(folder))
        (Path(folder) / "test").rename(Path(folder) / "validation")
        (Path(folder) / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')

    hub(monkeypatch, save)
    assert len(read(tmp_path, split="validation")) == 4
    assert len(read(tmp_path, split=0.25)) == 3
    with pytest.raises(DataError, match=r"dataset\.split='test': no such split; .*validation"):
        read(tmp_path, split="test")


def test_what_cannot_be_fetched_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def save(folder: str) -> None:
        Path(folder).mkdir(parents=True)
        raise ConnectionError("no\nnetwork")

    hub(monkeypatch, save)
    with pytest.raises(DataError, match=r"dataset\.path=someone/mails: .*not fetched.*no network"):
        read(tmp_path)
    assert not [*(tmp_path / "huggingface" / "hub").iterdir()]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        SettingsError, match=r"dataset\.path=someone/mails: .*raysim-fl\[huggingface\]"
    ):
        read(tmp_path)


def test_asking_what_is_missing_fetches_nothing(tmp_path, monkeypatch):
    chosen = HuggingFace(path="someone/mails", target="spam")
    asked = hub(monkeypatch, lambda folder: None)
    assert missing_files(chosen, tmp_path) == "" and asked == []
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "raysim-fl[huggingface]" in missing_files(chosen, tmp_path)
    (tmp_path / "huggingface/hub/someone-mails").mkdir(parents=True)
    assert "has no state.json" in missing_files(chosen, tmp_path)
