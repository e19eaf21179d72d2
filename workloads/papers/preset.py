"""A preset: settings of a published experiment, their origins, and the published values.

Settings are held as plain values, as a file has them, and are validated when they are asked for:
the components that they name import torch, which a list of presets does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raysim.errors import SettingsError
from raysim.user_input import canonical, decides_result, dotted

if TYPE_CHECKING:
    from raysim.config import Settings

ORIGINS = {
    "printed": "in the paper",
    "inferred": "from its authors' public code, or from a paper that it cites",
    "chosen": "here, if neither states it",
}
"""Origins of a setting."""


@dataclass(frozen=True)
class Paper:
    """A publication.

    Attributes:
        name: Its short name.
        citation: Authors, title, venue and year.
        inferred_from: Source of inferred settings; empty if none is inferred.
    """

    name: str
    citation: str
    inferred_from: str = ""


def origins(printed: str = "", inferred: str = "", chosen: str = "") -> dict[str, str]:
    """Return the origins of settings, by dotted key.

    Args:
        printed: Keys, separated by blanks. The key of a group or component covers those of its
            settings that have no origin of their own.
        inferred: The same.
        chosen: The same.

    Raises:
        SettingsError: a key is named twice.
    """
    marks: dict[str, str] = {}
    for origin, keys in zip(ORIGINS, (printed, inferred, chosen), strict=True):
        for key in keys.split():
            if key in marks:
                raise SettingsError(f"{key}: is {marks[key]} and {origin}")
            marks[key] = origin
    return marks


@dataclass(frozen=True)
class Preset:
    """A named experiment.

    Attributes:
        about: Description in one line.
        values: The settings that are not at their defaults, as a file has them.
        marks: Where settings come from, by dotted key, as `origins` makes it; those that `base`
            does not say already.
        paper: The paper that it reproduces; None without a published counterpart.
        reference: Tables and figures of the paper.
        published: Published figures by their names in `summary.json`.
        note: Further remarks: deviations from the paper, and values that are hard to read.
        base: The preset from which it is derived; `values` also hold its settings.
    """

    about: str
    values: Mapping[str, Any]
    marks: Mapping[str, str]
    paper: Paper | None = None
    reference: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    base: Preset | None = None

    @cached_property
    def settings(self) -> Settings:
        """The validated settings."""
        from raysim import methods  # noqa: F401 - registers the methods
        from raysim.config import parse

        return parse(self.values)

    @cached_property
    def origins(self) -> Mapping[str, str]:
        """Origins of settings by dotted key: the marked ones, then the base's."""
        if self.base is None:
            return self.marks
        known = names(self.settings)
        inherited = {
            key: origin
            for key, origin in self.base.origins.items()
            if key in known
            and not any(key == name or key.startswith(f"{name}.") for name in self.marks)
        }
        return {**inherited, **self.marks}

    @property
    def source(self) -> str:
        """The paper's name with tables and figures."""
        return f"{self.paper.name}, {self.reference}" if self.paper else "no published counterpart"

    def origin(self, key: str) -> str | None:
        """Return the origin of a setting; None if it has none."""
        while key not in self.origins and "." in key:
            key = key.rpartition(".")[0]
        return self.origins.get(key)

    def by_origin(self) -> dict[str, dict[str, Any]]:
        """Return settings with an origin of their own or a value that is not the default."""
        values = dotted(self.settings.to_dict())
        listed = departures(self.settings).keys() | self.origins.keys()
        return {
            origin: {k: v for k, v in values.items() if k in listed and self.origin(k) == origin}
            for origin in ORIGINS
        }

    def published_for(self, settings: Settings) -> Mapping[str, float]:
        """Return the published values that are comparable with a run of these settings."""
        free = {"engine", "evaluation", "rounds", "seed"}
        mine, theirs = canonical(self.settings.to_dict()), canonical(settings.to_dict())
        keys = (key for key in {**mine, **theirs} if key.partition(".")[0] not in free)
        if any(mine.get(key) != theirs.get(key) for key in keys if decides_result(key)):
            return {}
        if mine["rounds"] == theirs["rounds"]:
            return self.published
        return {name: value for name, value in self.published.items() if name == "rounds_to_target"}

    def replace(
        self,
        about: str,
        reference: str = "",
        origins: Mapping[str, str] | None = None,
        published: Mapping[str, float] | None = None,
        note: str = "",
        **changes: Any,
    ) -> Preset:
        """Return a preset of the same paper with other settings.

        Args:
            about: Description in one line.
            reference: Tables and figures; by default this preset's.
            origins: Where changed settings come from; all others keep their origin. A group or
                component that is named replaces what was said of its settings.
            published: Its published values.
            note: Further remarks; this preset's note is not inherited.
            **changes: Settings. A dict changes single ones of a group or component; one with a
                `name` replaces the component.
        """
        values = dict(self.values)
        for key, change in changes.items():
            single = isinstance(change, Mapping) and "name" not in change
            values[key] = {**values.get(key, {}), **change} if single else change
        reference, marks = reference or self.reference, origins or {}
        return Preset(about, values, marks, self.paper, reference, published or {}, note, base=self)


def names(settings: Settings) -> set[str]:
    """Return the dotted keys of all settings, groups and components."""
    keys = dotted(settings.to_dict())
    return {key.rsplit(".", depth)[0] for key in keys for depth in range(key.count(".") + 1)}


def departures(settings: Settings) -> dict[str, Any]:
    """Return values by dotted key: the components' names, and values other than the defaults."""
    from raysim.config import Settings

    parts = ("dataset", "partition", "model", "method")
    given = {part: getattr(settings, part) for part in parts}
    required = {
        part: {n for n, field in type(component).model_fields.items() if field.is_required()}
        for part, component in given.items()
    }
    plain = {part: type(of)(**of.model_dump(include=required[part])) for part, of in given.items()}
    defaults = dotted(Settings(**plain).to_dict())
    for part, fields in required.items():
        for name in fields:
            del defaults[f"{part}.{name}"]
    return {
        key: value
        for key, value in dotted(settings.to_dict()).items()
        if key not in defaults
        or defaults[key] != value
        or (key.endswith(".name") and key.partition(".")[0] in parts)
    }
