"""Any value of any setting is accepted, or ends in one line that names the setting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import raysim
from raysim.api.components import Component, Registry, fields_of
from raysim.api.method import METHODS
from raysim.clock import CLOCKS
from raysim.config import Settings, parse, parse_override
from raysim.errors import DataError, RaysimError, SettingsError
from raysim.samples.data import DATASETS, MODELS, PARTITIONS
from raysim.selection import SELECTIONS
from tests.inputs.case import Case
from tests.inputs.conftest import Said
from tests.inputs.test_cases import LONGEST, check_line

COMPONENTS: tuple[Registry[Any], ...] = (METHODS, DATASETS, PARTITIONS, MODELS)
REGISTRIES = (*COMPONENTS, SELECTIONS, CLOCKS)
ABSURD = (10**9, 10**9 + 1, 10**30, -(10**30), 2**63 - 1, 2**63, 1e-320, 1e300, -0.0, 1e-9)


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a model's fields, and of its groups'."""
    for name, field in model.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind]
        group = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        yield f"{prefix}{name}"
        if group and not issubclass(group, Component):
            yield from settings_of(group, f"{prefix}{name}.")


def keys() -> list[tuple[str, str]]:
    """Return every setting: "" and its key, or the name of a component and its field's key."""
    import raysim.methods
    import raysim.workloads  # noqa: F401

    found = [("", key) for key in settings_of(Settings)]
    for registry in REGISTRIES:
        for name in registry:
            found.append((name, f"{registry.kind}.name"))
            prefix = f"{registry.kind}."
            found += [(name, key) for key, _ in fields_of(registry.get(name), prefix)]
    return found


KEYS = keys()
TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(["", "auto", "none", "x" * 9999])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(ABSURD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def overrides_of(name: str, key: str, value: Any) -> dict[str, Any]:
    if not name:
        return {key: value}
    kind = key.partition(".")[0]
    registry = next(each for each in REGISTRIES if each.kind == kind)
    fields = registry.get(name).model_fields.items()
    needed = {f"{kind}.{each}": "a" for each, field in fields if field.is_required()}
    return {f"{kind}.name": name, **needed, key: value}


def test_every_setting_is_there():
    assert len(KEYS) > 100
    assert {("", "local.lr"), ("fedprox", "method.mu"), ("vgg9", "model.dropout")} <= {*KEYS}


@settings(deadline=None)  # the first import of a module takes seconds
@given(st.sampled_from(KEYS), VALUES)
@example(("", "seed"), 2**70)
@example(("", "local.epochs"), 10**30)
@example(("activation_l2", "method.beta"), {"\ud800": None})
def test_a_value_is_accepted_or_its_setting_named(at: tuple[str, str], value: Any) -> None:
    name, key = at
    try:
        accepted = raysim.load_config("mnist-fedavg", overrides_of(name, key, value))
    except SettingsError as error:
        line = str(error)
        assert line.isprintable() and len(line) <= LONGEST
        last = key.rpartition(".")[2] if key.startswith(("local.", "engine.")) else key
        assert key in line or f"{last}=" in line or key.endswith(".name"), line
    except DataError as error:  # clients by a column, which MNIST lacks
        assert str(error).startswith("partition.key=") and key.startswith("partition.")
    else:
        assert parse(json.loads(json.dumps(accepted.to_dict()))) == accepted


@settings(deadline=None)
@given(st.text(st.characters(), max_size=40))
def test_any_word_is_an_override_or_refused(word: str) -> None:
    try:
        key, value = parse_override(word)
        raysim.load_config("mnist-fedavg", {key: value})
    except SettingsError as error:
        assert str(error).isprintable() and str(error)


@pytest.mark.parametrize("absurd", ABSURD, ids=str)
def test_absurd_values_that_are_accepted_stop_or_run(
    command: Callable[[Case], Said], monkeypatch: pytest.MonkeyPatch, absurd: float
) -> None:
    """Every setting at once that takes the value; whatever the checks before a start say."""
    accepted: dict[str, float] = {}
    for name, key in KEYS:
        if name or key == "clients":
            continue
        with_it = {**accepted, key: absurd}
        try:
            raysim.load_config("mnist-fedavg", with_it)
        except RaysimError:
            continue
        accepted = with_it

    def stop(*given: Any) -> None:
        raise SettingsError("checked")

    monkeypatch.setattr("raysim.driver.start.start.ray_runtime", stop)
    words = [f"{key}={value!r}" for key, value in accepted.items()]
    code, _, err = command(Case(("run", "KIT/small.toml", *words)))
    assert code == 2
    check_line(err, [])
