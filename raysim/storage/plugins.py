"""Plugins: a user's own modules named in settings, and seals of their source in a run directory.

A resumed run imports a plugin only if its source is unchanged since the start of the run, so that a
run directory from someone else cannot name code to execute, and the bits stay the same. The check
executes no code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from raysim.api.optimizer import OPTIMIZER
from raysim.api.own_loop import OWN_LOOP
from raysim.errors import RunError
from raysim.storage.atomic import discard_folder, write_json
from raysim.storage.checkpoints import Checkpoints
from raysim.user_input import parse_json, resume_advice
from raysim.user_input.run_folders import run_directory_of
from raysim.user_input.user_modules import OWN, TARGET, is_outdated, sources, spec_of

NAMING = ("name", "ranks", OPTIMIZER, OWN_LOOP)
"""Settings with values that may be such a target."""
SEALS = "plugins.json"


class Plugins:
    """Sources of the plugins of one run directory, sealed when the run starts.

    `plugins.json` has the digests of each module at the start of the run and at each forced
    continuation.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._file = run_dir / SEALS

    def check(self, settings: Mapping[str, Any], force: bool = False) -> None:
        """Check the sources of all plugins before one is imported.

        Args:
            settings: The run's settings as plain values.
            force: Whether sources may differ from the sealed ones.

        Raises:
            RunError: a source is missing, lies in a run directory, or has changed.
        """
        sealed = self._sealed()
        advice = resume_advice(self._run_dir, own_task=bool(settings.get("own_task")), force=True)
        for module, digest in sources_of(settings, self._run_dir).items():
            if not force and [digest] != sealed.get(module, [])[-1:]:
                raise RunError(self._refusal(module, advice, known=bool(sealed.get(module))))

    def _refusal(self, module: str, advice: str, known: bool) -> str:
        """Return why a module is not imported, with advice to force for the run's own modules."""
        file = sources(module)[module]
        if known and (self._run_dir / "summary.json").exists():
            return (
                f"{module}: its source has changed since the start of {self._run_dir}, a finished"
                f" run; for a run with the present one, {file}, choose another `out`"
            )
        if known:
            return (
                f"{module}: its source has changed since the start of the run; to continue with the"
                f" present one, {file}, {advice}"
            )
        return (
            f"{module}: {self._file} does not say that the run was started with this module; the"
            f" settings in a run directory from someone else may name any. Read {file}, which is"
            f" executed if you {advice}"
        )

    def check_recorded(self, force: bool) -> None:
        """Check the plugins of the recorded settings, if there are any.

        Args:
            force: Whether sources may differ from the sealed ones.

        Raises:
            RunError: see `check`.
        """
        settings = Checkpoints(self._run_dir / "checkpoints").words().get("config")
        if settings is None:
            try:
                settings = parse_json((self._run_dir / "config.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return  # the error comes when the settings are read
        if isinstance(settings, dict):
            self.check(settings, force)

    def seal(self, settings: Mapping[str, Any]) -> None:
        """Write the digests of the plugins' sources.

        Raises:
            RunError: a source is missing, lies in a run directory, or has changed since its import.
        """
        before = sealed = self._sealed()
        for module, digest in sources_of(settings, self._run_dir).items():
            if is_outdated(module):
                raise RunError(
                    f"{module}: its source has changed since the settings were loaded; to run the"
                    " present one, load them again"
                )
            digests = sealed.get(module, [])
            if digests[-1:] != [digest]:
                sealed = {**sealed, module: [*digests, digest]}
        if self._file.is_dir():
            discard_folder(self._file)
        if sealed != before:
            write_json(self._file, sealed)

    def sources(self) -> dict[str, str]:
        """Return the last sealed digest of each module's source."""
        return {module: digests[-1] for module, digests in self._sealed().items() if digests}

    def _sealed(self) -> dict[str, list[str]]:
        """Return the digests of each module; empty if the file is missing or damaged."""
        try:
            digests_of = parse_json(self._file.read_text(encoding="utf-8"))
            return {str(module): [*map(str, digests)] for module, digests in digests_of.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}


def modules_of(settings: Any) -> set[str]:
    """Return the modules that settings name, as a value of one of `NAMING`, or as a key."""
    if not isinstance(settings, Mapping):
        return set()
    names = {*map(str, settings), *(str(settings.get(key)) for key in NAMING)}
    modules = {match[1] for match in map(TARGET.fullmatch, names) if match}
    modules = {module for module in modules if module.partition(".")[0] not in OWN}
    return modules.union(*map(modules_of, settings.values()))


def check_places(settings: Mapping[str, Any]) -> None:
    """Check that no module named in settings lies in a run directory, before an import.

    Raises:
        RunError: a source lies in a run directory, or a module has no source.
    """
    for module in sorted(modules_of(settings)):
        if module.partition(".")[0] not in sys.stdlib_module_names and spec_of(module):
            _sources(module)


def sources_of(settings: Mapping[str, Any], run_dir: Path) -> dict[str, str]:
    """Return the digest of the source of each module named in settings; see `source_digest`."""
    return {module: source_digest(module, run_dir) for module in sorted(modules_of(settings))}


def source_digest(module: str, run_dir: Path) -> str:
    """Return a digest of a module's source, and of the sources next to it that it imports.

    Beside it are the modules of its packages and, if it is not installed, of its folder.

    Args:
        module: The module.
        run_dir: The run directory, which may have no files yet.

    Raises:
        RunError: there is no source, or one lies in a run directory.
    """
    files = _sources(module, run_dir)
    digest = sha256()
    for name in sorted(files):
        digest.update(sha256(name.encode() + b"\0" + files[name].read_bytes()).digest())
    return digest.hexdigest()


def _sources(module: str, run_dir: Path | None = None) -> dict[str, Path]:
    """Return the source files of a module and of the modules next to it that it imports.

    Raises:
        RunError: there is no source, or one lies in a run directory.
    """
    if spec_of(module) is None:
        raise RunError(
            f"{module}: there is no such module; one that lies in a run directory is not found"
        )
    files = sources(module)
    if module not in files:
        raise RunError(f"{module}: has no Python source")
    for name in sorted(files):
        if run := _run_directory(files[name], run_dir):
            raise RunError(
                f"{module}: {files[name]} lies in the run directory {run}, and code there is not"
                " executed; move it elsewhere"
            )
    return files


def _run_directory(path: Path, run_dir: Path | None) -> Path | None:
    """Return the run directory that contains a file, this or another, or None."""
    if run_dir and run_dir.resolve() in {*path.absolute().parents, *path.resolve().parents}:
        return run_dir.resolve()
    return run_directory_of(path)
