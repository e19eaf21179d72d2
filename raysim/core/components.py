"""Components: methods, datasets, partitions and models, and the registries that name them.

A component is a frozen, validated pydantic model: its fields are its settings. It is named in
settings either by its registered name or as `package.module:Class`, so a user's own piece needs no
change here. Registries hold import paths, not classes: a component's module is imported when it
is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from raysim.core.errors import SettingsError


class Component(BaseModel):
    """Base of methods, datasets, partitions and models; its fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def settings(self) -> dict[str, Any]:
        """Return this component's settings: its name and its fields."""
        return {"name": name_of(type(self)), **self.model_dump(mode="json")}

    @property
    def title(self) -> str:
        """Name of this component in settings."""
        return name_of(type(self))


C = TypeVar("C", bound=Component)
V = TypeVar("V")
_NAMES: dict[str, str] = {}


def name_of(component: type[Component]) -> str:
    """Return the registered name of a class, or `package.module:Class`."""
    target = f"{component.__module__}:{component.__qualname__}"
    return _NAMES.get(target, target)


def suggest(word: str, known: list[str]) -> str:
    """Return "did you mean ...?" for a near miss, else the list of known words."""
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def look_up(kind: str, name: str, known: Mapping[str, V]) -> V:
    """Return the value of a name.

    Raises:
        SettingsError: the name is unknown.
    """
    if name not in known:
        raise SettingsError(f"{name}: no such {kind}; {suggest(name, sorted(known))}")
    return known[name]


class Registry(Generic[C]):
    """Registered components of one kind: "method", "dataset", "partition" or "model"."""

    def __init__(self, kind: str, base: type[C]) -> None:
        self.kind = kind
        self.base = base
        self._targets: dict[str, str] = {}

    def add(self, targets: Mapping[str, str]) -> None:
        """Register names for import paths, written `package.module:Class`."""
        self._targets.update(targets)
        _NAMES.update({target: name for name, target in targets.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._targets))

    def get(self, name: str) -> type[C]:
        """Return the class of a registered name or of `package.module:Class`.

        Raises:
            SettingsError: the name is unknown, or what it names is no component of this kind.
        """
        target = self._targets.get(name, name)
        key = f"{self.kind}.name={name}"
        if ":" not in target:
            hint = suggest(name, list(self))
            raise SettingsError(f"{key}: no such {self.kind}; {hint} (or package.module:Class)")
        module_name, _, class_name = target.partition(":")
        try:
            found = getattr(import_module(module_name), class_name)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise SettingsError(f"{key}: cannot be imported: {error}") from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise SettingsError(f"{key}: must be a subclass of raysim.{self.base.__name__}")
        return found


def build_component(
    component: type[C], fields: Mapping[str, Any], prefix: str, named: bool = False
) -> C:
    """Return a component with the fields of its settings.

    Args:
        component: Its class.
        fields: Its fields as plain values.
        prefix: What stands before a field in the settings, for example `method.`.
        named: Whether `name` stands among the fields in the settings.

    Raises:
        SettingsError: a field is wrong; the message names it, its value and the allowed range.
    """
    try:  # as JSON, so that lists may become tuples and strings enumerations
        return component.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        more = ["name"] if named else []
        raise SettingsError(explain(error, component, prefix, more)) from error


def explain(
    error: ValidationError,
    model: type[BaseModel],
    prefix: str = "",
    more: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> str:
    """Return the first validation error in one line.

    Args:
        error: The error.
        model: What was validated.
        prefix: What stands before a field in the settings.
        more: Keys that may stand beside the fields.
        renamed: Settings of earlier versions, and their present names.
    """
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        if now := (renamed or {}).get(prefix + ".".join(location)):
            return f"{location[0]}: no such setting; it is called {now!r} now"
        known = [*_group_at(model, location[:-1]).model_fields, *more]
        return f"{prefix}{'.'.join(location)}: no such setting; {suggest(location[-1], known)}"
    if first["type"] == "missing":
        return f"{prefix}{'.'.join(location)}: must be given"
    if broken_rule := first.get("ctx", {}).get("error"):
        return prefix + ".".join([*location, str(broken_rule)])
    key = ".".join(_without_union_tags(model, location))
    value = json.dumps(first["input"], default=str)
    return f"{prefix}{key}={value}: {_all_alternatives(error, first['input'])}"


def _all_alternatives(error: ValidationError, value: Any) -> str:
    problems = [
        problem["msg"].removeprefix("Input should be ")
        for problem in error.errors(include_url=False)
        if problem["input"] is value or problem["input"] == value
    ]
    return "must be " + " or ".join(dict.fromkeys(problems))


def _group_at(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    for part in location:
        annotation = model.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def _without_union_tags(model: type[BaseModel], location: list[str]) -> list[str]:
    fields: list[str] = []
    for part in location:
        if part not in model.model_fields:
            break
        fields.append(part)
        model = _group_at(model, [part])
    return fields
