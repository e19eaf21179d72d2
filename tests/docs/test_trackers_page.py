"""The page of trackers: its sweep of W&B calls raysim with settings that there are."""

from __future__ import annotations

import pytest
import yaml

import raysim
from raysim.config import parse_override
from tests.docs.blocks import ROOT, blocks_of

pytestmark = pytest.mark.ci

PAGE = ROOT / "docs/trackers.md"


def test_a_sweep_of_wandb_calls_raysim():
    utilities = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    (sweep,) = [yaml.safe_load(block.text) for block in blocks_of(PAGE) if "${args_" in block.text]
    drawn = {"local.lr": {"value": 0.0213}, "method.mu": {"value": 0.1}}
    assert drawn.keys() == sweep["parameters"].keys()
    *words, last = sweep["command"]
    assert last == "${args_no_hyphens}"
    words += utilities.create_sweep_command_args({"args": drawn})["args_no_hyphens"]
    program, command, preset, *overrides = words
    assert (program, command) == ("raysim", "run")
    settings = raysim.load_config(preset, dict(map(parse_override, overrides)))
    assert settings.local.lr == 0.0213 and settings.tracker == "wandb"
    assert settings.method.settings()["mu"] == 0.1
