"""The store: what is there is checked, what is missing is fetched, and nothing wrong is kept."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.errors import DataError
from raysim.samples.data import Progress
from raysim.workloads.datasets.fetch import Source, data_root, obtain

CONTENTS = {"images": b"some images" * 100, "labels": b"labels"}
MD5S = {name: hashlib.md5(c, usedforsecurity=False).hexdigest() for name, c in CONTENTS.items()}


def ignore(what: str, done: int, total: int) -> None:
    pass


def leaves(**files: bytes) -> Callable[[Path, Progress], Path]:
    """Return a source's fetch that leaves these files."""

    def fetch(work: Path, progress: Progress) -> Path:
        for name, content in files.items():
            (work / name.replace("_", ".")).write_bytes(content)
        return work

    return fetch


def fails(work: Path, progress: Progress) -> Path:
    (work / "half").write_bytes(b"half")
    raise DataError("no network")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / ".work").mkdir(parents=True)
    return tmp_path / "data"


def get(folder: Path, *sources: Source) -> dict[str, bytes]:
    return obtain(folder, MD5S, sources, folder / ".work", ignore)


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_files_that_are_there_are_used_plain_or_gzipped(folder: Path) -> None:
    (folder / "images.gz").write_bytes(gzip.compress(CONTENTS["images"]))
    (folder / "labels").write_bytes(CONTENTS["labels"])
    assert get(folder, Source("never asked", fails)) == CONTENTS


def test_missing_files_are_fetched_from_the_first_source_that_has_them(folder: Path) -> None:
    (folder / "labels").write_bytes(CONTENTS["labels"])
    packed = leaves(images_gz=gzip.compress(CONTENTS["images"]), labels=b"not asked for")
    damaged = leaves(images=b"wrong")
    sources = Source("a", fails), Source("b", damaged), Source("c", packed), Source("d", fails)
    assert get(folder, *sources) == CONTENTS
    assert stored(folder) == CONTENTS


def test_sources_complement_each_other(folder: Path) -> None:
    images, labels = ({name: content} for name, content in CONTENTS.items())
    assert get(folder, Source("a", leaves(**images)), Source("b", leaves(**labels))) == CONTENTS
    assert stored(folder) == CONTENTS


@pytest.mark.parametrize("damage", [b"", b"label", b"Labels"])
def test_a_damaged_file_is_named_and_left_alone(folder: Path, damage: bytes) -> None:
    (folder / "labels").write_bytes(damage)
    found = hashlib.md5(damage, usedforsecurity=False).hexdigest()
    md5 = MD5S["labels"]
    expected = f"{folder / 'labels'}: has md5 {found} .*{md5}; delete it to download it again"
    with pytest.raises(DataError, match=expected):
        get(folder, Source("a", leaves(**CONTENTS)))
    assert stored(folder) == {"labels": damage}


@pytest.mark.parametrize("cut", [0, 5, -9, -1])
def test_a_truncated_gzip_is_named(folder: Path, cut: int) -> None:
    (folder / "images.gz").write_bytes(gzip.compress(CONTENTS["images"])[:cut])
    with pytest.raises(DataError, match=r"images\.gz: .*; delete it to download it again"):
        get(folder, Source("a", leaves(**CONTENTS)))


def test_when_all_fail_the_error_says_what_was_tried_and_what_to_do(folder: Path) -> None:
    partial = Source("pip some-data 1", leaves(labels=CONTENTS["labels"]))
    with pytest.raises(DataError) as caught:
        get(folder, Source("torchvision Some", fails), partial)
    message = str(caught.value)
    assert message == (
        f"{folder}: images missing and could not be downloaded (torchvision Some: no network;"
        " pip some-data 1: has no images); put them there, plain or as .gz"
    )
    assert stored(folder) == {"labels": CONTENTS["labels"]}


def test_without_a_source_the_error_says_so(folder: Path) -> None:
    with pytest.raises(DataError, match=r"images, labels missing .*\(no source known\)"):
        get(folder)


def test_the_data_root_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("RAYSIM_DATA", "relative")
    assert data_root() == Path.cwd() / "relative"
    monkeypatch.delenv("RAYSIM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root().is_relative_to(tmp_path)
    assert data_root().name == "raysim"
