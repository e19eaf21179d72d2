"""Values that a run withholds from its components, because one of them hides them.

`closed` in a field's metadata says what closes the field. The engine hands out a view with a
`Withheld` in place of each closed value. So no component has to state which values it reads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import FrameType
from typing import Any, NoReturn, TypeVar

from raysim.api.components import Component, Refusal, called

V = TypeVar("V")


class Tells(Enum):
    """Kinds of values by the information in them; a run hides some kinds."""

    SINGLE = "what single clients have and send"
    TIMES = "how long single clients take"
    COHORT = "which clients take part"


SINGLE, TIMES, COHORT = Tells


def closed(what: str, tells: Tells, *, instead: str, handle: bool = False) -> dict[str, Any]:
    """Return the metadata of a field that a run may close.

    Args:
        what: The content of the field, in words, for the error of its reader.
        tells: The kind of its content.
        instead: Advice: a component to choose in place of the reader, or another remedy.
        handle: Whether the engine takes the closed value back: a pass may be over clients that a
            method cannot see.
    """
    return {"closed": (what, tells, instead, handle)}


class Withheld:
    """A value that a run withholds: it may be passed on, copied and pickled, but not read.

    Every use raises a `Refusal`; its line names the reader and the setting.
    """

    def __init__(self, by: str, reader: Component, told: str, value: Any = None) -> None:
        """Withhold a value.

        Args:
            by: The setting that closes it.
            reader: The component that receives it.
            told: Its content, in words, and the advice.
            value: The value that the engine finds in it; None for nothing.
        """
        vars(self)[_PARTS] = by, reader, told, value

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # pickle, copy, numpy and torch look for hooks
            raise AttributeError(name)
        _refuse(self)

    def __eq__(self, other: object) -> bool:
        """Return True for the value itself, which a chain compares with its input."""
        return other is self or _refuse(self)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<withheld by {vars(self)[_PARTS][0]}>"


_PARTS = "setting, component, content and value"
"""Key of a value's parts, which is no name of an attribute: there is none to read."""


def _refuse(withheld: Withheld, *_: Any, **__: Any) -> NoReturn:
    by, given_to, told, _value = vars(withheld)[_PARTS]
    reader: Any = None
    frame: FrameType | None = sys._getframe(1)
    while frame and not isinstance(reader, Component):  # of a chain the member, which is nearest
        reader, frame = frame.f_locals.get("self"), frame.f_back
    reader = reader if isinstance(reader, Component) else given_to
    raise Refusal(f"{by}: does not go with {called(reader)}, which {told}")


_READS = (
    "call len iter next getitem setitem delitem setattr delattr enter contains reversed bool int"
    " float complex index array str format round trunc floor ceil lt le gt ge neg pos abs invert"
    " add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow"
    " rpow matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift"
)
for _name in _READS.split():
    setattr(Withheld, f"__{_name}__", _refuse)


def withheld(view: V, closing: Mapping[Tells, str], reader: Component) -> V:
    """Return a view as a component sees it.

    Args:
        view: The dataclass that the engine hands out; dataclasses in its fields are views, too.
        closing: The kinds of values that a run hides, each with the setting that hides it.
        reader: The component.
    """
    changed: dict[str, Any] = {}
    for field in fields(view) if closing else ():  # type: ignore[arg-type]
        value: Any = getattr(view, field.name)
        what, tells, instead, handle = field.metadata.get("closed", ("", None, "", False))
        if setting := closing.get(tells):
            told = f"reads {what} ({type(view).__name__}.{field.name}); {instead}"
            changed[field.name] = Withheld(setting, reader, told, value if handle else None)
        elif is_dataclass(value) and (seen := withheld(value, closing, reader)) is not value:
            changed[field.name] = seen
    return replace(view, **changed) if changed else view  # type: ignore[type-var]


def opened(value: Any) -> Any:
    """Return the value of a `Withheld` that a component has passed on; anything else as it is.

    Raises:
        Refusal: it is no value that the engine takes back.
    """
    if not isinstance(value, Withheld):
        return value
    if (opened_value := vars(value)[_PARTS][-1]) is None:
        _refuse(value)
    return opened_value
