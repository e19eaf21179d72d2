"""MNIST and its kin: small files in the published format, and the real ones once."""

import hashlib
import multiprocessing
import os
import time
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS, Progress, Split
from raysim.workloads.datasets.fetch import Source, data_root
from raysim.workloads.datasets.mnist import FILES, IdxImages
from tests.workloads.datasets.idx_files import encode_idx

SIZES = {"train": 30, "test": 10}


def arrays(split: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(SIZES[split])
    images = generator.integers(256, size=(SIZES[split], 28, 28), dtype=np.uint8)
    return images, generator.integers(10, size=SIZES[split], dtype=np.uint8)


CONTENTS = {
    name: encode_idx(values)
    for split, names in FILES.items()
    for name, values in zip(names, arrays(split), strict=True)
}


def count_and_leave(work: Path, progress: Progress) -> Path:
    """A source: note that it was asked, beside the data, and leave the files."""
    with (work.parents[2] / "asked").open("a") as log:
        log.write(f"{os.getpid()}\n")
    for name, content in CONTENTS.items():
        (work / name).write_bytes(content)
    return work


class Tiny(IdxImages):
    """Forty images in MNIST's format."""

    folder: ClassVar[str] = "tiny"
    md5s: ClassVar[Mapping[str, str]] = {
        name: hashlib.md5(content, usedforsecurity=False).hexdigest()
        for name, content in CONTENTS.items()
    }
    sources: ClassVar[tuple[Source, ...]] = (Source("made here", count_and_leave),)


class Uneven(Tiny):
    """More labels than images, in files that match their md5s."""

    md5s: ClassVar[Mapping[str, str]] = {
        "train-images-idx3-ubyte": Tiny.md5s["train-images-idx3-ubyte"],
        "train-labels-idx1-ubyte": Tiny.md5s["t10k-labels-idx1-ubyte"],
        "t10k-images-idx3-ubyte": Tiny.md5s["t10k-images-idx3-ubyte"],
        "t10k-labels-idx1-ubyte": Tiny.md5s["t10k-labels-idx1-ubyte"],
    }
    sources: ClassVar[tuple[Source, ...]] = ()


def ignore(what: str, done: int, total: int) -> None:
    pass


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


READY = {".lock", *CONTENTS} | {
    f"prepared/{split}.{kind}" for split in SIZES for kind in ("arrow", "sha256")
}


def test_prepared_splits_hold_the_published_values(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    paths = Tiny().prepare(tmp_path, lambda *step: told.append(step))
    assert set(paths) == {"train", "test"}
    for split, path in paths.items():
        images, labels = arrays(split)
        read = open_split(path)
        assert read.x.shape == (SIZES[split], 1, 28, 28)
        assert read.x.dtype == np.uint8
        assert np.array_equal(read.x[:, 0], images)
        assert read.y.dtype == np.int64
        assert np.array_equal(read.y, labels)
    assert told == [("prepare tiny", done, 2) for done in range(3)]
    assert left_in(tmp_path / "tiny") == READY


def test_prepared_splits_are_mapped_not_copied(tmp_path: Path) -> None:
    path = Tiny().prepare(tmp_path, ignore)["train"]
    before = pa.total_allocated_bytes()
    read = open_split(path)
    assert pa.total_allocated_bytes() == before
    assert not read.x.flags.writeable


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_an_interrupted_preparation_leaves_nothing_half_done(
    tmp_path: Path, stopped_at: int
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done == stopped_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tiny().prepare(tmp_path, interrupt)
    assert (tmp_path / "tiny").exists() == (stopped_at > 0)  # 0 is told before it begins
    if stopped_at > 0:
        assert left_in(tmp_path / "tiny") == {".lock", *CONTENTS}
        assert not (tmp_path / "tiny" / ".work").exists()


def test_prepared_data_is_used_again_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    first = Tiny().prepare(tmp_path, ignore)
    for name in [".lock", *CONTENTS]:
        (tmp_path / "tiny" / name).unlink()
    assert Tiny().prepare(tmp_path, ignore) == first
    assert (tmp_path / "asked").read_text().count("\n") == 1
    assert not (tmp_path / "tiny" / ".lock").exists()


def test_deleted_prepared_files_are_made_again_from_the_store(tmp_path: Path) -> None:
    paths = Tiny().prepare(tmp_path, ignore)
    paths["test"].unlink()
    Tiny().prepare(tmp_path, ignore)
    assert left_in(tmp_path / "tiny") == READY
    assert (tmp_path / "asked").read_text().count("\n") == 1


def test_damaged_prepared_data_is_named(tmp_path: Path) -> None:
    path = Tiny().prepare(tmp_path, ignore)["train"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: prepared data is damaged"):
        Tiny().prepare(tmp_path, ignore)


def test_a_damaged_published_file_leaves_nothing_prepared(tmp_path: Path) -> None:
    damaged = tmp_path / "tiny" / "t10k-labels-idx1-ubyte"
    damaged.parent.mkdir()
    damaged.write_bytes(b"damaged")
    with pytest.raises(DataError, match=f"{damaged}: has md5 .*; delete it to download it again"):
        Tiny().prepare(tmp_path, ignore)
    assert left_in(tmp_path / "tiny") == {".lock", damaged.name}
    damaged.unlink()
    Tiny().prepare(tmp_path, ignore)
    assert left_in(tmp_path / "tiny") == READY


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    work = tmp_path / "tiny" / ".work"
    (work / "prepared").mkdir(parents=True)
    (work / "prepared" / "train.arrow").write_bytes(b"half")
    (work / "source-0").mkdir()
    Tiny().prepare(tmp_path, ignore)
    assert left_in(tmp_path / "tiny") == READY


def test_unequal_numbers_of_images_and_labels_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / "train-labels-idx1-ubyte").write_bytes(CONTENTS["t10k-labels-idx1-ubyte"])
    with pytest.raises(DataError, match="30 images; train-labels-idx1-ubyte holds 10 labels"):
        Uneven().prepare(tmp_path, ignore)
    assert not (folder / "prepared").exists()


def test_a_data_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("")
    with pytest.raises(DataError, match=f"{root / 'tiny'}: cannot be used .*RAYSIM_DATA must"):
        Tiny().prepare(root, ignore)


class Slow(Tiny):
    """Takes a while, so that processes meet."""

    @staticmethod
    def _split(*args: Any) -> Split:
        time.sleep(0.3)
        return Tiny._split(*args)


def prepare_slowly(root: Path, together: Barrier) -> None:
    together.wait(60)
    Slow().prepare(root, ignore)


@pytest.mark.full
def test_processes_that_prepare_at_once_do_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    args = (tmp_path, context.Barrier(2))
    processes = [context.Process(target=prepare_slowly, args=args) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "asked").read_text().count("\n") == 1
    assert left_in(tmp_path / "tiny") == READY


def test_decoding_scales_bytes_to_the_unit_interval() -> None:
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    decoded = Tiny().decode(raw)
    assert decoded.dtype == torch.float32
    assert torch.equal(decoded.flatten(), torch.tensor([0.0, 51 / 255, 1.0]))
    assert raw.flatten().tolist() == [0, 51, 255]


def test_images_are_padded_with_black_before_they_are_normalised() -> None:
    raw = torch.full((2, 1, 28, 28), 51, dtype=torch.uint8)
    plain = Tiny(padded=True).decode(raw)
    assert plain.shape == (2, *Tiny(padded=True).shape) == (2, 1, 32, 32)
    assert torch.equal(plain[:, :, 2:30, 2:30], Tiny().decode(raw))
    assert torch.count_nonzero(plain) == 2 * 28 * 28
    normalised = Tiny(padded=True, normalised=True).decode(raw)
    assert torch.allclose(normalised[:, :, 2:30, 2:30], torch.tensor((0.2 - 0.1307) / 0.3081))
    assert torch.allclose(normalised[:, :, :2], torch.tensor(-0.1307 / 0.3081))
    assert Tiny(normalised=True).decode(raw).shape == (2, *Tiny().shape)


def test_means_and_deviations_may_be_one_s_own() -> None:
    """0.5 and 0.5 take pixels to [-1, 1], as PFLlib does."""
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(1, 1, 28, 3)
    decoded = Tiny(normalised=True, means=(0.5,), deviations=(0.5,)).decode(raw)
    assert torch.allclose(decoded, torch.tensor([-1.0, -0.6, 1.0]))


@pytest.mark.parametrize("pooled_first", [True, False])
def test_pooled_images_are_all_training_images(tmp_path: Path, pooled_first: bool) -> None:
    """Beside them lies what is prepared of the dataset as it was published."""
    order = (True, False) if pooled_first else (False, True)
    paths = {pooled: Tiny(pooled=pooled).prepare(tmp_path, ignore) for pooled in order}
    train, test = (open_split(paths[True][split]) for split in ("train", "test"))
    parts = [arrays(split) for split in SIZES]
    assert np.array_equal(train.x[:][:, 0], np.concatenate([images for images, _ in parts]))
    assert np.array_equal(train.y, np.concatenate([labels for _, labels in parts]))
    assert len(test) == 0 and test.x.shape[1:] == (1, 28, 28)
    assert len(open_split(paths[False]["test"])) == SIZES["test"]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_registered_names(name: str) -> None:
    dataset = DATASETS.get(name)()
    scaling = {"normalised": False, "means": [0.1307], "deviations": [0.3081]}
    assert dataset.settings() == {"name": name, "padded": False, "pooled": False, **scaling}
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == 10


def test_the_real_mnist() -> None:
    paths = DATASETS.get("mnist")().prepare(data_root(), ignore)
    train, test = open_split(paths["train"]), open_split(paths["test"])
    assert train.x.shape == (60_000, 1, 28, 28)
    assert test.x.shape == (10_000, 1, 28, 28)
    assert train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(train.y).tolist() == published
    assert abs(train.x.mean() / 255 - 0.1307) < 1e-4
