"""Results of runs in one zip, for another person: written here, opened as a run directory is.

An archive holds the records of runs, not their checkpoints, models and states: settings, rounds,
clients, analyses, and the words of the newest checkpoint, which say what data and code a run had.
Absolute paths are cut to their last part. An archive from anybody is opened without trust: its
names, kinds and sizes are checked before a byte is written, and only files of results are taken.
"""

from __future__ import annotations

import json
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from raysim.errors import RaysimError, RunError, visible
from raysim.results.crate import CRATE, crate_of
from raysim.results.runs import RunRecord, read_run
from raysim.storage.atomic import replace_file
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.schema import GRIDS
from raysim.storage.sealed.words import ABOUT, write_sealed
from raysim.user_input import parse_json
from raysim.user_input.run_folders import runs_below

ENDING = ".zip"
OF_RUN = re.compile(
    r"(config|environment|summary|failed|plugins)\.json|(metrics|client_accuracy)\.parquet"
    r"|partition\.arrow|clients\.parquet/[\w-]+\.parquet|analysis/\w+\.parquet(/[\w-]+\.parquet)?"
)
"""Files of a run in an archive, in addition to the words of a checkpoint."""
WORDS = re.compile(rf"checkpoints/round_\d{{6,10}}/{re.escape(ABOUT)}")
ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[^/\s'\"]+/)+")
"""Folders of an absolute path in a text."""
MOST_FILES, MOST_BYTES = 100_000, 4 << 30
"""Most files and bytes of an opened archive."""
LEAST_BYTES, MOST_RATIO = 64 << 20, 50
"""Bytes that any archive may open to, and more of it for each of its own bytes."""
LONGEST, DEEPEST = 255, 16
"""Most characters and parts of a name in an archive."""
PIECE = 1 << 20
MOMENT = (1980, 1, 1, 0, 0, 0)
"""Time of all files in an archive, so that equal results are equal bytes."""
PROBLEMS = (BadZipFile, RuntimeError, NotImplementedError, ValueError, EOFError, zlib.error)
"""Errors of `zipfile` with an archive that is damaged, encrypted or of another kind."""


def pack(folder: Path, out: Path) -> list[RunRecord]:
    """Write the results of a run, or of the runs below a folder, into a zip; return the runs.

    Raises:
        RunError: there is no run, or one is damaged.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder")
    runs = [read_run(path) for path in sorted(runs_below(folder))]
    if not runs:
        raise RunError(f"{folder}: holds no run")
    root = folder.resolve().name or "results"
    files = dict(sorted(_files_of(folder, runs, root)))
    replace_file(out, lambda path: _write(path, files, crate_of(runs, files, root)))
    return runs


def _files_of(
    folder: Path, runs: Sequence[RunRecord], root: str
) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of an archive by name: paths to copy, or contents."""
    grids = [path for name in GRIDS.values() for path in folder.rglob(name) if path.is_file()]
    for path in grids:
        yield f"{root}/{path.relative_to(folder).as_posix()}", _without_paths(path)
    for run in runs:
        place = PurePosixPath(root, run.path.relative_to(folder).as_posix())
        for path in run.path.rglob("*"):
            name = path.relative_to(run.path).as_posix()
            if path.is_file() and OF_RUN.fullmatch(name):
                is_json = path.suffix == ".json"
                yield str(place / name), _without_paths(path) if is_json else path
        if newest := Checkpoints(run.path / "checkpoints").newest():
            checkpoint, words = newest
            with TemporaryDirectory() as aside:  # sealed again, as they are without paths
                write_sealed(Path(aside), cut(words))
                content = Path(aside, ABOUT).read_bytes()
            yield str(place / "checkpoints" / checkpoint.name / ABOUT), content


def _without_paths(path: Path) -> bytes:
    """Return the content of a JSON file without absolute paths.

    Raises:
        RunError: it is damaged.
    """
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: is damaged: {error}") from error
    return json.dumps(cut(values), indent=2).encode()


def cut(value: Any) -> Any:
    """Return a value with the absolute paths in its texts cut to their last part."""
    if isinstance(value, Mapping):
        return {key: cut(part) for key, part in value.items()}
    if isinstance(value, list):
        return [cut(part) for part in value]
    return ABSOLUTE.sub("", value) if isinstance(value, str) else value


def _write(out: Path, files: Mapping[str, Path | bytes], crate: Mapping[str, Any]) -> None:
    """Write an archive; tables are compressed already."""
    described = {CRATE: json.dumps(crate, indent=2).encode(), **files}
    with ZipFile(out, "w") as archive:
        for name, source in described.items():
            member = ZipInfo(name, MOMENT)
            member.compress_type = ZIP_DEFLATED if name.endswith(".json") else ZIP_STORED
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            content = source if isinstance(source, bytes) else source.read_bytes()
            archive.writestr(member, content)


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[tuple[list[Path], Callable[[str], str]]]:
    """Yield the run directories that paths name, and a function that shows a text about them.

    An archive stands for its runs, which lie in a temporary folder until the body ends. A text
    names them as the archive does, after its own name if there are several.

    Raises:
        RunError: an archive is damaged, too large or no archive of results.
    """
    archives = [path for path in paths if path.suffix == ENDING and not path.is_dir()]
    with TemporaryDirectory(prefix="raysim-") as temporary:
        places = {path: Path(temporary, str(n)) for n, path in enumerate(archives)}
        found: list[Path] = []
        for path in paths:
            if path in places and not places[path].exists():
                unpack(path, places[path])
            found += sorted(runs_below(places[path])) if path in places else [path]

        def shown(text: str) -> str:
            for path, place in places.items():
                text = text.replace(f"{place}/", "" if len(places) == 1 else f"{path}/")
            return text

        try:
            yield found, shown
        except RaysimError as error:
            raise type(error)(shown(str(error))) from error


def unpack(path: Path, folder: Path) -> None:
    """Write the files of an archive of results into a new folder.

    Raises:
        RunError: the archive is damaged, too large, or holds anything else.
    """
    if not path.is_file():
        raise RunError(f"{path}: there is no such file")
    try:
        with ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check(path, members)
            for member in members:
                place = folder / member.filename
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("xb") as target:
                    while piece := source.read(PIECE):
                        target.write(piece)
    except PROBLEMS as error:
        raise RunError(f"{path}: cannot be opened as a zip: {visible(str(error))}") from error


def _check(path: Path, members: Sequence[ZipInfo]) -> None:
    """Check the names, kinds and sizes of an archive's files before they are written.

    Raises:
        RunError: one is refused.
    """
    allowed = min(MOST_BYTES, LEAST_BYTES + MOST_RATIO * path.stat().st_size)
    size = sum(member.file_size for member in members)
    if len(members) > MOST_FILES or size > allowed:
        raise RunError(
            f"{path}: {len(members)} files of {size} bytes: must be at most {MOST_FILES} files of"
            f" {allowed} bytes for an archive of its size"
        )
    names: set[str] = set()
    for member in members:
        name = member.filename
        if problem := _problem(member) or ("is there twice" if name.lower() in names else ""):
            raise RunError(f"{path}: {visible(name)}: {problem}")
        names.add(name.lower())
    if not any(PurePosixPath(name).name == "config.json" for name in names):
        raise RunError(f"{path}: holds no run; raysim pack writes an archive of runs")


def _problem(member: ZipInfo) -> str:
    """Return why a file of an archive is refused; "" if it is not."""
    name = member.filename
    parts = name.split("/")
    kind = stat.S_IFMT(member.external_attr >> 16)
    # The name as it is stored: `filename` ends at a NUL.
    if name != member.orig_filename or len(name) > LONGEST or len(parts) > DEEPEST:
        return "is no name of a file in an archive of results"
    if not {".", "..", ""}.isdisjoint(parts) or "\\" in name or ":" in name:
        return "must be a path within the archive"
    if kind not in (0, stat.S_IFREG):
        return "must be a file, no link or device"
    ends = ["/".join(parts[start:]) for start in range(1, len(parts))]
    known = any(OF_RUN.fullmatch(end) or WORDS.fullmatch(end) for end in ends)
    if name == CRATE or known or (len(parts) > 1 and parts[-1] in GRIDS.values()):
        return ""
    return "is no file of results; raysim pack writes an archive of runs"
