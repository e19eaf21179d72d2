"""Image files: what is decoded, what is refused, and how much memory it takes."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from raysim.errors import DataError
from raysim.samples.arrow import ConcatArray, open_split
from raysim.workloads.datasets import image_files
from raysim.workloads.datasets.image_files import (
    ImageFiles,
    Labelled,
    Listing,
    read_image,
    read_parts,
)

RED, BLUE = (255, 0, 0), (0, 0, 255)


def ignore(what: str, done: int, total: int) -> None:
    pass


def halves(width: int, height: int) -> Image.Image:
    """Return an image whose left half is red and whose right half is blue."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


def encoded(kind: str) -> bytes:
    """Return a noisy image of 12x9 pixels as a file."""
    noise = np.random.default_rng(0).integers(256, size=(9, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


def test_pixels_are_channels_first_and_exact_where_nothing_is_resized(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(256, size=(5, 5, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", 5, crop=False)
    assert read.dtype == np.uint8
    assert np.array_equal(read, np.moveaxis(noise, 2, 0))


def test_images_are_squeezed_or_cut_to_a_square(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    halves(16, 4).save(path)
    cut = read_image(path, 4, crop=True)  # columns 6 to 9
    assert cut[:, 0].T.tolist() == [list(RED), list(RED), list(BLUE), list(BLUE)]
    squeezed = read_image(path, 4, crop=False)
    assert squeezed.shape == (3, 4, 4)
    assert squeezed[:, :, 0].T.tolist() == [list(RED)] * 4
    assert squeezed[:, :, 3].T.tolist() == [list(BLUE)] * 4
    # A column that is not at the edge takes in some of the other half, as when it is averaged.
    assert RED[0] > squeezed[0, 0, 1] > squeezed[0, 0, 2] > 0


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK"])
def test_other_colour_spaces_become_three_channels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a"
    Image.new("L", (6, 6), 255).convert(mode).save(path, "JPEG" if mode == "CMYK" else "PNG")
    assert read_image(path, 3, crop=False).tolist() == [[[255] * 3] * 3] * 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_files_are_named_or_decoded(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    content = bytearray(encoded(kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    with suppress(DataError):
        assert read_image(path, 4, crop=False).shape == (3, 4, 4)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", encoded("PNG")[:-30], encoded("JPEG")[:-30], encoded("GIF")],
    ids=["empty", "text", "half a PNG", "half a JPEG", "GIF"],
)
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: cannot be decoded as a JPEG or PNG"):
        read_image(path, 4, crop=False)


def test_an_image_too_large_to_be_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # Pillow refuses more than twice as many
    path = tmp_path / "a.png"
    path.write_bytes(encoded("PNG"))
    with pytest.raises(DataError, match=f"{path}: cannot be decoded .*exceeds limit"):
        read_image(path, 4, crop=False)


def test_parts_hold_so_many_bytes_in_the_order_of_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [(tmp_path / f"{n}.png", n % 3) for n in (4, 0, 3, 1, 2)]
    for path, _ in files:
        Image.new("RGB", (2, 2), (int(path.stem), 0, 0)).save(path)
    monkeypatch.setattr(image_files, "PART_BYTES", 2 * 3 * 4 * 4 + 5)
    told: list[tuple[int, int]] = []
    parts = list(read_parts(files, 4, False, lambda *step: told.append(step)))
    assert [part.x[:, 0, 0, 0].tolist() for part in parts] == [[4, 0], [3, 1], [2]]
    assert [part.y.tolist() for part in parts] == [[1, 0], [0, 1], [2]]
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]
    monkeypatch.setattr(image_files, "PART_BYTES", 1)  # less than one image
    assert [len(part) for part in read_parts(files, 4, False, lambda *step: None)] == [1] * 5


class Made(ImageFiles):
    """The images in the dataset's folder; `train` and `test` are the same."""

    folder: ClassVar[str] = "made"

    @property
    def classes(self) -> int:
        return 2

    def listed(self, folder: Path) -> Mapping[str, Listing]:
        with (folder.parent / "asked").open("a") as log:
            log.write(f"{os.getpid()}\n")
        files: list[Labelled] = [(path, 1) for path in sorted(folder.glob("*.jpeg"))]
        return {"train": files, "test": files}


def make(root: Path, count: int) -> None:
    (root / "made").mkdir()
    for number in range(count):
        image = Image.new("RGB", (20, 10), (number % 256, 0, 0))
        image.save(root / "made" / f"{number:04}.jpeg", quality=95)


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def ready(*sizes: int) -> set[str]:
    return {".lock"} | {
        f"prepared/{size}/{split}.{kind}"
        for size in sizes
        for split in ("train", "test")
        for kind in ("arrow", "sha256")
    }


def test_each_size_is_prepared_apart_and_once(tmp_path: Path) -> None:
    make(tmp_path, 3)
    images = left_in(tmp_path / "made")
    for size in (4, 6, 4):
        dataset = Made(image_size=size)
        paths = dataset.prepare(tmp_path, ignore)
        for path in paths.values():
            assert open_split(path).x.shape == (3, *dataset.shape) == (3, 3, size, size)
    assert left_in(tmp_path / "made") == images | ready(4, 6)
    assert (tmp_path / "asked").read_text().count("\n") == 2


def test_one_damaged_image_leaves_nothing_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 5)
    monkeypatch.setattr(image_files, "PART_BYTES", 2 * 3 * 4 * 4)
    damaged = tmp_path / "made" / "0004.jpeg"
    damaged.write_bytes(damaged.read_bytes()[:200])
    before = left_in(tmp_path / "made")
    with pytest.raises(DataError, match=f"{damaged}: cannot be decoded"):
        Made(image_size=4).prepare(tmp_path, ignore)
    assert left_in(tmp_path / "made") == before | {".lock"}
    assert not (tmp_path / "made" / ".work").exists()
    Image.new("RGB", (3, 3)).save(damaged)
    paths = Made(image_size=4).prepare(tmp_path, ignore)
    read = open_split(paths["test"])
    assert isinstance(read.x, ConcatArray)
    assert len(read.x) == 5


def test_decoding_uses_the_deviations_of_pretrained_networks() -> None:
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    expected = [(0 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert torch.allclose(Made().decode(raw).flatten(), torch.tensor(expected))
    plain = Made(normalised=False).decode(raw)
    assert torch.equal(plain.flatten(), torch.tensor([0.0, 51 / 255, 1.0]))


class Slow(Made):
    """Takes a while, so that others meet it."""

    def listed(self, folder: Path) -> Mapping[str, Listing]:
        time.sleep(0.3)
        return super().listed(folder)


def test_those_that_prepare_at_once_do_each_size_once(tmp_path: Path) -> None:
    make(tmp_path, 3)
    images = left_in(tmp_path / "made")
    together = Barrier(2)

    def prepare(sizes: list[int]) -> None:
        together.wait(60)
        for size in sizes:
            Slow(image_size=size).prepare(tmp_path, ignore)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(prepare, ([4, 6], [6, 4])))
    assert (tmp_path / "asked").read_text().count("\n") == 2
    assert left_in(tmp_path / "made") == images | ready(4, 6)


# In a process of its own, whose memory nothing else uses. Its second preparation decodes all images
# before it writes any, and shows that the first would be seen to do so.
MEASURED = """
import json, sys
from pathlib import Path
from tests.workloads.datasets.test_image_files import Made, ignore
from raysim.workloads.datasets import image_files

def held(kind):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(kind + ":")[1].split()[0])

def grown(root, size, part_bytes):
    image_files.PART_BYTES = part_bytes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = held("VmRSS")
    Made(image_size=size).prepare(Path(root), ignore)
    return held("VmHWM") - before

root = sys.argv[1]
grown(root, 8, 2**20)  # whatever is set up once
print(json.dumps([grown(root, 160, 2**20), grown(root, 161, 2**40)]))
"""


@pytest.mark.full
def test_preparing_holds_parts_and_not_the_dataset(tmp_path: Path) -> None:
    make(tmp_path, 600)
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    in_parts, whole = json.loads(output)
    dataset_bytes = 600 * 3 * 160 * 160  # 46 MB
    assert whole > dataset_bytes
    assert in_parts < dataset_bytes / 4
