"""Plan of a figure: its runs, and notes about missing and changed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import raysim
from raysim.errors import SettingsError, visible
from raysim.tuning.changes import (
    changed_settings,
    check_overrides,
    check_rounds,
    has_words,
    shortened,
)
from raysim.workloads.figures import find
from raysim.workloads.papers.figure import Figure, FigureRun
from raysim.workloads.papers.run import Run

FIXED = dict.fromkeys(("analysis", "reference"), "the figure")
"""Origin of the settings that cannot be changed, by key."""


@dataclass(frozen=True)
class FigurePlan:
    """Figure with its runs.

    Attributes:
        name: Name of the figure.
        figure: The figure.
        known: All runs of the figure, by label.
        runs: The chosen runs that have their data, by label; references stand first.
        missing: The files that a chosen run lacks, by its label.
        full_rounds: Full rounds of each run, by label.
        overrides: Given settings of all runs by dotted key.
    """

    name: str
    figure: Figure
    known: Mapping[str, Run]
    runs: Mapping[str, Run]
    missing: Mapping[str, str]
    full_rounds: Mapping[str, int]
    overrides: Mapping[str, Any]

    def check_data(self) -> None:
        """Check that a run has its data.

        Raises:
            SettingsError: all runs lack data.
        """
        if not self.runs:
            run, missing = next(iter(self.missing.items()))
            raise SettingsError(f"{self.name}: {run} cannot be run: {missing}")

    @property
    def notes(self) -> list[str]:
        """Lines about runs that are left out, shortened or changed by the command's options."""
        longest = max(self.runs, key=lambda run: self.full_rounds[run])
        rounds, full = self.runs[longest].settings.rounds, self.full_rounds[longest]
        lines = [f"Shortened to {rounds} of {full} rounds."] if rounds < full else []
        if self.missing:
            lines.append(f"Left out, without their data: {'; '.join(self.missing)}.")
        return lines + changed_settings(self.overrides)


def make_plan(
    name: str, overrides: Mapping[str, Any], rounds: int | None, only: Sequence[str] = ()
) -> FigurePlan:
    """Resolve the settings of a figure's runs.

    Args:
        name: The figure.
        overrides: Settings of all runs by dotted key.
        rounds: Rounds of the longest run, the others in proportion; None keeps them.
        only: Words that the names of the runs must have; their references are run, too.

    Raises:
        SettingsError: there is no such figure, an override is wrong, no run is chosen, or `rounds`
            would extend the runs.
    """
    figure = find(name)
    check_overrides("figure", overrides, FIXED)
    chosen = _chosen(name, figure.runs, only)
    settings, full = {}, {}
    for run in figure.runs:
        preset = run.preset or figure.preset
        settings[run.name] = raysim.load_config(preset, {**figure.overrides(run), **overrides})
        full[run.name] = settings[run.name].rounds
    if rounds is not None:
        check_rounds(rounds, max(full.values()), f"the longest run of {name}")
        fewer = shortened(full, rounds)
        settings = {
            k: run_settings.override({"rounds": fewer[k]}) for k, run_settings in settings.items()
        }
    known: dict[str, Run] = {}
    for run in figure.runs:
        known[run.name] = Run.of(run.name, settings[run.name], known.get(run.reference))
    missing_by_run = {label: run.missing for label, run in known.items() if label in chosen}
    runs = {label: known[label] for label, missing in missing_by_run.items() if not missing}
    missing = {label: missing for label, missing in missing_by_run.items() if missing}
    return FigurePlan(name, figure, known, runs, missing, full, overrides)


def _chosen(figure: str, runs: Sequence[FigureRun], only: Sequence[str]) -> set[str]:
    """Return the names of the chosen runs and of their references.

    Raises:
        SettingsError: no run is chosen.
    """
    chosen = [run for run in runs if run.drawn and has_words(only, run.name)]
    if not chosen:
        names = "; ".join(run.name for run in runs if run.drawn)
        raise SettingsError(
            f"--only={visible(','.join(only))}: no run of {figure} has all these words in its name:"
            f" {names}"
        )
    return {name for run in chosen for name in (run.name, run.reference)}
