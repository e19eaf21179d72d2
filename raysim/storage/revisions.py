"""Revisions of a run's components: another gives other bits under the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysim.api.components import Component
from raysim.config import Settings

FORMULA = "revision of the method's formula"
SERVER, OPTIMIZER = "revision of the server", "revision of the optimizer"
STAGES, DOWN_STAGES = "revisions of the channel's stages", "revisions of the down-link's stages"
KINDS = {
    f"revision of the {key}": key
    for key, field in Settings.model_fields.items()
    if isinstance(field.default, Component)
}
"""Settings of the components that a run has by default."""
COMPONENTS = {
    **{name: f"{key}." for name, key in KINDS.items()},
    OPTIMIZER: "local.",
    STAGES: "channel.",
    DOWN_STAGES: "downlink.",
}
"""How the settings of each begin, besides the method's."""


def revisions_of(settings: Settings) -> dict[str, Any]:
    """Return the present revisions of the components that settings name."""
    return {
        FORMULA: settings.method.revision,
        **{name: getattr(settings, key).revision for name, key in KINDS.items()},
        SERVER: settings.server_rule.revision,  # the method's own, if it has one
        OPTIMIZER: settings.local.build_optimizer().revision,
        STAGES: {name: stage.revision for name, stage in settings.channel.items()},
        DOWN_STAGES: {name: stage.revision for name, stage in settings.downlink.items()},
    }


def sealed_revisions(identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the revisions in the identity of a checkpoint; None if it lacks one."""
    names = (FORMULA, *COMPONENTS)
    return {name: identity[name] for name in names} if identity.keys() >= {*names} else None


def in_words(revisions: Mapping[str, Any]) -> str:
    """Return the revision of the method's formula, and others that are not the first."""
    return ", ".join([str(revisions[FORMULA]), *_later(revisions)])


def _later(revisions: Mapping[str, Any]) -> Iterator[str]:
    for name in COMPONENTS:
        sealed = revisions[name]
        by_stage = sealed if isinstance(sealed, Mapping) else {"": sealed}
        for stage, revision in by_stage.items():
            if revision != 1:
                yield f"{name}{stage and f' {stage}'} {revision}"
