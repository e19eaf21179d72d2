"""Presets by name: presets of the papers, and presets for getting started.

A preset is a published experiment, as a Python value that is derived from another with `replace`.
Names are paper-dataset-variant. Settings that vary from cell to cell in a paper's table (a method,
one of its settings, a temperature) have no presets: they are overrides of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.api.components import look_up
from raysim.errors import SettingsError, visible
from raysim.user_input import or_none
from raysim.workloads.papers.dnc import presets as dnc
from raysim.workloads.papers.fedfusion import presets as fedfusion
from raysim.workloads.papers.fedmax import presets as fedmax
from raysim.workloads.papers.fedmmd import presets as fedmmd
from raysim.workloads.papers.flexchill import presets as flexchill
from raysim.workloads.papers.mifl import presets as mifl
from raysim.workloads.papers.pfl import presets as pfl
from raysim.workloads.papers.pfllib import presets as pfllib
from raysim.workloads.papers.preset import Paper, Preset, origins

MNIST_1000 = Preset(
    "1000 clients of 60 samples, 100 a round",
    {**mifl.MNIST_FEDAVG.values, "clients": 1000},
    dict.fromkeys(mifl.MNIST_FEDAVG.marks, "chosen"),
)
MNIST_MILLION = MNIST_1000.replace(
    "1,000,000 clients that draw 60 samples each, 1000 a round",
    partition={"name": "resample", "samples": 60},
    clients=1_000_000,
    fraction=0.001,
    local={"epochs": 1},
)

OWN_DATA, OWN_IMAGES = "own-data", "own-images"
OWN_TEXT, OWN_PROMPTS = "own-text", "own-prompts"
"""Presets for data of a user's own."""
_OWN_DATA = Preset(
    "your own table or arrays: raysim run mails.csv target=spam client=domain",
    {
        "dataset": {
            **{"name": "files", "missing": "mean", "texts": "leave_out"},
            "standardise": True,
        },
        "partition": {"name": "natural_or_iid"},
        "model": {"name": "by-shape"},
        "method": {"name": "fedavg"},
        "clients": 10,
        "rounds": 20,
        "fraction": 1.0,
        "local": {
            **{"epochs": 2, "batch_size": 32, "optimizer": "adam", "lr": 0.01},
            **{"schedule": "cosine", "weight_decay": 0.015},
        },
        "engine": {"backend": "inline"},
    },
    origins(chosen="dataset partition model method clients rounds fraction local engine.backend"),
)
_OWN_IMAGES = _OWN_DATA.replace(
    "your own folder of images: raysim run photos image_size=32",
    note="Of own-data's rate the CNN stays where it starts, on CIFAR-10.",
    local={"lr": 0.003},
)

_OWN_TEXT = _OWN_DATA.replace(
    "your own texts by class, adapters of MiniLM: raysim run mails.csv target=spam text=body",
    note="Of the rates 0.001, 0.003, 0.01 and 0.03, 0.01 gave the lowest test loss on 1,000 mails"
    " of SpamAssassin, in 10 rounds of 4 of 10 clients and 3 steps.",
    dataset={
        **{"name": "files", "missing": "drop", "texts": "refuse", "standardise": False},
        "length": 64,
    },
    model={"name": "huggingface", "path": "minilm"},
    rounds=15,
    fraction=0.4,
    local={"epochs": 1, "steps": 4, "batch_size": 16, "lr": 0.01, "weight_decay": 0.0},
    evaluation={"every": 5},
    origins=origins(chosen="evaluation.every"),
)
_OWN_PROMPTS = _OWN_TEXT.replace(
    "your own prompts, adapters of SmolLM2: raysim run chat.csv prompt=ask answer=reply",
    dataset={"length": 128},
    model={"path": "smollm2", "task": "causal-lm"},
    local={"batch_size": 4},
    analysis=["answers"],
    origins=origins(chosen="analysis"),
)

