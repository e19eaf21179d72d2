"""Settings, by dotted key, that decide results or may change when a run is resumed."""

from __future__ import annotations

ENGINE = ("deterministic", "precision", "threads_per_actor", "vectorize")
"""Settings of `engine` that change results; the others only place the run on machines."""
FREE = ("on_client_error", "out", "reference", "trace", "tracker")
"""Settings outside `engine` that may change when a run is resumed. `reference` may name another
folder, but with the same model: its digest is sealed."""
DECISIVE = ("on_client_error",)
"""Settings that may change when a run is resumed although they decide its results."""
GROWING = ("rounds",)
"""Settings that `resume` may raise but not lower: a run ends with the same results as if it had had
the new value from the start."""
KEPT = ("analysis", "checkpoint_every", "keep_clients")
"""Settings that change no result but must not change when a run is resumed, since its metrics and
checkpoints depend on them."""


def may_change(key: str) -> bool:
    """Return whether a setting may differ from its recorded value when a run is resumed."""
    group, _, name = key.partition(".")
    return name not in ENGINE if group == "engine" and name else key in FREE


def may_grow(key: str) -> bool:
    """Return whether a setting may be larger than its recorded value when a run is resumed."""
    return key in GROWING


def decides_result(key: str) -> bool:
    """Return whether results depend on a setting."""
    return key in DECISIVE or not (may_change(key) or key in KEPT)
