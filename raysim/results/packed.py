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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
ABSOLUTE = re.compile(r"(?:(?<![\w./~-])/|(?<=://)/+)(?:[^/\s'\"]+(?:(?<![,;:]) [^/\s'\"]+)*/)+")
"""Folders of an absolute path in a text; words before a slash belong to a folder with spaces."""
MOST_FILES, MOST_BYTES = 100_000, 4 << 30
"""Most files and bytes of an opened archive."""
LEAST_BYTES, MOST_RATIO = 64 << 20, 50
"""Bytes that any archive may open to, and more of it for each of its own bytes."""
LONGEST, DEEPEST = 255, 16
"""Most bytes of a part of a name in an archive, which file systems allow, and most parts."""
UNPORTABLE = '\\:*?"<>|'
"""Characters that names of files of some systems cannot have."""
PIECE = 1 << 20
MOMENT = (1980, 1, 1, 0, 0, 0)
"""Time of all files in an archive, so that equal results are equal bytes."""
PROBLEMS = (BadZipFile, RuntimeError, ValueError, EOFError, OSError, zlib.error)
"""Errors with an archive that is damaged, encrypted, of another kind, or has no room on disk."""


def pack(folder: Path, out: Path) -> list[RunRecord]:
    """Write the results of a run, or of the runs below a folder, into a zip; return the runs.

    Raises:
        RunError: there is no run, one is damaged, or a name is too long or too deep to be opened.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder")
    runs = [read_run(path) for path in sorted(runs_below(folder))]
    if not runs:
        raise RunError(f"{folder}: holds no run")
    files = sorted(_files_of(folder, runs), key=lambda file: file[0])
    _check_names(folder, [name for name, _ in files])
    places = {_portable(folder, run.path): run for run in runs}
    root, held = _portable(folder, folder), dict(files)
    replace_file(out, lambda path: _write(path, held, crate_of(places, held, root)))
    return runs


def _portable(folder: Path, path: Path) -> str:
    """Return the name in an archive of a path in a folder, without UNPORTABLE characters."""
    parts = (folder.resolve().name or "results", *path.relative_to(folder).parts)
    return "/".join(
        "".join(c if c.isprintable() and c not in UNPORTABLE else "-" for c in part)
        for part in parts
    )


def _files_of(folder: Path, runs: Sequence[RunRecord]) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of an archive by name: paths to copy, or contents."""
    grids = [path for name in GRIDS.values() for path in folder.rglob(name) if path.is_file()]
    for path in grids:
        yield _portable(folder, path), _without_paths(path)
    for run in runs:
        place = PurePosixPath(_portable(folder, run.path))
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
    """Return a value with the absolute paths in its texts and keys cut to their last part."""
    if isinstance(value, Mapping):
        return {cut(key): cut(part) for key, part in value.items()}
    if isinstance(value, list):
        return [cut(part) for part in value]
    if not isinstance(value, str):
        return value
    is_path = value.startswith("/") and not re.search(r"\n|: ", value)
    return PurePosixPath(value).name if is_path else ABSOLUTE.sub("", value)


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

    A folder of runs stands for these, and an archive, too: they lie in a temporary folder until the
    body ends. A text names them as the archive does, after its own name if there are several.

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
            place = places.get(path, path)
            is_run = (place / "config.json").is_file()
            found += [place] if is_run else sorted(runs_below(place)) or [place]

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
        # An OSError's text would name the temporary folder.
        said = (isinstance(error, OSError) and error.strerror) or visible(str(error))
        raise RunError(f"{path}: cannot be opened as a zip: {said}") from error


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
    for member in members:
        if problem := _problem_of_kind(member):
            raise RunError(f"{path}: {visible(member.filename)}: {problem}")
    names = [member.filename for member in members]
    _check_names(path, names)
    if not any(PurePosixPath(name).name == "config.json" for name in names):
        raise RunError(f"{path}: holds no run; raysim pack writes an archive of runs")


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Check the names of an archive's files, each alone and together.

    Raises:
        RunError: one is refused.
    """
    files, folders = set[str](), set[str]()
    for name in names:
        alike = name.lower()  # the same file on some systems
        above = {*map(str, PurePosixPath(alike).parents)}
        problem = _problem_of_name(name) or ("is there twice" if alike in files else "")
        if not problem and (alike in folders or not above.isdisjoint(files)):
            problem = "is a file and a folder"
        if problem:
            raise RunError(f"{path}: {visible(name)}: {problem}")
        files.add(alike)
        folders |= above


def _problem_of_kind(member: ZipInfo) -> str:
    """Return why a file of an archive is refused for what it is; "" if it is not."""
    if member.filename != member.orig_filename:  # ended at a NUL
        return "is no name of a file in an archive of results"
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        return "must be a file, no link or device"
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "must be stored or deflated"
    return ""


def _problem_of_name(name: str) -> str:
    """Return why a file of an archive is refused for its name; "" if it is not."""
    parts = name.split("/")
    if len(parts) > DEEPEST or max(len(part.encode()) for part in parts) > LONGEST:
        return f"must have at most {DEEPEST} parts, each of at most {LONGEST} bytes"
    if not {".", "..", ""}.isdisjoint(parts) or "\\" in name or ":" in name:
        return "must be a path within the archive"
    ends = ["/".join(parts[start:]) for start in range(1, len(parts))]
    known = any(OF_RUN.fullmatch(end) or WORDS.fullmatch(end) for end in ends)
    if name == CRATE or known or (len(parts) > 1 and parts[-1] in GRIDS.values()):
        return ""
    return "is no file of results; raysim pack writes an archive of runs"
