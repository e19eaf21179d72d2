"""Components: methods, datasets, partitions and models, and the registries that name them.

A component is a frozen, validated pydantic model: its fields are its settings. It is named in
settings either by its registered name or as `package.module:Class`, so a user's own piece needs no
change here. Registries hold import paths, not classes: a component's module is imported when it
is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

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
