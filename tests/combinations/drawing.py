"""Random settings over all components, drawn from their schemas.

A component's fields are read from its JSON schema, so that new components and new fields are drawn
without a change here. `SPECIAL` has the settings that a schema does not tell: names of other
components, and values that must fit each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from pydantic import BaseModel

import raysim.methods
import raysim.workloads  # noqa: F401  registers partitions, as the line above does methods
from raysim.aggregation import AGGREGATIONS
from raysim.analysis import ANALYSES
from raysim.api.method import METHODS
from raysim.api.optimizer import OPTIMIZERS
from raysim.api.rates import RateSettings
from raysim.attack import ATTACKS
from raysim.channel import STAGES
from raysim.config import EvaluationSettings, LocalSettings, Settings
from raysim.selection import SELECTIONS
from raysim.server import SERVER_RULES
from raysim.temperature import TEMPERATURES

Drawn = dict[str, Any]
LARGEST = 10
"""Largest whole number of a setting that is tried: rounds, epochs and ranks take time."""
CHANCE = 0.5
"""Probability that a component's setting is drawn; otherwise it keeps its default."""
SELDOM = 0.12
"""Probability that a setting of local training, evaluation or the run is drawn."""
ASYNCHRONOUS = ("fedasync", "fedat", "fedbuff")


def value_of(schema: Mapping[str, Any], draws: Random) -> Any:
    """Return a random value of a field's schema; its default where none can be drawn."""
    if "anyOf" in schema:
        chosen = draws.choice(schema["anyOf"])
        return value_of({"default": schema.get("default"), **chosen}, draws)
    if "const" in schema or "enum" in schema:
        return draws.choice(schema.get("enum", [schema.get("const")]))
    kind, default = schema.get("type"), schema.get("default")
    if kind == "boolean":
        return draws.random() < 0.5
    if kind == "integer":
        least = schema.get("minimum", 0)
        tried = [least, least + 1, least + 2, *([default] if _is_small(default) else [])]
        return draws.choice([n for n in tried if n <= schema.get("maximum", n)])
    if kind == "number":
        return draws.choice(list(_numbers(schema)))
    return None if kind == "null" else default


def _is_small(default: Any) -> bool:
    return isinstance(default, int) and default <= LARGEST


def _numbers(schema: Mapping[str, Any]) -> Iterator[float]:
    """Yield numbers within a schema's bounds: its ends, and some about its default."""
    default = schema.get("default")
    about = default if isinstance(default, float | int) and default else 0.5
    least, most = schema.get("minimum"), schema.get("maximum")
    yield from (float(end) for end in (least, most) if end is not None and abs(end) <= LARGEST)
    above, below = schema.get("exclusiveMinimum", least), schema.get("exclusiveMaximum", most)
    for number in (about / 4, about, 2 * about):
        if (above is None or number > above) and (below is None or number < below):
            yield float(number)


def fields_of(model: type[BaseModel], draws: Random, chance: float) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each of a model's fields that is drawn."""
    for name, schema in model.model_json_schema().get("properties", {}).items():
        if draws.random() < chance:
            yield name, value_of(schema, draws)


def component(registry: Any, name: str, draws: Random) -> Drawn:
    """Return the drawn fields of a registered component."""
    fields = dict(fields_of(registry.get(name), draws, CHANCE))
    return fields | SPECIAL.get((registry.kind, name), lambda _: {})(draws)


def chain(draws: Random) -> Drawn:
    """Return the methods of a chain."""
    names = draws.sample([name for name in METHODS if name != "chain"], draws.choice([1, 2, 2, 3]))
    return {"methods": {name: component(METHODS, name, draws) for name in names}}


def gaussian(draws: Random) -> Drawn:
    """Return noise that needs no accounting of long runs."""
    unused = {"epsilon": None, "noise_cohort": None, "population": None}
    return {"noise": draws.choice([0.0, 0.5, 2.0]), "clip": draws.choice([0.1, 1]), **unused}


SPECIAL: Mapping[tuple[str, str], Callable[[Random], Drawn]] = {
    ("method", "chain"): chain,
    ("method", "divide_and_conquer"): lambda draws: {
        "prepass": draws.choice([1, 2]),
        **{"probe": 1, "finetune_epochs": 1},
    },
    ("method", "dp_ftrl"): lambda draws: {"noise": draws.choice([0.0, 2.0]), "epsilon": None},
    ("method", "fedala"): lambda draws: {"max_epochs": draws.choice([1, 3])},
    ("method", "fedma"): lambda draws: {"sweeps": draws.choice([0, 1])},
    ("method", "moon"): lambda draws: {"projection": draws.choice([None, 4])},
    ("method", "pfedme"): lambda draws: {"lam": draws.choice([0.0, 3.75, 15.0])},
    ("partition", "by_key"): lambda _: {"key": "client", "at_least": {}},
    ("partition", "class_imbalance"): lambda _: {"minimum": 1},
    ("partition", "natural"): lambda _: {"key": "client", "at_least": {}},
    ("partition", "resample"): lambda draws: {"samples": draws.choice([8, 20])},
    ("partition", "sorted_by"): lambda _: {"columns": ["client"]},
    ("stage", "gaussian"): gaussian,
    ("stage", "int8"): lambda draws: {"block": draws.choice([1, 7, 256])},
    ("stage", "masks"): lambda draws: {"neighbours": draws.choice([None, 2])},
    ("aggregation", "fltrust"): lambda draws: {"root": draws.choice([1, 5, 10])},
    ("attack", "backdoor"): lambda draws: {"size": draws.choice([1, 2])},
    ("attack", "replacement"): lambda draws: {"size": 1},
    ("temperature", "schedule"): lambda _: {"rounds": [1, 3], "values": [1.0, 0.5]},
}


