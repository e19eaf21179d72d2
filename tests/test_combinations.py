"""Every row of the table of rules: a pair of settings that breaks it, and one nearby that does not.

Settings are parsed alone: no data is fetched, and no network is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import raysim
from raysim.api.rules import CHANGE, Pass, Rules
from raysim.channel.gaussian import Gaussian
from raysim.channel.masks import Masks
from raysim.channel.topk import TopK
from raysim.cli.documents import listed
from raysim.combinations import RULES, Moment, Rule, Seen, check_rules
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import RuleError
from raysim.methods.fedavg import FedAvg
from raysim.selection.uniform import Uniform
from tests.docs.rules import PAGE, markdown

FEDBUFF = {"method.name": "fedbuff"}
DEADLINE = {"clock.name": "devices", "clock.policy": "deadline", "clock.deadline": 9.0}
ADAM = {"local.optimizer": "adam", "local.keep": True}
MASKS = {"channel.masks": {}}
TOPK = {"topk": {}}
DOWN = {"downlink.topk": {}}
CLAIM = {
    **{"channel": {"gaussian": {"noise": 1.0}}, "aggregation.weighting": "fixed"},
    **{"selection.name": "poisson", "weighting": "uniform"},
}
MASKED = {**CLAIM, "channel": {**CLAIM["channel"], "masks": {}}}
FIXED = {**CLAIM, "selection.name": "uniform"}
FTRL = {"method.name": "dp_ftrl", "aggregation.weighting": "fixed", "weighting": "uniform"}
CLIENTS = {"evaluation.clients": True}
LOOP = "local.train=tests.test_combinations:loop"
OWN = {"local.train": "tests.test_combinations:loop"}
TABLE = {"weighting": "weights.csv"}
OF_TABLE = f"weighting={Path('weights.csv').absolute()}: does not go with "


def loop(client: raysim.Client) -> None:
    """Train nothing."""


class More(Masks):
    """Other masks."""


class Noisier(Gaussian):
    """Claims privacy, too."""


class InTrees(Gaussian):
    """Claims privacy for noise in trees, in each of which a client takes part once."""

    @property
    def privacy(self) -> raysim.PrivacyClaim | None:
        return raysim.PrivacyClaim(1.0, None, 1e-3, "rdp", tree=raysim.NoiseTree(2, False))


class Sparser(TopK):
    """Sends something else than its base, which is a contraction."""

    def send(self, view: Any, upload: Any) -> Any:
        return upload


class Open(Masks):
    """Encodes otherwise than its base, which lets the server see sums alone."""

    def encoded(self, sent: Any, layout: Any, client: int) -> Any:
        return sent


class Again(Open):
    """Encodes otherwise once more."""

    def encoded(self, sent: Any, layout: Any, client: int) -> Any:
        return sent


class Told:
    """States a promise for a class with another base."""

    is_contraction: ClassVar[bool] = True


class Mixed(Told, TopK):
    """Takes a promise from a class beside that of which it changes code."""

    def send(self, view: Any, upload: Any) -> Any:
        return upload


class Drawn(Uniform):
    """Selects by results, of a base that plans ahead."""

    def select(self, now: Any) -> list[int]:
        return list(now.times.argsort()[: now.wanted])


class Counts(raysim.Stage):
    """A stage that lengthens no change, and has a part at the server."""

    def receive(self, now: Any, reduced: Any) -> Any:
        return replace(reduced)


class Signs(raysim.Stage):
    """A stage whose clients send a signature beside their values."""

    def beside(self, clients: int) -> raysim.Traffic:
        return raysim.Traffic(64)


class Remembers(TopK):
    """A contraction for which the server keeps a state."""

    @property
    def is_contraction(self) -> bool:
        return True

    def init(self) -> Any:
        return {"rounds": 0.0}


class Decodes(TopK):
    """A contraction of which the server does the second half."""

    is_contraction: ClassVar[bool] = True

    def receive(self, now: Any, reduced: Any) -> Any:
        return replace(reduced)


class Overlapping(FedAvg):
    """A user's own method, whose rounds overlap."""

    def asynchrony(self, size: int) -> raysim.Asynchrony:
        return raysim.Asynchrony(buffer=size, concurrency=size)


