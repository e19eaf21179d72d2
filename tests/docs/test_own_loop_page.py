"""The loops of the page on training loops: each is what it says, and repeats without a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raysim
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader

PAGE = ROOT / "docs/own-loop.md"
LOAD = raysim.load_config
"""As it is before a reader cuts runs short."""


@pytest.fixture
def page(reader: Reader) -> dict[str, Any]:
    """Return the names that the page's blocks of Python define."""
    names: dict[str, Any] = {}
    for block in blocks_of(PAGE):
        if block.language == "python" and not block.mark:
            reader.follow(block, names)
    return reader._names


def trained(out: Path, page: dict[str, Any], model: Any, train: Any, **more: Any) -> raysim.Result:
    """Run four rounds of a loop on the clients of the page."""
    test = page["samples"](200, 99)
    task = raysim.Task(model, page["clients"], test, train=train)
    short = {"fraction": 0.5, "local.epochs": 2, "rounds": 4, "target_accuracy": None}
    settings = {**short, "engine.backend": "inline", "out": str(out), **more}
    return raysim.run(LOAD("mnist-fedavg", settings), task)


def same(first: raysim.Result, second: raysim.Result) -> bool:
    return all(torch.equal(first.params[name], second.params[name]) for name in first.params)


def test_the_class_of_pfllib_trains_as_fedprox(page, tmp_path):
    torch.manual_seed(0)
    model = page["make_model"]()
    ours = trained(tmp_path / "loop", page, model, page["train_prox"])
    prox = {"method.name": "fedprox", "method.mu": 0.1}
    theirs = trained(tmp_path / "prox", page, model, None, **prox)
    plain = trained(tmp_path / "plain", page, model, None)
    for name, tensor in theirs.params.items():
        torch.testing.assert_close(ours.params[name], tensor, rtol=1e-4, atol=1e-5)
    assert any((ours.params[n] - t).abs().max() > 1e-2 for n, t in plain.params.items())


def test_the_gan_repeats_and_its_samples_come_closer(page, tmp_path):
    runs = []
    for name in ("a", "b"):
        rings = [page["ring"](40, seed) for seed in range(10)]
        loop = {"train": page["train_gan"], "evaluate": page["evaluate"]}
        task = raysim.Task(page["Gan"], rings, page["test"], **loop)
        short = {"fraction": 0.5, "rounds": 8, "local.epochs": 3, "target_accuracy": None}
        settings = {**short, "engine.backend": "inline", "out": str(tmp_path / name)}
        runs.append(raysim.run(LOAD("mnist-fedavg", settings), task))
    assert same(*runs)
    radii = runs[0].metrics["mean_radius"].to_pylist()
    assert abs(radii[-1] - 1) < abs(radii[0] - 1)


def test_scikit_learns_steps_repeat_and_learn(page, tmp_path):
    model, loop = nn.Linear(8, 3), page["train_sgd"]
    first, second = (
        trained(tmp_path / name, page, model, loop, **{"local.lr": 0.01}) for name in "ab"
    )
    assert same(first, second)
    plain = trained(tmp_path / "plain", page, model, None, **{"local.lr": 0.01})
    assert first.summary["final_accuracy"] >= plain.summary["final_accuracy"] > 0.4


PARTS = (
    ("    def __init__(self, client, mu)", "    def train(self)"),
    ("class Gan", "def ring"),
    ("def train_sgd", "task = raysim.Task(lambda"),
)
"""Of each loop, beginning and end of what is not there already, or the next part."""


def test_each_loop_is_short_beside_the_loop_itself():
    text = PAGE.read_text(encoding="utf-8")
    for first, last in PARTS:
        begin = text.index(first)
        assert 0 < text[begin : text.index(last, begin)].count("\n") < 30