def named(registry: Any, chance: float, draws: Random) -> Drawn:
    """Return a component's name and settings, as dotted keys; with a chance only."""
    if draws.random() >= chance:
        return {}
    name = draws.choice(list(registry))
    fields = component(registry, name, draws)
    values = {f"{registry.kind}.{key}": value for key, value in fields.items()}
    return {f"{registry.kind}.name": name, **values}


def server(draws: Random) -> Drawn:
    """Return a rule of the server; of its schedule the decay alone, which needs nothing else."""
    fixed = {f"server.{name}" for name in RateSettings.model_fields} - {"server.lr_decay"}
    return {k: v for k, v in named(SERVER_RULES, 0.35, draws).items() if k not in fixed}


def clock(draws: Random) -> Drawn:
    """Return devices, and a policy with what it needs."""
    policy = draws.choice(["wait", "wait", "deadline", "partial", "over_selection"])
    needed: Drawn = {"clock.name": "devices", "clock.policy": policy}
    if policy in ("deadline", "partial"):
        needed["clock.deadline"] = draws.choice([0.01, 0.05, 0.2, 10.0])
    if policy == "over_selection":
        needed["clock.extra"] = draws.choice([0, 1, 2])
    if draws.random() < 0.4:
        needed |= {"clock.on_hours": draws.choice([0.01, 1.0]), "clock.off_hours": 0.5}
    if draws.random() < 0.4:
        needed["clock.dropout"] = draws.choice([0.2, 0.7])
    return needed


def stages(setting: str, names: list[str], draws: Random) -> Drawn:
    """Return one to three stages of the channel or the down-link."""
    chosen = draws.sample(names, draws.choice([1, 1, 2, 3]))
    return {setting: {name: component(STAGES, name, draws) for name in chosen}}


def local(draws: Random) -> Drawn:
    """Return settings of local training."""
    drawn = {f"local.{name}": value for name, value in fields_of(LocalSettings, draws, SELDOM)}
    optimizer = draws.choice(["sgd", "sgd", "sgd", *OPTIMIZERS])
    drawn |= {"local.optimizer": optimizer, "local.batch_size": draws.choice([8, 8, 5, "full", 1])}
    drawn["local.lr"] = 0.1 if optimizer == "sgd" else 0.01
    if drawn.get("local.class_weights", "balanced") != "balanced":
        drawn["local.class_weights"] = [1.0, 0.0, 2.0]
    return drawn


def of_run(draws: Random) -> Drawn:
    """Return settings of the run itself that change neither data nor executor."""
    drawn: Drawn = {
        "fraction": draws.choice([1.0, 0.7, 0.7, 0.5, 0.3]),
        "seed": draws.randrange(5),
        "checkpoint_every": draws.choice([1, 1, 2, 10]),
    }
    kept = ("weighting", "keep_clients", "trace", "on_client_error")
    schemas = Settings.model_json_schema()["properties"]
    drawn |= {name: value_of(schemas[name], draws) for name in kept if draws.random() < SELDOM}
    if draws.random() < SELDOM:
        metric = draws.choice([None, "train_loss", "test_loss"])
        drawn |= {"patience": 3, "patience_metric": metric}
    if draws.random() < 2 * SELDOM:
        drawn["analysis"] = draws.sample(sorted(ANALYSES), draws.choice([1, 2]))
    if draws.random() < 2 * SELDOM:
        drawn["engine.vectorize"] = draws.choice([2, 3, 100])
    if draws.random() < SELDOM:
        drawn["engine.precision"] = "bf16"
    return drawn


def drawn_settings(number: int, draws: Random) -> Drawn:
    """Return random settings, not all of which go together.

    Args:
        number: Number of the case; methods and stages take turns by it, so that none is left out.
        draws: Generator of the case.
    """
    methods, names = list(METHODS), list(STAGES)
    method = methods[number % len(methods)]
    drawn: Drawn = {"method.name": method}
    drawn |= {f"method.{k}": v for k, v in component(METHODS, method, draws).items()}
    drawn |= named(SELECTIONS, 0.5, draws)
    if draws.random() < 0.5:
        drawn |= stages("channel", names, draws)
    if draws.random() < SELDOM:
        drawn |= stages("downlink", names, draws)
    for registry in (AGGREGATIONS, ATTACKS, TEMPERATURES):
        drawn |= named(registry, 0.35, draws)
    if draws.random() < 0.35:
        drawn |= clock(draws)
    evaluation = fields_of(EvaluationSettings, draws, SELDOM)
    drawn |= {f"evaluation.{name}": value for name, value in evaluation}
    return drawn | local(draws) | of_run(draws) | server(draws)