def own(kind: type) -> str:
    return f"{__name__}:{kind.__name__}"


TREES = {**CLAIM, "channel": {own(InTrees): {"noise": 1.0}}}

CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    f"engine.vectorize=2: does not go with {LOOP}, which trains one client at a time; leave it"
    " out": ({**OWN, "engine.vectorize": 2}, {**OWN, "engine.vectorize": "auto"}),
    "engine.vectorize=2: does not go with local.accumulate=3, whose parts of a batch are trained"
    " one after another; leave it out": (
        {"engine.vectorize": 2, "local.accumulate": 3},
        {"engine.vectorize": "auto", "local.accumulate": 3},
    ),
    f"local.keep=true: does not go with {LOOP}, whose loss and steps are its own; write it into"
    " the loop": ({**OWN, **ADAM}, {**OWN, "local.optimizer": "adam"}),
    f"temperature.name=schedule: does not go with {LOOP}, whose loss and steps are its own;"
    " write it into the loop": (
        {**OWN, "temperature.name": "schedule"},
        {**OWN, "temperature.name": "constant"},
    ),
    f"engine.precision=bf16: does not go with {LOOP}, whose loss and steps are its own; write it"
    " into the loop": ({**OWN, "engine.precision": "bf16"}, {"engine.precision": "bf16"}),
    "local.momentum=0.9: does not go with method.name=fsvrg, which needs local.momentum=0.0": (
        {"method.name": "fsvrg", "local.momentum": 0.9},
        {"method.name": "fedprox", "local.momentum": 0.9},
    ),
    "local.keep=true: does not go with method.name=chain, which needs local.keep=false with"
    " method.methods.fedlc": (
        {"method.name": "chain", "method.methods": {"fedlc": {"counts": "global"}}, **ADAM},
        {"method.name": "chain", "method.methods": {"fedprox": {}}, **ADAM},
    ),
    "selection.name=poisson: does not go with method.name=dp_ftrl, which selects clients by"
    " reshuffled; leave it out": ({**FTRL, "selection.name": "poisson"}, FTRL),
    "selection.rounds=2: does not go with method.name=dp_ftrl, which sets it to 3; leave it out": (
        {**FTRL, "method.restart": 3, "selection.name": "reshuffled", "selection.rounds": 2},
        {**FTRL, "method.restart": 3, "selection.name": "reshuffled"},
    ),
    "fraction=0.5: does not go with method.name=afl, in which all clients take part in every round;"
    " for sampled clients choose method.name=drfa": (
        {"method.name": "afl", "fraction": 0.5},
        {"method.name": "afl", "fraction": 1.0},
    ),
    "evaluation.when=after: does not go with local.keep=true, ": (
        {**ADAM, **CLIENTS, "evaluation.when": "after"},
        {**ADAM, **CLIENTS},
    ),
    "server.name=adam: does not go with method.name=fedadam, whose server takes steps of Adam"
    " already; leave it out": (
        {"method.name": "fedadam", "server.name": "adam"},
        {"method.name": "scaffold", "server.name": "adam"},
    ),
    "server.lr_decay=0.9: does not go with method.name=fedavg, whose server has no learning rate of"
    " its own; leave it out, or choose one that has: server.name=momentum server.beta=0": (
        {"server.lr_decay": 0.9},
        {"server.lr_decay": 0.9, "server.name": "momentum", "server.beta": 0.0},
    ),
    "downlink.error_feedback: does not go with downlink, whose server keeps": (
        {"downlink": {"error_feedback": {}, **TOPK}},
        DOWN,
    ),
    "downlink.clip: does not go with downlink, which needs contractions": (
        {"downlink.clip": {}},
        {"channel.clip": {}},
    ),
    **{
        f"downlink.{own(kind)}: does not go with downlink, which has no server's part": (
            {"downlink": {own(kind): {}}},
            {"channel": {own(kind): {}}},
        )
        for kind in (Remembers, Decodes)
    },
    "channel.clip: cannot stand after channel.error_feedback, which would send again": (
        {"channel": {"error_feedback": {}, "clip": {}}},
        {"channel": {"clip": {}, "error_feedback": {}, **TOPK}},
    ),
    "channel.clip: cannot stand after channel.masks, which sends words that hide": (
        {"channel": {"masks": {}, "clip": {}}},
        {"channel": {"clip": {}, "masks": {}}},
    ),
    "downlink.int8: cannot stand after downlink.low_rank, which sends no coordinates that it could"
    " encode; put it before, or leave it out": (
        {"downlink": {"low_rank": {}, "int8": {}}},
        {"downlink": {"low_rank": {}}, "channel": {"int8": {}}},
    ),
    "keep_clients=true: does not go with method.name=fedbuff, whose rounds overlap": (
        {**FEDBUFF, "keep_clients": True},
        {"keep_clients": True},
    ),
    "local.keep=true: does not go with method.name=fedbuff, whose rounds overlap: their order": (
        {**FEDBUFF, **ADAM},
        ADAM,
    ),
    "channel.error_feedback: does not go with method.name=fedbuff, whose rounds overlap: their": (
        {**FEDBUFF, "channel": {"error_feedback": {}, **TOPK}},
        {**FEDBUFF, "channel": TOPK},
    ),
    f"channel.{own(Signs)}: does not go with method.name=fedbuff, whose rounds overlap: it is c": (
        {**FEDBUFF, "channel": {own(Signs): {}}},
        {"channel": {own(Signs): {}}},
    ),
    "channel.gaussian: does not go with method.name=fedbuff, whose rounds overlap: their order": (
        {**FEDBUFF, "channel.gaussian": {"noise": 0.0, "quantile": 0.5}},
        {**FEDBUFF, "channel.gaussian": {"noise": 0.0}},
    ),
    "selection.name=oort: does not go with method.name=fedbuff, whose clients start one by one,"
    " before there are results; choose selection.name=uniform, or weighted": (
        {**FEDBUFF, "selection.name": "oort"},
        {**FEDBUFF, "selection.name": "weighted"},
    ),
    "clock.name=devices: does not go with method.name=fedbuff, whose rounds wait for no client;"
    " choose clock.policy=wait": ({**FEDBUFF, **DEADLINE}, {**FEDBUFF, "clock.name": "devices"}),
    "evaluation.trained=true: does not go with method.name=fedbuff, whose rounds overlap: it": (
        {**FEDBUFF, **CLIENTS, "evaluation.trained": True},
        {**FEDBUFF, **CLIENTS},
    ),
    "analysis=activations: does not go with method.name=fedbuff, whose rounds overlap: it": (
        {**FEDBUFF, "analysis": "activations"},
        {**FEDBUFF, "analysis": "label_heat_map"},
    ),
    "aggregation.name=median: does not go with method.name=fedbuff, whose rounds overlap; choose": (
        {**FEDBUFF, "aggregation.name": "median"},
        {"aggregation.name": "median"},
    ),
    "aggregation.name=mean: does not go with method.name=fedbuff, whose rounds overlap; choose"
    " aggregation.name=mean aggregation.weighting=arrived": (
        {**FEDBUFF, "aggregation.weighting": "fixed"},
        {**FEDBUFF, "aggregation.weighting": "arrived"},
    ),
    "attack.name=alie: does not go with method.name=fedbuff, whose rounds overlap: nobody knows the"
    " updates of others; choose attack.name=sign_flip attack.of=own": (
        {**FEDBUFF, "attack.name": "alie"},
        {**FEDBUFF, "attack.name": "sign_flip", "attack.of": "own"},
    ),
    "downlink: does not go with method.name=chain, whose rounds overlap; leave it out": (
        {"method.name": "chain", "method.methods": {"fedprox": {}, "fedbuff": {}}, **DOWN},
        {"method.name": "chain", "method.methods": {"fedprox": {}}, **DOWN},
    ),
    f"downlink: does not go with method.name={own(Overlapping)}, whose rounds overlap;": (
        {"method.name": own(Overlapping), **DOWN},
        {"method.name": own(Overlapping)},
    ),
    "aggregation.name=norm_bound: does not go with method.name=chain, whose clients send changes": (
        {
            **{"aggregation.name": "norm_bound", "aggregation.norm": 1.0},
            **{"method.name": "chain", "method.methods": {"qffl": {}, "fedprox": {}}},
        },
        {
            **{"aggregation.name": "norm_bound", "aggregation.norm": 1.0},
            **{"method.name": "chain", "method.methods": {"fedprox": {}}},
        },
    ),
    "downlink: does not go with method.name=fedma, whose round is a pass over the layers": (
        {"method.name": "fedma", **DOWN},
        {"method.name": "ditto", **DOWN},
    ),
    "downlink: does not go with method.name=divide_and_conquer, whose clients have the layers that"
    " did not change since they last took part; leave it out": (
        {"method.name": "divide_and_conquer", **DOWN},
        {"method.name": "mifl", "method.delivery": "later", **DOWN},
    ),
    f"channel.masks: does not go with channel.{own(More)}, of which a run may have one;": (
        {"channel": {"masks": {}, own(More): {}}},
        MASKS,
    ),
    f"{OF_TABLE}aggregation.name=mean, which at its settings weighs clients by itself; leave": (
        {**TABLE, "aggregation.weighting": "fixed"},
        TABLE,
    ),
    "channel.masks: does not go with method.name=fedasync, whose rounds overlap": (
        {"method.name": "fedasync", **MASKS},
        MASKS,
    ),
    "channel.masks: does not go with aggregation.name=median, which sees updates one by one; choose"
    " aggregation.name=mean": ({"aggregation.name": "median", **MASKS}, MASKS),
    "channel.masks: does not go with attack.name=alie, whose clients know the updates of others": (
        {"attack.name": "alie", **MASKS},
        {"attack.name": "label_flip", **MASKS},
    ),
    "channel.masks: does not go with selection.name=oort, to which single clients report; choose": (
        {"selection.name": "oort", **MASKS},
        {"selection.name": "oort"},
    ),
    "channel.gaussian: does not go with method.name=fedbuff, whose rounds overlap": (
        {**FEDBUFF, **FIXED, "aggregation.weighting": "arrived"},
        FIXED,
    ),
    "channel.gaussian: does not go with selection.name=power_of_choice, whose cohorts cannot be": (
        {**CLAIM, "selection.name": "power_of_choice"},
        CLAIM,
    ),
    f"channel.{own(InTrees)}: does not go with selection.name=poisson, whose cohorts cannot be"
    " accounted; choose selection.name=reshuffled": (
        {**TREES, "selection.name": "poisson"},
        {**TREES, "selection.name": "reshuffled", "selection.rounds": 2},
    ),
    "channel.gaussian: does not go with selection.name=uniform, for whose cohorts there is no"
    " accountant=pld; choose rdp, or selection.name=poisson": (
        {**FIXED, "channel.gaussian.accountant": "pld"},
        {**CLAIM, "channel.gaussian.accountant": "pld"},
    ),
    "channel.gaussian: does not go with clock.name=devices, by whose policy the clients of a": (
        {**CLAIM, **DEADLINE},
        {**CLAIM, "clock.name": "devices"},
    ),
    **{
        f"channel.gaussian: does not go with {name}, by which a round may be lost": (
            {**MASKED, **given},
            {**MASKED, **given, "channel.masks.threshold": 0.0},
        )
        for name, given in {
            "clock.name=devices": {"clock.name": "devices", "clock.dropout": 0.1},
            "on_client_error=drop": {"on_client_error": "drop"},
        }.items()
    },
    f"channel.gaussian: does not go with channel.{own(Noisier)}, which claims privacy, too;": (
        {**CLAIM, "channel": {"gaussian": {}, own(Noisier): {}}},
        {**CLAIM, "channel": {own(Noisier): {}}},
    ),
    "channel.gaussian: does not go with method.name=dp_ftrl, which claims privacy, too; leave": (
        {**FTRL, "method.noise": 1.0, "channel.gaussian.noise": 1.0},
        {**FTRL, "method.noise": 1.0},
    ),
    "channel.gaussian: does not go with aggregation.name=median, which at its settings does not"
    " divide by the expected clients alone; choose aggregation.name=mean aggregation.weighting=": (
        {"channel.gaussian": {}, "selection.name": "poisson", "aggregation.name": "median"},
        CLAIM,
    ),
    "channel.gaussian: does not go with temperature.name=stragglers, by which T would follow": (
        {**CLAIM, "temperature.name": "stragglers"},
        {**CLAIM, "temperature.name": "constant"},
    ),
    "channel.gaussian: does not go with local.schedule=plateau, by which lr would follow the": (
        {**CLAIM, "local.schedule": "plateau"},
        {**CLAIM, "local.schedule": "cosine"},
    ),
    f"channel.{own(Counts)}: cannot stand before channel.gaussian, as it would read the sum without"
    " noise; put it after": (
        {**CLAIM, "channel": {own(Counts): {}, "gaussian": {}}},
        {**CLAIM, "channel": {"gaussian": {}, own(Counts): {}}},
    ),
    f"channel.{own(Counts)}: cannot stand before method.name=dp_ftrl, as it would read the sum"
    " without noise; leave it out": (
        {**FTRL, "channel": {own(Counts): {}}},
        {**FTRL, "channel": {"clip": {}}},
    ),
    "channel.error_feedback: cannot stand after channel.gaussian, as it keeps what is not sent": (
        {**CLAIM, "channel": {"gaussian": {}, "error_feedback": {}, **TOPK}},
        {**CLAIM, "channel": {"gaussian": {}, **TOPK}},
    ),
    "channel.randk: cannot stand after channel.gaussian, whose clip it may exceed; put it": (
        {**CLAIM, "channel": {"gaussian": {}, "randk": {"fraction": 0.5, "unbiased": True}}},
        {**CLAIM, "channel": {"randk": {"fraction": 0.5, "unbiased": True}, "gaussian": {}}},
    ),
    "channel.randk: cannot stand after method.name=dp_ftrl, whose clip it may exceed; leave it": (
        {**FTRL, "channel": {"randk": {"fraction": 0.5, "unbiased": True}}},
        {**FTRL, "channel": TOPK},
    ),
    "channel.gaussian: does not go with attack.name=mimic, whose bad clients send what is not": (
        {**CLAIM, "attack.name": "mimic"},
        {**CLAIM, "attack.name": "label_flip"},
    ),
    "channel.gaussian: does not go with attack.name=label_flip, of whose attack.per_round each": (
        {**CLAIM, "attack.name": "label_flip", "attack.per_round": 1},
        {**CLAIM, "attack.per_round": 1},
    ),
    "channel.gaussian: does not go with local.class_weights=balanced, which counts the samples": (
        {**CLAIM, "local.class_weights": "balanced"},
        {**CLAIM, "local.class_weights": [1.0] * 10},
    ),
    "channel.gaussian: does not go with local.keep=true, which tells in which of them a client was;"
    " choose selection.name=poisson": ({**FIXED, **ADAM}, {**CLAIM, **ADAM}),
}
"""By the line with which they are refused: settings that break a rule, and some nearby."""


