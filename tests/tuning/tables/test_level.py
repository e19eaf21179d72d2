"""Level of the comparison on real runs: one method under two names, in many sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysim
from raysim.methods.fedavg import FedAvg
from tests.tuning.common import PRESET

SWEEPS, MOST = 100, 10
"""At a level of 5%, more than 10 of 100 sweeps are told apart in 1% of cases."""


class Mirrored(FedAvg):
    """FedAvg from another draw of the initial model: each tensor in reversed order."""

    def init(self, network):
        state = super().init(network)
        model = {name: tensor.flip(-1) for name, tensor in state.groups["model"].items()}
        return state.replace(model=model)


@pytest.mark.full
def test_a_method_under_two_names_comes_out_equal_in_most_of_100_sweeps(
    slots, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("blobs.json").write_text(json.dumps(PRESET | {"rounds": 2}))
    axes = {"method.name": ["fedavg", f"{__name__}:Mirrored"]}
    told_apart = 0
    for number in range(SWEEPS):
        seeds = range(5 * number, 5 * number + 5)
        cells = raysim.sweep("blobs.json", axes, seeds=seeds, out=f"out/{number}").cells
        assert cells["n"].to_pylist() == [5, 5]
        told_apart += cells["best"].to_pylist().count(False)
    print(f"told apart in {told_apart} of {SWEEPS} sweeps")
    assert told_apart <= MOST
