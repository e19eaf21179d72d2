"""Usage of slots: the fraction of their time spent in runs."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from raysim.tuning.slots.slot import Slot


@dataclass
class _Stay:
    """Time of a slot on the cluster, from its start to its loss."""

    joined: float
    left: float = float("inf")


class SlotUsage:
    """Time that slots spent in runs."""

    def __init__(self) -> None:
        self._stays: dict[Slot, list[_Stay]] = {}
        self._begun: dict[Slot, float] = {}
        self._spans: list[tuple[float, float]] = []
        self._last_start = self._paused_before = self._paused = 0.0

    def joined(self, slot: Slot) -> None:
        """Record that a slot has started."""
        self._stays.setdefault(slot, []).append(_Stay(perf_counter()))

    def lost(self, slot: Slot) -> None:
        """Record the loss of a slot."""
        self._stays[slot][-1].left = perf_counter()
        if slot in self._begun:
            self.run_ended(slot)

    def run_started(self, slot: Slot) -> None:
        """Record the start of a run, possibly the last run."""
        self._begun[slot] = self._last_start = perf_counter()
        self._paused_before = self._paused

    def run_paused(self, seconds: float) -> None:
        """Record the pause of a run that waited for the pruner."""
        self._paused += seconds

    def run_ended(self, slot: Slot) -> None:
        """Record the end of a slot's run."""
        self._spans.append((self._begun.pop(slot), perf_counter()))

    @property
    def busy(self) -> float | None:
        """Fraction of the slots' time in unpaused runs, until the last run started."""
        if len(self._spans) <= len(self._stays):
            return None
        until = self._last_start
        stays = [stay for stays in self._stays.values() for stay in stays]
        present = sum(max(0.0, min(stay.left, until) - stay.joined) for stay in stays)
        inside = sum(max(0.0, min(ended, until) - begun) for begun, ended in self._spans)
        return (inside - self._paused_before) / present
