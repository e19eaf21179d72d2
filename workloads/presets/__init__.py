"""Presets: a published experiment each, as a Python value derived from another with `replace`."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.presets import mnist
from workloads.presets.preset import Preset

PRESETS: Mapping[str, Preset] = {**mnist.PRESETS}

__all__ = ["PRESETS", "Preset"]
