"""Page of `raysim run --explain`: the algorithm of a run, step by step, in words and formulas.

The words are the first lines of the components' docstrings with their settings, and the formulas
those of their modules: a component of a user's own explains itself in the same way. Components that
are as by default do nothing, and have no line; nor has a step that the method replaces.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import attrgetter, getitem

from raysim.api.channel import Stage
from raysim.api.components import Component, fields_of
from raysim.api.method import Method
from raysim.cli.pages import FORMULA
from raysim.config import EvaluationSettings, Settings
from raysim.display.units import counted
from raysim.methods.fedavg import FedAvg
from raysim.samples.data import Model
from raysim.user_input import as_typed

WIDTH = 13
"""Characters of a step's name."""
OF_MODELS = ("epochs", "steps", "batch_size", "optimizer", "lr")
"""Settings of local training that its line has in words."""
ELSEWHERE = ("dataset", "partition", "model", "method", "selection", "server")
"""Components with a line of their own, and those of the data."""
SETS = {
    "test": "the test set",
    "holdout": "held-out samples of each client",
    "local_test": "each client's own test samples",
    "train_set": "the training samples",
    "clients": "single clients",
}
"""Evaluated samples, by the settings of evaluation that ask for them."""


def explained(settings: Settings) -> Iterator[str]:
    """Yield the lines that explain a run: a step of a round each, and its formulas below it."""
    yield from _step("selection", settings.selection, _cohort(settings))
    method = settings.method
    is_pooled = isinstance(method, FedAvg) and method.pooled  # nothing is sent
    if not is_pooled:
        yield from _of_stages("down", "The server sends its model", settings.down_stages)
    if type(settings.model).read is not Model.read:  # it has frozen weights, in files
        yield from _step("model", settings.model, "Only what is trained is sent. ")
    yield _line("local steps", _local(settings))
    yield from _formulas(settings.local.build_optimizer())
    yield from _step("method", method)
    for member in _members(method):
        yield from _step("", member)
    if not is_pooled:
        yield from _of_stages(
            "up", f"Each client sends its result{_weight(settings)}", settings.stages
        )
        yield from _server(settings)
    for name, component in settings:
        if name not in ELSEWHERE and not _is_default(name, component):
            yield from _step(name, component)
    yield _line("evaluation", _evaluation(settings.evaluation))
    yield _line("end", _end(settings))


def _is_default(name: str, value: object) -> bool:
    """Return whether a setting is no component, or the one by default."""
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    return not isinstance(value, Component) or value == default


def _members(method: Method) -> Iterator[Method]:
    """Yield the methods that are settings of a method, as of a chain."""
    for _, value in method:
        parts = value.values() if isinstance(value, Mapping) else [value]
        yield from (part for part in parts if isinstance(part, Method))


def _weight(settings: Settings) -> str:
    """Return the weighting of results, if it is not the default; "" if the method has its own."""
    method, default = settings.method, Settings.model_fields["weighting"].default
    own = isinstance(method, FedAvg) and method.weighting
    return "" if own or settings.weighting == default else f", weighting={settings.weighting},"


def _server(settings: Settings) -> Iterator[str]:
    """Yield the step of the server's rule, unless it is the method's own or the method has it."""
    method, rule = settings.method, settings.server_rule
    if not _is_default("server", rule):
        if not method.server_rule:
            yield from _step("server", rule)
        return
    kind = type(method)
    plain = (
        kind.round is FedAvg.round and getattr(kind, "server_update", None) is FedAvg.server_update
    )
    said = " ".join(_formulas(method))
    has_step = all(line.strip().split("  ")[0] in said for line in _formulas(rule))
    plain &= _is_default("aggregation", settings.aggregation)
    if plain and not (method.own_server or method.needs_mean or has_step):
        yield from _step("server", rule)


def _line(name: str, text: str) -> str:
    return f"{name:{WIDTH}}{text}"


def _step(name: str, component: Component, before: str = "") -> Iterator[str]:
    """Yield the line of a component, and its formulas."""
    yield _line(name, f"{before}{described(component)}")
    yield from _formulas(component)


