"""Preparation of a run's samples: all that new data needs to become inputs of its network.

A run directory keeps it, so that a model predicts where the run's data has gone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from raysim.user_input.limits import Count

PREPARATION = "preparation"
"""Split of a dataset for its own part, `Preparation.columns`: its one input is a JSON text."""


@dataclass(frozen=True)
class Preparation:
    """Preparation of a run's samples.

    Attributes:
        stored: Shape of a sample as it is stored, before `Dataset.decode`.
        dtype: NumPy's name of its type.
        inputs: Shape of an input of the network.
        outputs: Number of classes, or of values of a target.
        classes: Names of the classes; empty if they have numbers alone.
        unit: Mean and deviation of the targets, if the network's outputs are in standard units.
        columns: JSON of the dataset about columns as stored samples; "": a sample is one array.
    """

    stored: tuple[int, ...]
    dtype: str
    inputs: tuple[Count, ...]
    outputs: Count
    classes: tuple[str, ...] = ()
    unit: tuple[float, float] | None = None
    columns: str = ""

    @property
    def size(self) -> tuple[tuple[int, ...], int]:
        """Shape of an input and number of outputs, to build a network for them."""
        return self.inputs, self.outputs

    @classmethod
    def of(cls, values: Any) -> Self:
        """Return the preparation that `to_json` described.

        Raises:
            ValueError: the values are none.
        """
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg']}") from error

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)
