"""Presets: each resolves, says where its settings come from, and holds what its paper prints."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from raysim.cli import pages
from raysim.errors import SettingsError
from raysim.user_input import dotted
from raysim.workloads.papers.preset import ORIGINS, departures, names, origins
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.presets import PRESETS, Preset

README = (Path(__file__).parents[2] / "workloads/README.md").read_text(encoding="utf-8")

# From the papers' texts: K, C, rounds, E, B, lr, its decay a round; None for what they do not say,
# or what the preset's note departs from.
PRINTED = {
    "fedmax-cifar10-noniid": (100, 0.1, 3000, 1, 100, 0.1, 0.9992),
    "fedmax-cifar100-iid": (100, 0.1, 3000, 1, 100, 0.1, 0.9992),
    "fedmax-femnist-noniid-600": (100, 0.1, 600, 5, 100, 0.1, 0.996),
    "fedmax-cifar10-iid-600": (100, 0.1, 600, 5, 100, 0.1, 0.996),
    "fedmax-aptos-noniid": (100, 0.1, 300, 1, 32, 0.001, 0.992),
    "fedmax-xray-iid": (100, 0.1, 300, 1, 32, 0.001, 0.992),
    "fedmax-synthetic": (100, 0.1, 200, 1, None, None, None),
    "dnc-colour": (2, None, 18, 20, None, 0.001, 0.9),
    "dnc-imbalance": (5, None, 18, 20, None, 0.001, 0.9),
    "dnc-shakespeare": (66, None, 9, 20, None, None, 0.9),
    "fedmmd-cifar10-binary": (2, 1.0, None, 2, 128, None, None),
    "fedmmd-mnist-noniid": (100, 0.1, None, 2, 10, None, None),
    "fedfusion-mnist-binary": (None, None, None, None, None, 0.003, 0.985),
    "fedfusion-mnist-permuted": (None, None, None, None, None, 0.002, 0.99),
    "flexchill-femnist": (36, 0.28, 300, 10, 16, 0.001, None),
    "flexchill-cifar10": (50, 0.2, 300, 10, 16, 0.001, None),
    "flexchill-cifar100": (50, 0.2, 300, 10, 16, 0.001, None),
    "flexchill-cifar10-cka": (10, 1.0, 100, 10, 32, 0.005, None),
    "flexchill-cifar10-fedprox": (50, 0.1, 300, 5, 32, 0.001, None),
    "flexchill-cifar10-dirichlet": (50, 0.1, 100, 5, 32, 0.001, None),
    "mifl-mnist-2nn-iid": (100, 0.1, None, 5, 10, 0.1, None),
    "mifl-mnist-cnn-noniid": (100, 0.1, None, 5, 10, 0.1, None),
    "mifl-cifar10": (100, 0.1, None, 5, 50, 0.1, None),
    "mifl-imagenet": (100, 0.1, None, 5, 64, 0.1, None),
    "mifl-mimic3": (100, 0.1, None, 5, 50, 0.001, None),
}
SCHEDULE = (
    "clients",
    "fraction",
    "rounds",
    "local.epochs",
    "local.batch_size",
    "local.lr",
    "local.lr_decay",
)

# Parameters that the papers, or their public code, have for each network.
PARAMETERS = {
    "fedmax-cifar10-noniid": 659_818,
    "fedmax-cifar100-noniid": 705_988,
    "fedmax-femnist-noniid": 438_074,
    "fedmax-synthetic": 529_930,
    "dnc-colour": 3_491_530,
    "dnc-shakespeare": 293_584,
    "fedmmd-cifar10-binary": 1_756_426,
    "fedmmd-mnist-noniid": 1_663_370,
    "fedfusion-mnist-permuted": 1_663_370,
    "fedfusion-cifar10-iid": 1_756_426,
    "flexchill-femnist": 574_142,
    "flexchill-cifar10": 136_606,
    "mifl-mnist-2nn-iid": 199_210,
    "mifl-mnist-cnn-noniid": 454_922,
    "mifl-cifar10": 122_570,
    "mifl-imagenet": 25_557_032,
    "mifl-mimic3": 320_001,
    "pfl-cifar10-dp": 1_626_442,
}


def test_the_papers_have_their_presets():
    papers = {preset.paper.name for preset in PRESETS.values() if preset.paper}
    assert papers == {
        "FedMAX",
        "Divide-and-Conquer",
        "FedMMD",
        "FedFusion",
        "FLex&Chill",
        "MIFL",
        "PFLlib",
        "pfl-research",
    }
    assert {"fedmax-cifar10-noniid", "dnc-colour", "dnc-shakespeare"} <= set(PRESETS)


def test_every_setting_off_its_default_says_where_it_comes_from():
    for name, preset in PRESETS.items():
        silent = [key for key in departures(preset.settings) if preset.origin(key) not in ORIGINS]
        stale = sorted(preset.origins.keys() - names(preset.settings))
        assert (silent, stale) == ([], []), name
        shown = [key for values in preset.by_origin().values() for key in values]
        assert len(shown) == len(set(shown)), name
        assert set(shown) >= set(departures(preset.settings)), name


def test_papers_stand_beside_their_places_and_sources():
    for name, preset in PRESETS.items():
        if preset.paper is None:
            assert preset.by_origin()["printed"] == preset.by_origin()["inferred"] == {}, name
            assert not preset.published, name
        else:
            assert re.search(r"(table|figure|appendix|section)s? ", preset.reference), name
            assert preset.paper.inferred_from or not preset.by_origin()["inferred"], name


@pytest.mark.parametrize("name", PRINTED)
def test_the_schedule_is_the_paper_s_and_is_said_to_be_printed(name):
    preset = PRESETS[name]
    values = dotted(preset.settings.to_dict())
    for key, expected in zip(SCHEDULE, PRINTED[name], strict=True):
        assert expected in (None, values[key]), key
        assert (preset.origin(key) == "printed") == (expected is not None), key


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_papers_numbers_of_parameters(name):
    dataset, model = PRESETS[name].settings.dataset, PRESETS[name].settings.model
    network = model.build(dataset.shape, dataset.classes)
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]


def test_methods_and_partitions_of_the_named_presets():
    fedmax, colour, roles = (
        dotted(PRESETS[name].settings.to_dict())
        for name in ("fedmax-cifar10-noniid", "dnc-colour", "dnc-shakespeare")
    )
    assert (fedmax["method.name"], fedmax["method.beta"]) == ("fedmax", 1500)
    assert (fedmax["local.momentum"], fedmax["local.nesterov"]) == (0.1, True)
    assert (fedmax["local.weight_decay"], fedmax["weighting"]) == (5e-4, "uniform")
    assert (fedmax["partition.name"], fedmax["partition.per_client"]) == ("shards", 2)
    assert (colour["partition.name"], colour["partition.p"]) == ("color_skew", 0.95)
    assert (colour["method.split"], colour["method.finetune_epochs"]) == (5, 4)
    assert (colour["model.name"], colour["method.finetune_lr_factor"]) == ("vgg9", 0.5)
    assert (roles["partition.key"], roles["partition.at_least.characters"]) == ("role", 10_000)
    assert (roles["model.name"], roles["method.split"]) == ("char-lstm", 2)


ADAPTERS = {
    "ffa-lora-mails": {"model.lora.freeze_a": True},
    "fedsa-lora-mails": {"method.name": "fedper", "method.own": ["*.lora_B.*", "head"]},
    "rolora-mails": {"method.name": "rolora"},
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_methods_of_adapters_are_fedit_but_for_a_setting(name):
    fedit, other = (dotted(PRESETS[n].settings.to_dict()) for n in ("fedit-mails", name))
    assert (fedit["method.name"], fedit["model.lora.rank"]) == ("fedavg", 8)
    changed = {key: value for key, value in other.items() if fedit.get(key, "none") != value}
    assert changed.items() >= ADAPTERS[name].items()
    defaults = {"method.first": "B", "method.own": ["none"]}  # of a method that FedIT is not
    assert all(defaults.get(key) == changed[key] for key in changed.keys() - ADAPTERS[name].keys())


def test_flowertune_has_the_numbers_of_its_template():
    values = dotted(PRESETS["flowertune"].settings.to_dict())
    sizes = ("clients", "fraction", "rounds", "local.steps", "local.batch_size")
    assert [values[key] for key in sizes] == [20, 0.1, 200, 10, 16]
    assert (values["model.lora.rank"], values["model.lora.alpha"]) == (32, 64.0)
    rate = [values[f"local.{name}"] for name in ("schedule", "lr", "lr_min")]
    assert rate == ["cosine", 5e-5, 1e-6]


def test_a_key_has_one_origin():
    assert origins("a b.c", "d", "e") == {
        "a": "printed",
        "b.c": "printed",
        "d": "inferred",
        "e": "chosen",
    }
    with pytest.raises(SettingsError, match="lr: is printed and chosen"):
        origins(printed="epochs lr", chosen="lr")


def test_origin_of_a_group_and_of_its_members():
    base = PRESETS["mnist-fedavg"].settings
    preset = Preset("", base, origins(printed="local", chosen="local.lr"))
    assert preset.origin("local.lr") == "chosen"
    assert preset.origin("local.epochs") == "printed"
    assert preset.origin("dataset.name") is preset.origin("clients") is None
    assert preset.by_origin() == {
        "printed": {"local.epochs": 5},
        "inferred": {},
        "chosen": {"local.lr": 0.1},
    }


def test_replace_keeps_and_overrides_origins():
    base = PRESETS["mnist-noniid"]
    marks = origins(inferred="local", chosen="partition.name")
    other = base.replace("other", "table 9", marks, partition=Iid(), local={"epochs": 2})
    assert other.settings.partition == Iid()
    assert (other.settings.local.epochs, other.settings.local.batch_size) == (2, 10)
    assert base.settings.local.epochs == 5
    assert (other.paper, other.reference, other.published) == (base.paper, "table 9", {})
    assert other.origin("local.epochs") == other.origin("local.lr") == "inferred"
    assert other.origin("clients") == "printed"
    assert base.origin("partition.size") == "printed"
    assert other.origin("partition.name") == "chosen"
    assert base.replace("again").reference == base.reference


def test_published_figures_need_the_same_settings():
    def published(name, overrides):
        return PRESETS[name].published_for(PRESETS[name].settings.override(overrides))

    same = {"seed": 3, "engine.actors": 2, "tracker": "mlflow", "evaluation.every": 5}
    assert published("dnc-colour", same) == {"final_accuracy": 0.801}
    assert published("dnc-colour", {"rounds": 5}) == {}
    assert published("dnc-colour", {"local.lr": 0.01}) == {}
    # A number of rounds to a target does not depend on when a run gives up.
    assert published("mnist-fedavg", {"rounds": 200}) == {"rounds_to_target": 47}


def test_published_figures_need_the_same_order():
    methods = {"fedprox": {"mu": 0.1}, "momentum": {}}
    preset = PRESETS["mnist-fedavg"].replace(
        "chain", method={"name": "chain", "methods": methods}, published={"final_accuracy": 0.9}
    )
    assert preset.published_for(preset.settings) == {"final_accuracy": 0.9}
    other = {"method.methods": dict(reversed(methods.items()))}
    assert preset.published_for(preset.settings.override(other)) == {}


def page(name: str) -> list[str]:
    console = Console(width=2000, record=True, file=StringIO())
    console.print(pages.preset(PRESETS, name))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_page_of_a_preset():
    lines = page("dnc-shakespeare")
    assert lines[0] == "dnc-shakespeare"
    assert "Divide-and-Conquer, table 3" in lines
    assert any(line.startswith("Chandran, Bhat, Chakravarthy and Chandar, ") for line in lines)
    assert "published: final_accuracy 0.496" in lines
    assert (
        "inferred fraction=1.0 local.lr=0.25 local.momentum=0.9 local.weight_decay=0.0001"
        " evaluation.test_samples=clients" in lines
    )
    assert "chosen dataset.source=plays dataset.stride=10 local.batch_size=10" in lines
    assert "inferred from the code of FedMA's authors, github.com/IBM/FedMA" in lines
    (printed,) = (line for line in lines if line.startswith("printed "))
    assert "partition.at_least.characters=10000.0" in printed and "local.lr_decay=0.9" in printed
    assert '"stride": 10' in lines


FEDFUSION = ("random weights", "momentum persists", "best on their own", "crops it at random sizes")
FEDFUSION_SOME = (*FEDFUSION, "sit out a round keep the model")
VGG9 = ("pads with black", "starts from PyTorch's own weights", "by fan-in")
DEVIATIONS = {
    "fedfusion-mnist-binary": FEDFUSION,
    "fedfusion-mnist-noniid": FEDFUSION_SOME,
    "fedfusion-mnist-permuted": (*FEDFUSION, "a permutation of its own"),
    "fedfusion-cifar10-iid": ("momentum is reset", "do not hand it back", *FEDFUSION_SOME[2:]),
    "fedmmd-cifar10-binary": ("redraws the classes", "brightness", "without", "0.002"),
    "fedmmd-cifar10-iid": ("brightness", "without", "0.002"),
    "fedmmd-mnist-noniid": ("No method has dropout", "1e-4", "1024 units", "[-0.5, 0.5]", "of 100"),
    "fedmax-femnist-iid": ("No target", "EMNIST's letters"),
    **dict.fromkeys(("dnc-colour", "dnc-colour-prepass", "dnc-single-class"), VGG9),
    **dict.fromkeys(("dnc-imbalance", "dnc-imbalance-prepass"), (*VGG9, "equal weights")),
    **dict.fromkeys(("dnc-colour-fedma", "dnc-imbalance-fedma"), (*VGG9, "two passes")),
    "dnc-shakespeare-fedma": ("every tenth", "three passes"),
    "flexchill-cifar10": ("later code", "not on which samples"),
    "flexchill-femnist": ("own test samples",),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_pages_of_presets_name_deviations(name):
    text = " ".join(page(name))
    assert [words for words in DEVIATIONS[name] if words not in text] == []


def test_settings_that_a_paper_does_not_print_are_not_marked_so():
    """FedMAX prints classes of a client, not shards; FLex&Chill no normalisation, no loader."""
    marks = {
        "fedmax-cifar10-noniid": {"partition.name": "inferred", "partition.per_client": "printed"},
        "fedmax-cifar100-noniid": {"partition.name": "inferred"},
        "fedmax-cifar10-iid": {"partition.name": "printed"},
        "fedmax-cifar100-iid-600": {"partition.name": "printed"},
        "fedmax-femnist-noniid": {"partition.name": "printed"},
        "flexchill-femnist": dict.fromkeys(
            ("evaluation.clients", "evaluation.test_samples", "local.drop_last"), "inferred"
        ),
        "flexchill-cifar100": dict.fromkeys(
            ("means", "deviations", "padding_mode", "normalised", "augmented"), "inferred"
        ),
        "dnc-shakespeare-fedma": {"evaluation.test_samples": "inferred"},
    }
    for name, expected in marks.items():
        for key, origin in expected.items():
            assert PRESETS[name].origin(key if "." in key else f"dataset.{key}") == origin, name


def test_flexchill_loads_images_as_its_first_author_s_code():
    for name in ("flexchill-cifar10", "flexchill-cifar10-scaffold", "flexchill-cifar100"):
        settings = PRESETS[name].settings
        assert settings.local.drop_last and settings.dataset.padding_mode == "reflect"
    deviations = [
        PRESETS[f"flexchill-cifar10{end}"].settings.dataset.deviations for end in ("", "0")
    ]
    assert [[round(each, 3) for each in own] for own in deviations] == [
        [0.247, 0.243, 0.262],
        [0.267, 0.256, 0.276],
    ]


def test_page_of_a_preset_without_a_paper():
    lines = page("mnist-million")
    assert "no published counterpart" in lines
    assert [line.split()[0] for line in lines if "=" in line] == ["chosen"]


def test_the_readme_of_workloads_lists_all_presets():
    assert [name for name in PRESETS if f"`{name}`" not in README] == []
