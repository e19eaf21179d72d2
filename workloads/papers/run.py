"""A run of a table, a sweep or a figure, and the name of its folder.

The name is a digest of the settings that decide the run's results and rows, so that it stays when
rows, columns or seeds are added. Settings with their default value are left out: a later version
with a new setting gives the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic import BaseModel

from raysim.config import Settings
from raysim.user_input import canonical, key_text
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.sweeps import differs_by_cell


@dataclass(frozen=True)
class Run:
    """A run; runs are equal if their settings are.

    Attributes:
        digest: Digest of its settings without the seed, and of its reference.
        seed: Its seed.
        label: Its name in messages, without the seed.
        settings: Its settings, without its folder and that of its reference.
        reference: The run whose model its analyses compare with.
    """

    digest: str
    seed: int
    label: str = field(compare=False)
    settings: Settings = field(compare=False, repr=False)
    reference: Run | None = field(default=None, compare=False)

    @classmethod
    def of(cls, label: str, settings: Settings, reference: Run | None = None) -> Run:
        """Return the run of settings."""
        return cls(digest_of(settings, reference), settings.seed, label, settings, reference)

    @property
    def name(self) -> str:
        """Its folder among the runs."""
        return f"{self.digest}/seed-{self.seed}"

    @property
    def title(self) -> str:
        """Its label and its seed."""
        return f"{self.label}, seed {self.seed}"

    @cached_property
    def missing(self) -> str:
        """Missing files that the user must provide for the run."""
        return missing_files(self.settings.dataset, data_root())

    def with_seed(self, seed: int) -> Run:
        """Return the run with another seed, and the same of its reference."""
        settings = self.settings.model_copy(update={"seed": seed})
        reference = self.reference and self.reference.with_seed(seed)
        return replace(self, seed=seed, settings=settings, reference=reference)

    def seeds(self, distances: Iterable[int]) -> list[Run]:
        """Return the runs of seeds at distances from this one's."""
        return [self.with_seed(self.seed + distance) for distance in distances]


def digest_of(settings: Settings, reference: Run | None = None) -> str:
    """Return the digest of all that decides a run's results and rows, but the seed."""
    values = canonical(_given(settings))
    kept = {key: values[key] for key in values if key != "seed" and differs_by_cell(key)}
    compared = [reference.digest] if reference else []
    return sha256(key_text(kept, *compared).encode()).hexdigest()[:12]


def _given(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults; components keep their names."""
    all_values, values = settings.to_dict(), dict[str, Any]()
    for name in _changed(settings):
        part = getattr(settings, name)
        values[name] = all_values[name]
        if isinstance(part, BaseModel):
            kept = {"name", *_changed(part)}
            values[name] = {key: value for key, value in all_values[name].items() if key in kept}
    return values


def _changed(model: BaseModel) -> list[str]:
    """Return the fields whose values are not their defaults."""
    return [
        name
        for name, about in type(model).model_fields.items()
        if about.is_required()
        or getattr(model, name) != about.get_default(call_default_factory=True)
    ]