@pytest.mark.parametrize("line", CASES)
def test_what_breaks_a_rule_is_refused_as_settings_are_parsed(line):
    broken, nearby = CASES[line]
    with pytest.raises(RuleError) as caught:
        raysim.load_config("mnist-fedavg", broken)
    assert str(caught.value).startswith(line)
    raysim.load_config("mnist-fedavg", nearby)


MODEL, BATCHES = {"w": torch.zeros(2)}, {"w": torch.zeros(2), "n": torch.tensor(3)}
OF_MODEL = {"model": MODEL}
SENDS = "channel.gaussian: does not go with method.name=fedavg, whose clients send "
MEDIAN, ALIE = {"aggregation.name": "median"}, {"attack.name": "alie"}
FLTRUST = {"aggregation.name": "fltrust"}
FLIP = {"attack.name": "sign_flip"}
UNMOVED = {"bases": {"model": CHANGE}, "broadcast": {"other": MODEL}}
BAD = {"columns": lambda clients: {"bad": np.isin(clients, [0])}}
SEEN: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    f"method.name=fedavg: does not go with {LOOP}, which takes its own steps; write the change": (
        *(OWN, {"rules": Rules(penalties=(lambda *seen: seen[2].y.sum(),))}),
        {"rules": Rules(penalties=(lambda *seen: seen[2].y.sum(),)), "epochs": 0},
    ),
    f"{LOOP}: does not go with method.name=fedbuff, whose rounds overlap: their order would": (
        *({**OWN, **FEDBUFF}, {"keeps": True}, {"keeps": False}),
    ),
    f"channel.masks: does not go with {LOOP}, which returns the number 'n' of single clients": (
        *({**OWN, **MASKS}, {"of_stages": {"train": "n"}}, {"of_stages": {}}),
    ),
    f"channel.gaussian: does not go with {LOOP}, which returns the number 'n', which is not acc": (
        *({**OWN, **CLAIM}, {"of_stages": {"train": "n"}}, {"of_stages": {}}),
    ),
    "clock.name=devices: does not go with method.name=fedavg, under which the samples of all": (
        *({"clock.name": "devices"}, {"pooled": True}, {}),
    ),
    "channel.masks: does not go with method.name=fedavg, whose clients' samples are in one": (
        *(MASKS, {"pooled": True}, {}),
    ),
    "attack.name=label_flip: does not go with method.name=fedavg, whose clients' samples are po": (
        *({"attack.name": "label_flip"}, {"pooled": True}, {}),
    ),
    "aggregation.name=median: does not go with method.name=fedavg, whose passes are over more": (
        *(MEDIAN, {"clients": range(11)}, {"clients": range(10)}),
    ),
    "attack.name=alie: does not go with method.name=fedavg, whose passes are over more clients": (
        *(ALIE, {"clients": range(11)}, {"clients": range(11), "is_first": False}),
    ),
    "aggregation.name=fltrust: does not go with method.name=fedavg, whose clients send more than": (
        *(FLTRUST, {"bases": {"model": "model", "c": CHANGE}}, {}),
    ),
    "aggregation.name=fltrust: does not go with method.name=fedavg, whose clients send what they": (
        *(FLTRUST, {"epochs": 0, "means": OF_MODEL}, {"epochs": 0, "means": {}}),
    ),
    "downlink: does not go with method.name=fedavg, whose clients send nothing that has moved": (
        *(DOWN, UNMOVED, {**UNMOVED, "is_first": False}),
    ),
    f"{OF_TABLE}method.name=fedavg, which at its settings weighs clients by itself; leave it out": (
        TABLE,
        {"weighting": "uniform"},
        {"weighting": "uniform", "epochs": 0},
    ),
    "method.name=fedavg: does not go with aggregation.name=mean, which at its settings gives all"
    " the same weight; choose aggregation.name=mean aggregation.weighting=arrived": (
        *({"aggregation.weighting": "fixed"}, {"weighting": {0: 1.0}}, {"weighting": "uniform"}),
    ),
    "channel.gaussian: does not go with a model whose clients send 'n' in whole numbers, which": (
        *(CLAIM, {"broadcast": {"model": BATCHES}}, {"broadcast": {"model": MODEL}}),
    ),
    "aggregation.name=median: does not go with method.name=fedavg, whose clients send 'layer'": (
        *(MEDIAN, {"means": OF_MODEL, "rows": ["layer"]}, {"means": OF_MODEL}),
    ),
    "method.name=fedavg: does not go with aggregation.name=mean, which at its settings divides": (
        {"aggregation.weighting": "fixed"},
        *({"means": {"c": MODEL}}, {"means": {"c": MODEL}, "epochs": 0}),
    ),
    "attack.name=alie: does not go with method.name=fedavg, whose clients send 'c' without a": (
        *(ALIE, {"means": {"c": MODEL}, **BAD}, {"means": {"c": MODEL}}),
    ),
    "attack.name=sign_flip: does not go with method.name=fedavg, whose clients send 'c' without": (
        *(FLIP, {"means": {"c": MODEL}, **BAD}, {"means": {**OF_MODEL, "c": MODEL}, **BAD}),
    ),
    "downlink: does not go with method.name=fedavg, whose clients send a model without a base": (
        *(DOWN, {"means": OF_MODEL, "bases": {}}, {"means": OF_MODEL}),
    ),
    "channel.masks: does not go with method.name=fedavg, whose server reads 'loss' of single": (
        *(MASKS, {"numbers": ["loss"]}, {"means": OF_MODEL}),
    ),
    "channel.masks: does not go with method.name=fedavg, whose pass is over one client of seve": (
        *(MASKS, {"means": OF_MODEL, "clients": (1,)}, {"means": {}, "clients": (1,)}),
    ),
    f"channel.masks: does not go with channel.{own(Counts)}, which reads numbers of single cl": (
        {"channel": {own(Counts): {}, "masks": {}}},
        *({"of_stages": {own(Counts): "n"}}, {"of_stages": {}}),
    ),
    "channel.gaussian: does not go with method.name=fedavg, whose clients send all their samples": (
        *(CLAIM, {"pooled": True}, {}),
    ),
    f"channel.gaussian: does not go with channel.{own(Counts)}, whose clients send the number": (
        {**CLAIM, "channel": {"gaussian": {}, own(Counts): {}}},
        *({"of_stages": {own(Counts): "n"}}, {"of_stages": {"gaussian": "n"}}),
    ),
    "method.name=dp_ftrl: does not go with channel.clip, whose clients send the number 'n'": (
        *({**FTRL, "channel.clip": {}}, {"of_stages": {"clip": "n"}}, {"of_stages": {}}),
    ),
    f"{SENDS}'other/w' beside the change of their tensors, which is not accounted": (
        *(CLAIM, {"means": {"other": MODEL}}, {"means": OF_MODEL}),
    ),
    f"{SENDS}'own' beside the change of their tensors, which is not accounted": (
        *(CLAIM, {"means": OF_MODEL, "rows": ["own"]}, {"means": OF_MODEL}),
    ),
    f"{SENDS}changes in more than one pass of a round, which is not accounted": (
        *(CLAIM, {"means": OF_MODEL, "earlier": 1}, {"means": {}, "earlier": 1}),
    ),
    f"{SENDS}changes in a pass in which they do not train, which is not accounted": (
        *(CLAIM, {"means": OF_MODEL, "epochs": 0}, {"means": {}, "epochs": 0}),
    ),
    f"{SENDS}changes though they were not selected, which is not accounted": (
        *(CLAIM, {"means": OF_MODEL, "clients": (0, 5)}, {"means": {}, "clients": (0, 5)}),
    ),
    "channel.gaussian: does not go with a method or stage whose clients keep a state between rounds"
    ", in fixed cohorts; choose selection.name=poisson": (
        *(FIXED, {"means": {}, "keeps": True}, {"means": {}}),
    ),
    "channel.clip: does not go with method.name=fedbuff, whose rounds overlap: their order would": (
        *({**FEDBUFF, "channel.clip": {}}, {"keeping": ["clip"]}, {"keeping": []}),
    ),
}
"""By the line: settings, what of a pass breaks a rule with them, and a pass nearby."""


