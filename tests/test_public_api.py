"""Snapshot of what `import raysim` offers: names, signatures, fields and methods.

`python -m tests.test_public_api` writes it anew, for a change that is meant.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel

import raysim

SNAPSHOT = Path(__file__).parent / "public_api.txt"
COMMAND = "python -m tests.test_public_api"


def described() -> str:
    """Return the public API as text, name by name."""
    return "\n".join(line for name in sorted(raysim.__all__) for line in lines_of(name))


def lines_of(name: str) -> Iterator[str]:
    """Yield the lines of a function, or those of a class, its fields and its methods."""
    value = getattr(raysim, name)
    if not inspect.isclass(value):
        if get_origin(value):
            yield f"{name} = {value}"
        else:
            yield f"def {name}{signature(value)}" if callable(value) else f"{name}: {type(value)}"
        yield ""
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    yield from (f"    {line}" for line in [*field_lines(value), *method_lines(value)])
    yield ""


def own_classes(kind: type) -> list[type]:
    """Return a class and those of its bases that are the project's, base first."""
    return [each for each in reversed(kind.__mro__) if each.__module__.startswith("raysim")]


def field_lines(kind: type) -> list[str]:
    """Return the annotated public attributes, with their defaults."""
    annotations: dict[str, str] = {}
    for each in own_classes(kind):
        annotations |= {n: text(a) for n, a in inspect.get_annotations(each).items()}
    defaults = defaults_of(kind)
    return [
        f"{name}: {annotation}" + (f" = {shown(defaults[name])}" if name in defaults else "")
        for name, annotation in annotations.items()
        if not name.startswith("_") and name != "model_config"
    ]


def text(annotation: Any) -> str:
    """Return an annotation as it is written; a NamedTuple wraps its own."""
    return getattr(annotation, "__forward_arg__", str(annotation))


def defaults_of(kind: Any) -> dict[str, Any]:
    if issubclass(kind, BaseModel):
        found = kind.model_fields.items()
        return {name: field.get_default() for name, field in found if not field.is_required()}
    if is_dataclass(kind):
        return {
            field.name: field.default if field.default is not MISSING else field.default_factory
            for field in fields(kind)
            if field.default is not MISSING or field.default_factory is not MISSING
        }
    return dict(getattr(kind, "_field_defaults", {}))


def method_lines(kind: type) -> list[str]:
    """Return the public methods and properties that the project defines."""
    found: dict[str, str] = {}
    fielded = defaults_of(kind)
    for each in own_classes(kind):
        for name, value in vars(each).items():
            if name.startswith("_") or name in fielded:
                continue
            if isinstance(value, property):
                found[name] = f"{name} -> {inspect.get_annotations(value.fget)['return']}"
            elif isinstance(value, classmethod):
                found[name] = f"classmethod {name}{signature(value.__func__)}"
            elif inspect.isfunction(value):
                found[name] = f"def {name}{signature(value)}"
    return list(found.values())


def signature(function: Any) -> str:
    """Return a signature whose defaults have no addresses."""
    given = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [
        p if p.default is empty else p.replace(default=Default(p.default))
        for p in given.parameters.values()
    ]
    return str(given.replace(parameters=parameters)).replace("'", "")


class Default:
    """Default value as the snapshot shows it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return shown(self._value)


def shown(value: Any) -> str:
    """Return a function's or class's name, a component's name, or the value as it is written."""
    if inspect.isfunction(value) or inspect.isclass(value):
        return f"<{value.__name__}>"
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return repr(value) if plain else f"<{type(value).__name__}>"


def test_the_public_api_is_the_one_that_was_written_down():
    written = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    changes = [*difflib.unified_diff(written, described().splitlines(), "written", "found", n=1)]
    advice = f"if this is meant: {COMMAND}"
    assert not changes, "\n".join(["the public API has changed", *changes, advice])


if __name__ == "__main__":
    SNAPSHOT.write_text(described(), encoding="utf-8")