def described(component: Component) -> str:
    """Return a component's name, its settings, and the first paragraph of its docstring.

    The settings are those that its formulas name, and those that are no default.
    """
    formulas, shown = " ".join(_formulas(component)), component.model_dump(mode="json")
    named = {*re.findall(r"\w+", formulas), *re.findall(r"\w+\.\w+", formulas)}
    fields = ", ".join(
        f"{key}={as_typed(reduce(getitem, key.split('.'), shown))}"
        for key, field in fields_of(type(component))
        if key in named
        or attrgetter(key)(component) != field.get_default(call_default_factory=True)
    )
    about = (inspect.getdoc(type(component)) or "").split("\n\n")[0].replace("\n", " ")
    return f"{component.title}{f' ({fields})' if fields else ''}: {about}"


def _formulas(component: Component) -> Iterator[str]:
    """Yield the formulas of a component's module and class, which their docstrings indent.

    Those for other values of its settings are left out, with the lines that continue them.
    """
    module = inspect.getmodule(type(component))  # getdoc would take away its only indentation
    lines = ((module and module.__doc__) or "").splitlines()
    lines += (inspect.getdoc(type(component)) or "").splitlines()
    left_out: int | None = None
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        if not line.startswith(FORMULA) or (left_out is not None and indentation > left_out):
            continue
        left_out = indentation if _is_of_others(line, component) else None
        if left_out is None:
            yield " " * WIDTH + line


def _is_of_others(line: str, component: Component) -> bool:
    """Return whether a formula is labelled with another value of a setting, as `mode="sum"`."""
    values = component.model_dump(mode="json")
    labels = re.findall(r"(?<!\w)(\w+)=\"?([\w.]+)", line)
    return any(name in values and as_typed(values[name]) != value for name, value in labels)


def _cohort(settings: Settings) -> str:
    """Return the number of clients of a round in words."""
    asynchrony = settings.asynchrony
    if asynchrony:
        return f"{asynchrony.concurrency} of {settings.clients} clients train at any time. "
    about = "about " if settings.selection.may_be_empty else ""
    return f"{about}{settings.cohort_size} of {settings.clients} clients a round. "


def _local(settings: Settings) -> str:
    """Return the local steps of a client in words, and the settings that are no default."""
    local = settings.local
    batch = "all its samples" if local.batch_size == "full" else f"{local.batch_size} samples"
    words = f"{local.work_in_words} on batches of {batch}, {local.optimizer} at rate {local.lr:g}"
    if local.train:
        words = f"The loop {local.train}, given {words}"
    defaults = type(local)().model_dump(mode="json")
    changed = [
        f"{key}={as_typed(value)}"
        for key, value in local.model_dump(mode="json").items()
        if key not in (*OF_MODELS, "train") and value != defaults[key]
    ]
    return f"{words} ({', '.join(changed)})." if changed else f"{words}."


def _of_stages(name: str, words: str, stages: Mapping[str, Stage]) -> Iterator[str]:
    """Yield the way of a model or an update: its stages in order, each with its formulas."""
    if not stages:
        yield _line(name, f"{words} as it is.")
        return
    way = "one stage:" if len(stages) == 1 else f"{len(stages)} stages, in this order:"
    yield _line(name, f"{words} through {way}")
    for stage in stages.values():
        yield from _step("", stage)


def _evaluation(evaluation: EvaluationSettings) -> str:
    """Return what is evaluated and when, in words."""
    sets = [words for key, words in SETS.items() if getattr(evaluation, key)]
    every = "each round" if evaluation.every == 1 else f"every {evaluation.every} rounds"
    models = "" if evaluation.when == "before" else ", with models after local training"
    return f"{', '.join(sets) or 'nothing'}, {every}{models}."


def _end(settings: Settings) -> str:
    """Return the end of a run in words."""
    words = f"after {counted(settings.rounds, 'round')}"
    if settings.target_accuracy is not None:
        words += f", or at an accuracy of {settings.target_accuracy:g}"
    if settings.patience is not None:
        words += f", or after {counted(settings.patience, 'round')} without improvement"
    return f"{words}; seed {settings.seed}."
