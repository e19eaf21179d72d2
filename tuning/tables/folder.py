"""Folder of a table: its runs, the lock, and the seal of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysim.config import Settings
from raysim.core.errors import RunError
from raysim.core.user_input import parse_json
from raysim.results.failures import read_failure
from raysim.results.runs import infinite_loss
from raysim.storage.atomic import sweep, write_json
from raysim.storage.lock import lock_folder
from raysim.storage.plugins import sources_of
from raysim.storage.run_directory import RunDirectory, difference_from
from raysim.storage.schema import GRIDS, SCHEMA, check_claim, check_schema
from raysim.tuning.slots.queue import reference_failed
from raysim.tuning.tables.cells import PlannedCell, PlannedRun
from raysim.tuning.tables.plan import TablePlan


class TableFolder:
    """Folder of one table; `table.json` seals settings, seeds and runs of its cells.

    Attributes:
        path: The folder.
        seeds: Number of seeds of each sealed cell's run by its name, once the folder is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seeds: dict[str, int] = {}
        self._seal: dict[str, Any] = {}
        self._about = path / GRIDS["table"]

    def path_of(self, run: PlannedRun, seed: int) -> Path:
        """Return the run directory of a seed as an absolute path, since slots run elsewhere."""
        return self.path.absolute() / "runs" / run.name / f"seed-{seed}"

    def settings(self, run: PlannedRun, seed: int) -> Settings:
        """Return the settings of a run."""
        update = {"seed": seed, "out": str(self.path_of(run, seed))}
        if run.reference:
            update["reference"] = str(self.path_of(run.reference, seed))
        return run.settings.model_copy(update=update)

    def is_finished(self, run: PlannedRun, seed: int) -> bool:
        """Return whether a run is finished; the folder may have been moved since.

        Raises:
            RunError: the run is finished with other settings or another formula.
        """
        directory, settings = RunDirectory(self.path_of(run, seed)), self.settings(run, seed)
        if not directory.is_finished(settings.target_accuracy, settings.rounds):
            return False
        difference = difference_from(directory.read_config()[0], settings)
        if difference := difference or directory.other_revision(settings):
            raise RunError(
                f"{directory.path}: holds a finished run with {difference}; restore it, or delete"
                " it to run it again"
            )
        return True

    def failure(self, run: PlannedRun, seed: int) -> str | None:
        """Return the error of a run that failed or diverged itself, or by its reference."""
        if (error := self.own_failure(run, seed)) is not None:
            return error
        if not (reference := run.reference) or self.is_finished(run, seed):
            return None
        error = self.failure(reference, seed)
        return None if error is None else reference_failed(reference.label_of(seed), error)

    def own_failure(self, run: PlannedRun, seed: int) -> str | None:
        """Return the error of a run that failed or diverged; None if it was not started.

        None also if it failed with another formula, or another source of a user's own module.
        """
        path = self.path_of(run, seed)
        if self.is_finished(run, seed):  # perhaps resumed after its failure
            return infinite_loss(path)
        recorded = read_failure(path)
        if recorded is None or recorded.formula not in (None, self._formula(run, seed)):
            return None
        return recorded.error

    def record_failure(self, run: PlannedRun, seed: int, error: str) -> None:
        """Record the error of a run."""
        about = {"schema": SCHEMA, "error": error, "formula": self._formula(run, seed)}
        write_json(RunDirectory(self.path_of(run, seed)).failed, about)

    def _formula(self, run: PlannedRun, seed: int) -> dict[str, Any]:
        """Return the revision of a run's method, and digests of the user's own modules."""
        sources = sources_of(run.settings.to_dict(), self.path_of(run, seed))
        return {"revision": run.settings.method.revision, "sources": sources}

    def clear_failure(self, run: PlannedRun, seed: int) -> None:
        """Delete the failure record of a run that is repeated."""
        RunDirectory(self.path_of(run, seed)).failed.unlink(missing_ok=True)

    def check(self, plan: TablePlan) -> dict[str, Any]:
        """Check that the folder is new or this table's, and return its sealed cells by name.

        Raises:
            RunError: the folder holds another table, a figure or a study, or runs with other
                settings.
        """
        check_claim(self.path, "table", plan.table.name)
        recorded = self._read()
        sealed = dict(recorded["cells"]) if recorded else {}
        known = {cell.name for cell in plan.cells}
        if plan.table.paper and (others := sealed.keys() - known):
            raise RunError(
                f"out={self.path}: {min(others)}: has runs, which do not allow the settings"
                " here; choose another --out"
            )
        for cell in plan.cells:
            if cell.name in sealed:
                self._check(cell, sealed[cell.name]["settings"])
        return sealed

    @contextmanager
    def lock(self, plan: TablePlan) -> Iterator[None]:
        """Lock the folder for this process, and prepare its seal, which `seal` writes.

        Raises:
            RunError: another process holds the lock, or `check` refuses the folder.
        """
        with lock_folder(self.path, "another raysim table is using this folder"):
            sweep(self.path)
            sealed = self.check(plan)
            for cell in plan.chosen:
                known = sealed.get(cell.name, {"seeds": 0})
                sealed[cell.name] = {
                    "run": cell.run.name,
                    "seeds": max(plan.seeds, known["seeds"]),
                    "settings": cell.run.settings.to_dict(),
                }
            self._seal = {"schema": SCHEMA, "table": plan.table.name, "cells": sealed}
            self.seeds = _seeds(plan, sealed)
            yield

    def seal(self) -> None:
        """Write the seal of a locked folder, with the chosen cells and seeds."""
        if self._read() != self._seal:
            write_json(self._about, self._seal)

    def _check(self, cell: PlannedCell, sealed: Mapping[str, Any]) -> None:
        if difference := difference_from(sealed, cell.run.settings):
            raise RunError(
                f"out={self.path}: {cell.label}: has runs with {difference}; choose another --out"
            )

    def _read(self) -> dict[str, Any] | None:
        """Return the content of `table.json`; None without a table."""
        if not self._about.exists():
            return None
        try:
            recorded: dict[str, Any] = dict(parse_json(self._about.read_text(encoding="utf-8")))
            check_schema(self._about, recorded)
            str(recorded["table"])
            for about in recorded["cells"].values():
                int(about["seeds"])
                dict(about["settings"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{self._about}: damaged file: {error}; restore it") from error
        return recorded


def _seeds(plan: TablePlan, sealed: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of seeds of sealed cells by name, the most of cells that share a run."""
    cells = [cell for cell in plan.cells if cell.name in sealed]
    seeds: dict[PlannedRun, int] = {}
    for cell in cells:
        seeds[cell.run] = max(seeds.get(cell.run, 0), sealed[cell.name]["seeds"])
    return {cell.name: seeds[cell.run] for cell in cells}
