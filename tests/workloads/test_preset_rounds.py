"""One round of every preset on tiny data of its dataset's form, with its own everything else.

Only what makes a round long is made small: clients a round, epochs, samples of a shard, pixels of
photographs. Partition, network, method and local training are the preset's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.api.scoring import LANGUAGE_MODEL
from raysim.config import Settings
from raysim.facade.own_data import is_own_data
from raysim.federation.federation import from_settings
from raysim.numbers.seeds import stream
from raysim.samples.arrow import write_split
from raysim.samples.data import Dataset, Split
from raysim.user_input import dotted
from raysim.workloads.presets import PRESETS
from tests.pretrained import SIZES, save_network

torch.set_num_threads(1)

SMALL = {
    "local.epochs": 1,
    "method.finetune_epochs": 1,
    "method.prepass": 1,
    "method.probe": 1,
    "partition.size": 1,
    "partition.minimum": 1,
    "partition.samples": 4,
    "dataset.image_size": 32,
    "model.lora.rank": 4,
}
"""Values of settings, where a preset has them set; ResNets take no smaller photographs, and tiny
networks no higher rank."""
COHORT = 2
LARGE = "resnet50"
"""The network of which one client a round has to do."""
EACH = {"emnist": 24, "cifar100": 20}
"""Training samples per client, where 6 are too few for its classes."""


def small(settings: Settings, out: Path) -> Settings:
    """Return the settings with a short round of few clients."""
    values = dotted(settings.to_dict())
    overrides = {key: value for key, value in SMALL.items() if values.get(key) is not None}
    overrides |= {"rounds": 1, "engine.backend": "inline", "out": str(out)}
    if values["model.name"] == "huggingface":
        kind = "bert" if settings.model.task == "classification" else "llama"
        overrides["model.path"] = str(save_network(out.with_name("network"), kind))
    cohort = 1 if settings.model.title == LARGE else COHORT
    if settings.cohort_size > cohort and settings.fraction < 1:
        overrides["fraction"] = cohort / settings.clients
    return settings.override(overrides)


@cache
def tiny(dataset: Dataset, rows: int) -> Split:
    """Draw raw samples of a dataset's form, of as many classes as it has, with its columns."""
    name, shape = dataset.title, dataset.shape or (dataset.length,)
    draw = stream(0, "tiny", rows)
    if name in ("mnist", "emnist"):
        shape = (1, 28, 28)  # stored without padding
    if name in ("synthetic", "plane"):
        x = draw.standard_normal((rows, *shape), np.float32)
    else:
        tokens = dict.fromkeys(("spam-assassin", "instructions"), SIZES["vocab_size"])
        top = {"shakespeare": 80, "mimic3": 2, **tokens}.get(name, 256)
        x = draw.integers(0, top, (rows, *shape), np.uint8)
    if dataset.scoring is LANGUAGE_MODEL:
        y = np.roll(x, -1, 1).astype(np.int64)  # any token follows the last one
    else:
        y = np.arange(rows) % dataset.classes
    return Split(x, y, columns(name, rows, draw))


def columns(name: str, rows: int, draw: np.random.Generator) -> Mapping[str, Any]:
    """Return what a dataset says of its samples besides their class."""
    owner = np.arange(rows) % 80
    if name == "femnist":
        return {"writer": owner}
    if name == "shakespeare":
        return {"role": owner, "characters": np.where(owner < 70, 10_000 + owner, 9_999)}
    if name == "mimic3":
        ages, genders = draw.integers(0, 10, rows), draw.integers(0, 2, rows)
        return {"subject": np.arange(rows), "age_group": ages, "gender": genders}
    if name == "instructions":
        return {"kind": owner % 8}
    if name == "synthetic":
        return {"user": np.arange(rows) % 100}
    return {}


@pytest.fixture
def settings(request, monkeypatch, tmp_path) -> Settings:
    """Return a preset's settings for a short round, its dataset with tiny prepared files."""
    chosen = small(raysim.load_config(request.param), tmp_path / "run")
    each = EACH.get(chosen.dataset.title, 6)
    rows = {
        "train": max(each * min(chosen.clients, 1000), 40),
        "test": min(2 * (chosen.dataset.classes or 10), 200),
    }

    def prepare(dataset, root, progress):
        paths = {split: tmp_path / f"{split}.arrow" for split in rows}
        for split, path in paths.items():
            write_split(path, tiny(dataset, rows[split]))
        return paths

    monkeypatch.setattr(type(chosen.dataset), "prepare", prepare)
    return chosen


TWINS = [name for name in PRESETS if name.endswith("-600")]
"""FedMAX's presets of 600 rounds of 5 epochs: those of 3000 rounds of 1 but for the schedule."""


def test_twins_differ_in_their_schedule_alone():
    assert len(TWINS) == 6
    for twin in TWINS:
        first, other = (
            dotted(PRESETS[name].settings.to_dict()) for name in (twin.removesuffix("-600"), twin)
        )
        changed = {key for key in {*first, *other} if first.get(key) != other.get(key)}
        assert changed == {"rounds", "local.epochs", "local.lr_decay"}, twin


SLOW = {
    *("dnc-colour-fedma", "dnc-imbalance-fedma", "dnc-shakespeare-fedma", "mifl-imagenet"),
    *("fedmax-aptos-noniid", "fedmax-xray-iid", "fedmax-xray-noniid"),
    *("dnc-colour-prepass", "dnc-imbalance", "dnc-single-class", "dnc-shakespeare"),
    "pfl-cifar10-dp",
}
"""Seconds each; what they have is in other presets and tests: VGG9, ResNet-50, char-lstm, FedMA,
images by colour, classes out of proportion, and privacy of equal clients."""


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(name, marks=[pytest.mark.full] if name in SLOW else [])
        for name in PRESETS
        if name not in TWINS and not is_own_data(name)  # which have no data
    ],
    indirect=True,
)
def test_one_round(tmp_path, settings):
    result = raysim.run(settings)
    assert result.summary["rounds"] == 1
    pooled = settings.evaluation.local_test > 0
    assert 0 <= result.summary[f"final_{'local_test_' * pooled}accuracy"] <= 1
    assert result.metrics["clients"].to_pylist()[-1] == settings.cohort_size
    assert result.metrics["train_loss"].to_pylist()[-1] > 0
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    network = from_settings(settings, lambda: tmp_path, lambda *_: None).network(settings.seed)
    before = settings.method.deployed(settings.method.init(network))
    common = (
        before.keys() & result.params.keys()
    )  # FedFusion deploys its first model without fusion
    assert any(not torch.equal(before[name], result.params[name]) for name in common)
