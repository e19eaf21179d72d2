"""Plan of a figure: the settings of its runs, and what of them was shortened or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raysim
from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.storage.run_directory import RunDirectory
from raysim.tuning.changes import changed_settings, check_overrides, shortened
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.figures import find
from raysim.workloads.figures.figure import Figure

FIXED = dict.fromkeys(("analysis", "reference"), "the figure")
"""What settles settings that cannot be changed, by key."""


@dataclass(frozen=True)
class FigurePlan:
    """A figure with the settings of its runs.

    Attributes:
        name: Its name.
        figure: The figure.
        settings: Settings of each run, by label.
        full_rounds: Rounds of each run where nothing is shortened, by label.
        overrides: Settings of all runs by dotted key, as they were given.
    """

    name: str
    figure: Figure
    settings: Mapping[str, Settings]
    full_rounds: Mapping[str, int]
    overrides: Mapping[str, Any]

    def directory(self, label: str) -> RunDirectory:
        """Return the directory of a run."""
        return RunDirectory(Path(str(self.settings[label].out)))

    def is_finished(self, label: str) -> bool:
        """Return whether a run with these settings is finished."""
        return self.directory(label).holds_finished(self.settings[label])

    def check(self) -> None:
        """Check that each run has its data, and is finished or can be started or resumed.

        Raises:
            SettingsError: one lacks data.
            RunError: a run directory holds something else.
        """
        for label, settings in self.settings.items():
            if missing := missing_files(settings.dataset, data_root()):
                raise SettingsError(f"{self.name}: {label} cannot be run: {missing}")
            if not self.is_finished(label):
                self.directory(label).check(settings, own_task=False)

    @property
    def notes(self) -> list[str]:
        """Lines about what the command's options shorten and change."""
        longest = max(self.full_rounds, key=lambda label: self.full_rounds[label])
        rounds, full = self.settings[longest].rounds, self.full_rounds[longest]
        found = [f"Shortened to {rounds} of {full} rounds."] if rounds < full else []
        return found + changed_settings(self.overrides)


def make_plan(
    name: str, overrides: Mapping[str, Any], rounds: int | None, folder: Path
) -> FigurePlan:
    """Resolve the settings of a figure's runs.

    Args:
        name: The figure.
        overrides: Settings of all runs by dotted key.
        rounds: Rounds of the longest run, the others in proportion; None leaves them.
        folder: Folder of the run directories; slots run elsewhere, and get absolute paths.

    Raises:
        SettingsError: there is no such figure, or an override is wrong.
    """
    figure = find(name)
    check_overrides("figure", overrides, FIXED)
    folders = {run.label: str(folder.absolute() / run.folder) for run in figure.runs}
    settings, full = {}, {}
    for run in figure.runs:
        preset, own = run.preset or figure.preset, figure.overrides(run)
        placed = {"out": folders[run.label], "reference": folders.get(run.reference)}
        settings[run.label] = raysim.load_config(preset, {**own, **overrides, **placed})
        full[run.label] = settings[run.label].rounds
    if rounds is not None:
        fewer = shortened(full, rounds)
        settings = {k: each.override({"rounds": fewer[k]}) for k, each in settings.items()}
    return FigurePlan(name, figure, settings, full, overrides)
