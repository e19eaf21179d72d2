"""Plan of a figure: the settings of its runs, and notes about missing and changed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raysim
from raysim.config import Settings
from raysim.core.errors import SettingsError, visible
from raysim.storage.run_directory import RunDirectory
from raysim.tuning.changes import (
    changed_settings,
    check_overrides,
    check_rounds,
    has_words,
    shortened,
)
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.figures import find
from raysim.workloads.papers.figure import Figure, FigureRun

FIXED = dict.fromkeys(("analysis", "reference"), "the figure")
"""Origin of the settings that cannot be changed, by key."""


@dataclass(frozen=True)
class FigurePlan:
    """Figure with the settings of its runs.

    Attributes:
        name: Name of the figure.
        figure: The figure.
        settings: Settings of each chosen run that has its data, by name.
        missing: The files that a chosen run lacks, by its name.
        full_rounds: Full rounds of each run, by name.
        overrides: Given settings of all runs by dotted key.
    """

    name: str
    figure: Figure
    settings: Mapping[str, Settings]
    missing: Mapping[str, str]
    full_rounds: Mapping[str, int]
    overrides: Mapping[str, Any]

    def directory(self, run: str) -> RunDirectory:
        """Return the directory of a run."""
        return RunDirectory(Path(str(self.settings[run].out)))

    def is_finished(self, run: str) -> bool:
        """Return whether a run with these settings is finished."""
        return self.directory(run).holds_finished(self.settings[run])

    def check(self) -> None:
        """Check that a run has its data, and that all runs with data are finished or can start.

        Raises:
            SettingsError: all runs lack data.
            RunError: a run directory holds something else.
        """
        if not self.settings:
            run, missing = next(iter(self.missing.items()))
            raise SettingsError(f"{self.name}: {run} cannot be run: {missing}")
        for run, settings in self.settings.items():
            if not self.is_finished(run):
                self.directory(run).check(settings, own_task=False)

    @property
    def notes(self) -> list[str]:
        """Lines about runs that are left out, shortened or changed by the command's options."""
        longest = max(self.settings, key=lambda run: self.full_rounds[run])
        rounds, full = self.settings[longest].rounds, self.full_rounds[longest]
        lines = [f"Shortened to {rounds} of {full} rounds."] if rounds < full else []
        if self.missing:
            lines.append(f"Left out, without their data: {'; '.join(self.missing)}.")
        return lines + changed_settings(self.overrides)


def make_plan(
    name: str,
    overrides: Mapping[str, Any],
    rounds: int | None,
    folder: Path,
    only: Sequence[str] = (),
) -> FigurePlan:
    """Resolve the settings of a figure's runs.

    Args:
        name: The figure.
        overrides: Settings of all runs by dotted key.
        rounds: Rounds of the longest run, the others in proportion; None keeps them.
        folder: Folder of the run directories; slots, which run elsewhere, get absolute paths.
        only: Words that the names of the runs must have; their references are run, too.

    Raises:
        SettingsError: there is no such figure, an override is wrong, no run is chosen, or `rounds`
            would extend the runs.
    """
    figure = find(name)
    check_overrides("figure", overrides, FIXED)
    chosen = _chosen(name, figure.runs, only)
    folders = {run.name: str(folder.absolute() / run.folder) for run in figure.runs}
    settings, full = {}, {}
    for run in figure.runs:
        preset, own = run.preset or figure.preset, figure.overrides(run)
        placed = {"out": folders[run.name], "reference": folders.get(run.reference)}
        settings[run.name] = raysim.load_config(preset, {**own, **overrides, **placed})
        full[run.name] = settings[run.name].rounds
    if rounds is not None:
        check_rounds(rounds, max(full.values()), f"the longest run of {name}")
        fewer = shortened(full, rounds)
        settings = {k: each.override({"rounds": fewer[k]}) for k, each in settings.items()}
    missing_by_run = {
        k: missing_files(settings[k].dataset, data_root()) for k in settings if k in chosen
    }
    known = {k: settings[k] for k, missing in missing_by_run.items() if not missing}
    missing = {k: missing for k, missing in missing_by_run.items() if missing}
    return FigurePlan(name, figure, known, missing, full, overrides)


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
