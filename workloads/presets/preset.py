"""What a preset is: settings, what they reproduce, and what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.config import Settings


@dataclass(frozen=True)
class Preset:
    """A named experiment.

    Attributes:
        about: What it reproduces, and which settings are printed there, inferred or chosen.
        settings: The settings.
        published: Published figures by their names in `summary.json`.
    """

    about: str
    settings: Settings
    published: Mapping[str, float] = field(default_factory=dict)

    def published_for(self, settings: Settings) -> Mapping[str, float]:
        """Return the published figures, or none where settings make it another experiment."""
        free = {"out", "rounds", "seed", "checkpoint_every", "on_client_error"}
        free |= {"engine", "evaluation"}
        mine, theirs = self.settings.to_dict(), settings.to_dict()
        same = all(mine[key] == theirs[key] for key in mine if key not in free)
        return self.published if same else {}

    def replace(
        self, about: str, published: Mapping[str, float] | None = None, **changes: Any
    ) -> Preset:
        """Return a preset with other settings; `local={...}` changes single local settings."""
        if "local" in changes:
            changes["local"] = self.settings.local.model_copy(update=changes["local"])
        return Preset(about, self.settings.model_copy(update=changes), published or {})
