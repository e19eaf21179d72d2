"""Settings: frozen, validated, read from presets, files and `dotted.key=value` overrides.

Wrong settings are rejected here, before anything starts, with one line that names the setting, its
value and the allowed range.
"""

from raysim.config.engine import EngineSettings
from raysim.config.evaluation import EvaluationSettings
from raysim.config.local import LocalSettings
from raysim.config.overrides import apply_overrides, parse_override
from raysim.config.run import Settings, parse

__all__ = [
    "EngineSettings",
    "EvaluationSettings",
    "LocalSettings",
    "Settings",
    "apply_overrides",
    "parse",
    "parse_override",
]
