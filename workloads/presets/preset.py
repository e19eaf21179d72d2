"""What a preset is: settings, what they reproduce and where each comes from, what was published.

Settings are held as plain values, as a file has them, and are validated when they are asked for:
the components that they name import torch, which a list of presets does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.config import Settings

ORIGINS = {
    "printed": "in the paper",
    "inferred": "from its authors' public code, or from a paper that it cites",
    "chosen": "here, as neither says",
}
"""Where a setting can come from."""


@dataclass(frozen=True)
class Paper:
    """A publication.

    Attributes:
        name: Its short name.
        citation: Authors, title, venue and year.
        inferred_from: What settings are inferred from; empty where none is.
    """

    name: str
    citation: str
    inferred_from: str = ""


def origins(printed: str = "", inferred: str = "", chosen: str = "") -> dict[str, str]:
    """Return where settings come from, by dotted key.

    Args:
        printed: Keys, separated by blanks. That of a group or component stands for those of its
            settings that are not named themselves.
        inferred: The same.
        chosen: The same.

    Raises:
        ValueError: a key is named twice.
    """
    marks: dict[str, str] = {}
    for origin, keys in zip(ORIGINS, (printed, inferred, chosen), strict=True):
        for key in keys.split():
            if key in marks:
                raise ValueError(f"{key}: is {marks[key]} and {origin}")
            marks[key] = origin
    return marks


@dataclass(frozen=True)
class Preset:
    """A named experiment.

    Attributes:
        about: What it is, in one line.
        values: The settings that are not at their defaults, as a file has them.
        marks: Where settings come from, by dotted key, as `origins` makes it; those that `base`
            does not say already.
        paper: The paper that it reproduces; none where it has no published counterpart.
        place: Tables and figures of the paper.
        published: Published figures by their names in `summary.json`.
        note: What else one should know: what is not followed, what is hard to read.
        base: The preset from which it is derived; `values` hold its settings too.
    """

    about: str
    values: Mapping[str, Any]
    marks: Mapping[str, str]
    paper: Paper | None = None
    place: str = ""
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
        """Where settings come from, by dotted key: what is marked, and what holds of the base."""
        if self.base is None:
            return self.marks
        known = names(self.settings)
        kept = {
            key: origin
            for key, origin in self.base.origins.items()
            if key in known
            and not any(key == name or key.startswith(f"{name}.") for name in self.marks)
        }
        return {**kept, **self.marks}

    @property
    def source(self) -> str:
        """The paper's name, and the tables and figures."""
        return f"{self.paper.name}, {self.place}" if self.paper else "no published counterpart"

    def origin(self, key: str) -> str | None:
        """Return where a setting comes from; None where nothing says it."""
        while key not in self.origins and "." in key:
            key = key.rpartition(".")[0]
        return self.origins.get(key)

    def by_origin(self) -> dict[str, dict[str, Any]]:
        """Return values by dotted key, by origin: those that are named or not at their default."""
        values = flat(self.settings.to_dict())
        shown = departures(self.settings).keys() | self.origins.keys()
        return {
            origin: {k: v for k, v in values.items() if k in shown and self.origin(k) == origin}
            for origin in ORIGINS
        }

    def published_for(self, settings: Settings) -> Mapping[str, float]:
        """Return the published figures, as far as settings leave them comparable."""
        free = {"out", "rounds", "seed", "checkpoint_every", "on_client_error", "trace"}
        free |= {"engine", "evaluation"}
        mine, theirs = self.settings.to_dict(), settings.to_dict()
        if any(mine[key] != theirs[key] for key in mine if key not in free):
            return {}
        if mine["rounds"] == theirs["rounds"]:
            return self.published
        return {name: value for name, value in self.published.items() if name == "rounds_to_target"}

    def replace(
        self,
        about: str,
        place: str = "",
        origins: Mapping[str, str] | None = None,
        published: Mapping[str, float] | None = None,
        note: str = "",
        **changes: Any,
    ) -> Preset:
        """Return a preset of the same paper with other settings.

        Args:
            about: What it is.
            place: Tables and figures; none given, those of this preset.
            origins: Where changed settings come from; all others keep their origin. A group or
                component that is named replaces what was said of its settings.
            published: Its published figures.
            note: What else one should know; this preset's note is not inherited.
            **changes: Settings. A dict changes single ones of a group or component; one with a
                `name` replaces the component.
        """
        values = dict(self.values)
        for key, change in changes.items():
            single = isinstance(change, Mapping) and "name" not in change
            values[key] = {**values.get(key, {}), **change} if single else change
        place, marks = place or self.place, origins or {}
        return Preset(about, values, marks, self.paper, place, published or {}, note, base=self)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        deeper = isinstance(value, Mapping)
        result |= flat(value, f"{prefix}{key}.") if deeper else {f"{prefix}{key}": value}
    return result


def names(settings: Settings) -> set[str]:
    """Return the dotted keys of settings, and those of their groups and components."""
    keys = flat(settings.to_dict())
    return {key.rsplit(".", depth)[0] for key in keys for depth in range(key.count(".") + 1)}


def departures(settings: Settings) -> dict[str, Any]:
    """Return values by dotted key: the components' names, and what differs from the defaults."""
    from raysim.config import Settings

    parts = ("dataset", "partition", "model", "method")
    plain = Settings(**{part: type(getattr(settings, part))() for part in parts})
    defaults = flat(plain.to_dict())
    return {
        key: value
        for key, value in flat(settings.to_dict()).items()
        if key not in defaults or defaults[key] != value or key.endswith(".name")
    }