OF_SEEN = {each.name for each in fields(Seen)}
"""What of a pass is seen of its result, or of its place."""


def moment_of(shown: Mapping[str, Any]) -> Moment:
    """Return the moment at which something is seen of a pass."""
    if "keeping" in shown:
        return "rehearsed"
    return "result" if {"means", "numbers", "of_stages", "keeps"} & shown.keys() else "pass"


def seen_of(settings: raysim.Settings, shown: Mapping[str, Any]) -> Seen:
    """Return what is seen of a pass that is FedAvg's, but for what is given."""
    plain = {"clients": (0, 1), "broadcast": {"model": MODEL}, "epochs": 1, **shown}
    more = {key: plain.pop(key) for key in OF_SEEN & plain.keys()}
    columns = plain.pop("columns", None)
    work = Dispatch.of(Pass(**plain)).with_step(UploadStep(columns=columns))
    return Seen(settings, work, (0, 1), **more)


@pytest.mark.parametrize("line", SEEN)
def test_what_breaks_a_rule_is_refused_as_it_is_seen(line):
    overrides, broken, nearby = SEEN[line]
    settings = raysim.load_config("mnist-fedavg", overrides)
    at = moment_of(broken)
    with pytest.raises(RuleError) as caught:
        check_rules(settings, at, seen_of(settings, broken))
    assert str(caught.value).startswith(line)
    for each in (nearby, {}):
        check_rules(settings, at, seen_of(settings, each))


