"""Settings that decide results, and those that may change where a run goes on, by dotted key."""

from __future__ import annotations

ENGINE = ("deterministic", "precision", "threads_per_actor", "vectorize")
"""Settings of `engine` that change a result; the others say where it is computed."""
FREE = ("on_client_error", "out", "reference", "trace", "tracker")
"""Settings besides those that may change: of a reference, its model is sealed."""
KEPT = ("analysis", "checkpoint_every")
"""Settings that change no result, but must stay: tables and checkpoints of the run follow them."""


def may_change(key: str) -> bool:
    """Return whether a setting may differ from the recorded one where a run goes on."""
    group, _, name = key.partition(".")
    return name not in ENGINE if group == "engine" and name else key in FREE


def decides_result(key: str) -> bool:
    """Return whether results depend on a setting."""
    return not may_change(key) and key not in KEPT