_FEDIT = _OWN_TEXT.replace(
    "FedIT: means of the adapters of MiniLM, on mails, spam or not",
    dataset={"name": "spam-assassin", "text": True, "length": 64},
    partition={"name": "iid"},
)
_INSTRUCTIONS = _OWN_PROMPTS.replace(
    "FedIT: means of the adapters of SmolLM2, on prompts and answers drawn by rule",
    dataset={"name": "instructions", "length": 64},
    partition={"name": "natural"},
    clients=8,
    rounds=10,
    fraction=0.5,
    local={"lr": 0.001},
    analysis=[],
)
_FLOWERTUNE = _INSTRUCTIONS.replace(
    "FlowerTune's shape: 20 clients, 2 a round, 10 steps, rank 32, cosine rate",
    note="Numbers of Flower's template of FlowerTune. Its network is Mistral-7B in 4 bits, its data"
    " are instructions of 4 fields, its clients take 512 tokens; those are SmolLM2, and drawn"
    " instructions, here. model.random draws a network of any size.",
    partition={"name": "iid"},
    model={"lora": {"rank": 32, "alpha": 64.0}},
    clients=20,
    rounds=200,
    fraction=0.1,
    local={"steps": 10, "batch_size": 16, "lr": 5e-5, "lr_min": 1e-6},
    evaluation={"every": 20},
)
ADAPTERS = {
    "fedit-mails": _FEDIT,
    "ffa-lora-mails": _FEDIT.replace(
        "FFA-LoRA: fedit-mails with A as it was drawn", model={"lora": {"freeze_a": True}}
    ),
    "fedsa-lora-mails": _FEDIT.replace(
        "FedSA-LoRA: fedit-mails with an own B and an own head for each client",
        method={"name": "fedper", "own": ["*.lora_B.*", "head"]},
    ),
    "rolora-mails": _FEDIT.replace(
        "RoLoRA: fedit-mails with rounds of B and of A in turn", method={"name": "rolora"}
    ),
    "fedit-instructions": _INSTRUCTIONS,
    "flowertune": _FLOWERTUNE,
}
"""Presets of adapters, most named by papers' methods, which are settings here; data, network and
local training are chosen."""

START = {
    OWN_DATA: _OWN_DATA,
    OWN_IMAGES: _OWN_IMAGES,
    OWN_TEXT: _OWN_TEXT,
    OWN_PROMPTS: _OWN_PROMPTS,
    "mnist-fedavg": mifl.MNIST_FEDAVG,
    "mnist-noniid": mifl.MNIST_NONIID,
    "mnist-1000": MNIST_1000,
    "mnist-million": MNIST_MILLION,
}
"""Presets for getting started: two rows of MIFL's table 2b, and two sizes that no paper has."""

PRESETS: Mapping[str, Preset] = {
    **START,
    **ADAPTERS,
    **fedmax.PRESETS,
    **dnc.PRESETS,
    **fedmmd.PRESETS,
    **fedfusion.PRESETS,
    **flexchill.PRESETS,
    **mifl.PRESETS,
    **pfl.PRESETS,
    **pfllib.PRESETS,
}

__all__ = ["PRESETS", "Paper", "Preset", "changes_of", "on_preset"]


def on_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, whose `preset` gives missing ones.

    Raises:
        SettingsError: there is no such preset.
    """
    if "preset" not in values:
        return dict(values)
    from raysim.config import apply_overrides  # which imports torch

    if not isinstance(name := values["preset"], str):
        raise SettingsError(f"preset={visible(str(name))}: must be the name of a preset")
    preset = look_up("preset", name, PRESETS)
    return apply_overrides(preset.settings.to_dict(), changes_of(values))


def changes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file as overrides of its preset, by dotted key."""
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            changes |= {f"{key}.{name}": or_none(item) for name, item in value.items()}
        else:
            changes[key] = or_none(value)
    changes.pop("preset", None)
    return changes