LOST: Mapping[str, dict[str, Any]] = {
    f"channel.{own(Sparser)}: cannot stand after channel.error_feedback, .*: it changes 'send' of"
    " TopK, which 'is_contraction' rests on": {
        "channel": {"error_feedback": {}, own(Sparser): {"fraction": 0.1}}
    },
    f"downlink.{own(Sparser)}: does not go with downlink, .*: it changes 'send' of TopK": {
        "downlink": {own(Sparser): {"fraction": 0.1}}
    },
    **{
        f"channel.{own(kind)}: it changes 'encoded' of Masks, which 'secure_sum' rests on": {
            "channel": {own(kind): {}}
        }
        for kind in (Open, Again)
    },
    f"channel.{own(Mixed)}: cannot stand after channel.error_feedback, .*: it changes 'send' of": {
        "channel": {"error_feedback": {}, own(Mixed): {"fraction": 0.1}}
    },
    f"selection.name={own(Drawn)}: does not go with method.name=fedbuff, .*: it changes 'select' of"
    " Uniform, which 'plans_ahead' rests on": {**FEDBUFF, "selection.name": own(Drawn)},
}


@pytest.mark.parametrize("line", LOST)
def test_a_class_that_changes_code_loses_what_its_base_promises(line):
    with pytest.raises(raysim.SettingsError, match=f"^{line}"):
        raysim.load_config("mnist-fedavg", LOST[line])


