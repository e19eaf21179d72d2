"""Revisions of a run's components: another gives other bits under the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysim.config import Settings

FORMULA = "revision of the method's formula"
CLOCK, SELECTION = "revision of the clock", "revision of the selection"
AGGREGATION, OPTIMIZER = "revision of the aggregation", "revision of the optimizer"
TEMPERATURE, ATTACK = "revision of the temperature", "revision of the attack"
SERVER = "revision of the server's rule"
STAGES, DOWN_STAGES = "revisions of the channel's stages", "revisions of the down-link's stages"
COMPONENTS = {
    SELECTION: "selection.",
    AGGREGATION: "aggregation.",
    CLOCK: "clock.",
    OPTIMIZER: "local.",
    TEMPERATURE: "temperature.",
    ATTACK: "attack.",
    SERVER: "server.",
    STAGES: "channel.",
    DOWN_STAGES: "downlink.",
}
"""How the settings of each begin, beside the method's."""


def revisions_of(settings: Settings) -> dict[str, Any]:
    """Return the present revisions of the components that settings name."""
    return {
        FORMULA: settings.method.revision,
        CLOCK: settings.clock.revision,
        SELECTION: settings.selection.revision,
        AGGREGATION: settings.aggregation.revision,
        OPTIMIZER: settings.local.build_optimizer().revision,
        TEMPERATURE: settings.temperature.revision,
        ATTACK: settings.attack.revision,
        SERVER: settings.server_rule.revision,
        STAGES: {name: stage.revision for name, stage in settings.channel.items()},
        DOWN_STAGES: {name: stage.revision for name, stage in settings.downlink.items()},
    }


def sealed_revisions(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the revisions in the identity of a checkpoint."""
    return {name: identity[name] for name in (FORMULA, *COMPONENTS)}


def in_words(revisions: Mapping[str, Any]) -> str:
    """Return the revision of the method's formula, and others that are not the first."""
    return ", ".join([str(revisions[FORMULA]), *_later(revisions)])


def _later(revisions: Mapping[str, Any]) -> Iterator[str]:
    for name in COMPONENTS:
        found = revisions[name]
        each = found if isinstance(found, Mapping) else {"": found}
        for stage, revision in each.items():
            if revision != 1:
                yield f"{name}{stage and f' {stage}'} {revision}"
