"""Values that a run hides from a component that it asks."""

from __future__ import annotations

from typing import Any, NoReturn

from raysim.core.errors import SettingsError


class WithheldError(SettingsError):
    """Error of a component that reads what a run hides from it."""


class Withheld:
    """A value that a run hides: it may be passed on, copied and pickled, but not read.

    Every use of it raises a `WithheldError` that says what does not go with what.
    """

    def __init__(self, refusal: str) -> None:
        """Hide a value.

        Args:
            refusal: The line that its readers get.
        """
        self.__dict__["refusal"] = refusal

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # pickle, copy, numpy and torch look for hooks
            raise AttributeError(name)
        raise WithheldError(self.__dict__["refusal"])

    def __repr__(self) -> str:
        return "<withheld>"


def _refuse(withheld: Withheld, *_: Any, **__: Any) -> NoReturn:
    raise WithheldError(withheld.__dict__["refusal"])


_READS = (
    "call len iter next getitem contains reversed bool int float complex index array str format"
    " round eq ne lt le gt ge neg pos abs invert add radd sub rsub mul rmul truediv rtruediv"
    " floordiv rfloordiv mod rmod divmod rdivmod pow rpow matmul rmatmul and rand or ror xor rxor"
)
for _name in _READS.split():
    setattr(Withheld, f"__{_name}__", _refuse)