def test_every_rule_has_a_case(monkeypatch):
    """That a component is not what its class says, no settings say: it is seen before the data."""
    monkeypatch.setattr("raysim.config.run.check_rules", lambda settings: None)
    found = set[Rule]()
    for line, (overrides, *more) in {**CASES, **SEEN}.items():
        settings = raysim.load_config("mnist-fedavg", overrides)
        seen = seen_of(settings, more[0]) if line in SEEN else None
        rules = [rule for rule in RULES if seen or rule.at == "settings"]
        found |= {r for r in rules if any(x.startswith(line) for x in r.lines(settings, seen))}
    left = [rule.other.name for rule in RULES if rule not in found]
    assert left == ["components that are not what their class says"]


def test_the_page_has_the_table():
    """`python -m tests.docs.rules` writes it."""
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{markdown()}")


def test_the_rules_of_one_component_are_listed():
    """A name may be of several kinds: `gaussian` is a stage and an attack."""
    rows = {
        (row["this"], row["does_not_go"]): row["why"] for row in listed("rules", "fedma")["rules"]
    }
    assert rows["the down-link", "with method.name=fedma"].startswith(
        "whose round is a pass over the l"
    )
    assert rows["settings of local training at other values", "with method.name=fedma"] == (
        "which needs local.keep=false"
    )
    assert not any("overlap" in why for why in rows.values())
    names = {row["this"] for row in listed("rules", "gaussian")["rules"]}
    assert {"channel.gaussian", "downlink.gaussian"} < names
    said = [row["does_not_go"] for row in listed("rules", "gaussian")["rules"]]
    assert "with attack.name=gaussian" in said
    assert "with claims of privacy" in said and "with channel.gaussian" not in said
