"""Folder of runs: their directories, named by their settings, its lock, and its index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raysim.config import Settings, apply_overrides
from raysim.errors import RunError
from raysim.results.failures import is_divergence, read_failure
from raysim.results.runs import infinite_loss
from raysim.storage.atomic import sweep, write_json
from raysim.storage.lock import lock_folder
from raysim.storage.plugins import sources_of
from raysim.storage.revisions import revisions_of
from raysim.storage.run_directory import RunDirectory, difference_from
from raysim.storage.schema import GRIDS, SCHEMA, check_claim, check_schema
from raysim.user_input import dotted, parse_json
from raysim.workloads.papers.run import Run


class RunsFolder:
    """Folder of the runs of one table, sweep or figure.

    Its index, `table.json` or `figure.json`, has the digest of each run by its label: a cell, or a
    curve. Runs with other settings under a label are refused, except other rounds, which every
    output states: a folder may hold a shortened table and the full one, and shows the last.

    Attributes:
        path: The folder.
        index: Digests by label, once runs are entered.
    """

    def __init__(self, path: Path, kind: str, name: str) -> None:
        """Set the folder.

        Args:
            path: The folder.
            kind: "table" or "figure".
            name: Name of the table or the figure.
        """
        self.path, self.index = path, dict[str, str]()
        self._kind, self._name, self._about = kind, name, path / GRIDS[kind]
        self._finished = set[Run]()

    def path_of(self, run: Run) -> Path:
        """Return a run's directory as an absolute path, since slots run elsewhere."""
        return self._runs(run.digest) / f"seed-{run.seed}"

    def _runs(self, digest: str) -> Path:
        return self.path.absolute() / "runs" / digest

    def settings(self, run: Run) -> Settings:
        """Return the settings of a run in this folder."""
        update = {"out": str(self.path_of(run))}
        if run.reference:
            update["reference"] = str(self.path_of(run.reference))
        return run.settings.model_copy(update=update)

    def has_begun(self, run: Run) -> bool:
        """Return whether a run has a directory."""
        return self.path_of(run).is_dir()

    def is_finished(self, run: Run) -> bool:
        """Return whether a run is finished; the folder may have been moved since.

        A finished run is read once, as it stays finished.

        Raises:
            RunError: the run is finished with other settings or another formula.
        """
        if run in self._finished:
            return True
        directory, settings = RunDirectory(self.path_of(run)), self.settings(run)
        if not directory.is_finished(settings.target_accuracy, settings.rounds):
            return False
        difference = difference_from(directory.read_config()[0], settings)
        if difference := difference or directory.other_revision(settings):
            raise RunError(
                f"{directory.path}: holds a finished run with {difference}; restore it, or delete"
                " it to run it again"
            )
        self._finished.add(run)
        return True

    def has_ended(self, run: Run) -> bool:
        """Return whether a run is finished or has diverged, and would diverge again."""
        return is_divergence(self.failure(run) or "") or self.is_finished(run)

    def failure(self, run: Run) -> str | None:
        """Return the error of a run that failed or diverged itself, or by its reference."""
        if (error := self.own_failure(run)) is not None:
            return error
        if run.reference is None or self.is_finished(run):
            return None
        error = self.failure(run.reference)
        return None if error is None else reference_failed(run.reference, error)

    def own_failure(self, run: Run) -> str | None:
        """Return the error of a run that failed or diverged; None if it was not started.

        None also if it failed with another formula, or another source of a user's own module.
        """
        path = self.path_of(run)
        if self.is_finished(run):  # perhaps resumed after its failure
            return infinite_loss(path)
        recorded = read_failure(path)
        if recorded is None or recorded.formula not in (None, self._formula(run)):
            return None
        return recorded.error

    def record_failure(self, run: Run, error: str) -> None:
        """Record the error of a run."""
        about = {"schema": SCHEMA, "error": error, "formula": self._formula(run)}
        write_json(RunDirectory(self.path_of(run)).failed, about)

    def clear_failure(self, run: Run) -> None:
        """Delete the failure record of a run that is repeated."""
        RunDirectory(self.path_of(run)).failed.unlink(missing_ok=True)

    def _formula(self, run: Run) -> dict[str, Any]:
        """Return the revisions of a run's components, and digests of the user's own modules."""
        sources = sources_of(run.settings.to_dict(), self.path_of(run))
        return {"revisions": revisions_of(run.settings), "sources": sources}

    def check(self, runs: Mapping[str, Run], free: Collection[str] = ()) -> dict[str, str]:
        """Check that the folder is new or has runs with these settings, and return its index.

        Args:
            runs: A run by each label, of any seed.
            free: Settings that may differ, as they were searched.

        Raises:
            RunError: the folder holds another table, a figure or a study, or runs with other
                settings.
        """
        check_claim(self.path, self._kind, self._name)
        index = self._read()
        for label, run in runs.items():
            digest = index.get(label, run.digest)
            if digest != run.digest and (difference := self._difference(digest, run, free)):
                raise RunError(
                    f"out={self.path}: {label}: has runs with {difference}; choose another --out"
                )
        return index

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process.

        Raises:
            RunError: another process holds the lock, or the folder holds other runs.
        """
        with lock_folder(self.path, f"another raysim {self._kind} is using this folder"):
            sweep(self.path)
            self.check({})
            check_folders(self.path / name for name in ("runs", "tuning"))
            yield

    def enter(
        self, runs: Mapping[str, Run], chosen: Collection[str], free: Collection[str] = ()
    ) -> None:
        """Enter runs into the index of a locked folder, which `seal` writes.

        Args:
            runs: A run by each label, of any seed.
            chosen: The labels of the runs to execute.
            free: Settings that may differ, as they were searched.

        Raises:
            RunError: `check` refuses them.
        """
        self.index = self.check(runs, free) | {label: runs[label].digest for label in chosen}

    def seal(self) -> None:
        """Write the index of a locked folder."""
        if self._read() != self.index:
            about = {"schema": SCHEMA, self._kind: self._name, "runs": self.index}
            write_json(self._about, about)

    def _difference(self, digest: str, run: Run, free: Collection[str]) -> str | None:
        """Return a setting that differs between a run and the digest's runs; None without any."""
        run_settings = dotted(run.settings.to_dict())
        equal = {key: run_settings[key] for key in ("seed", "rounds", *free) if key in run_settings}
        for path in sorted(self._runs(digest).glob("seed-*")):
            with suppress(RunError):  # it failed before it began
                recorded = RunDirectory(path).read_config()[0]
                return difference_from(apply_overrides(recorded, equal), run.settings)
        return None

    def _read(self) -> dict[str, str]:
        """Return the index; empty in a new folder.

        Raises:
            RunError: it is damaged.
        """
        if not self._about.exists():
            return {}
        try:
            recorded = dict(parse_json(self._about.read_text(encoding="utf-8")))
            check_schema(self._about, recorded)
            str(recorded[self._kind])
            return {str(label): str(digest) for label, digest in dict(recorded["runs"]).items()}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise RunError(
                f"{self._about}: is damaged ({error}); restore it, or choose another --out"
            ) from error


def check_folders(paths: Iterable[Path]) -> None:
    """Check that nothing lies in the place of folders.

    Raises:
        RunError: something does.
    """
    for path in paths:
        if (path.is_symlink() or path.exists()) and not path.is_dir():
            raise RunError(f"{path}: must be a folder; move this file away")


def reference_failed(reference: Run, error: str) -> str:
    """Return the error of a run after its reference failed."""
    return f"its reference {reference.title} failed: {error}"
