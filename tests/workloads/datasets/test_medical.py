"""APTOS and Chest X-ray: small folders in the published form."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import raysim.workloads  # noqa: F401 - registers names
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.samples.data import DATASETS
from raysim.workloads.datasets.medical import Aptos, ChestXray

GRADES = {f"c0de{n:02}": 0 if n < 20 else 4 if n < 27 else 1 for n in range(37)}
"""Twenty images of grade 0, seven of grade 4, ten of grade 1."""


def ignore(what: str, done: int, total: int) -> None:
    pass


def table(rows: dict[str, int]) -> str:
    return "".join(["id_code,diagnosis\n", *(f"{code},{grade}\n" for code, grade in rows.items())])


@pytest.fixture
def aptos(tmp_path: Path) -> Path:
    folder = tmp_path / "aptos"
    (folder / "train_images").mkdir(parents=True)
    for number, code in enumerate(GRADES):  # the colour says which image it is
        image = Image.new("RGB", (6, 4), (number, 0, 0))
        image.save(folder / "train_images" / f"{code}.png")
    (folder / "train.csv").write_text(table(GRADES))
    return folder


def held(dataset: Aptos, root: Path) -> dict[str, set[int]]:
    """Return the numbers of the images in each split, checking their labels."""
    numbers = {}
    for split, path in dataset.prepare(root, ignore).items():
        read = open_split(path)
        numbers[split] = read.x[:, 0, 0, 0].tolist()
        assert read.y.tolist() == [GRADES[f"c0de{n:02}"] for n in numbers[split]]
        assert read.x.shape[1:] == (3, dataset.image_size, dataset.image_size)
    return {split: set(found) for split, found in numbers.items()}


def test_aptos_keeps_a_share_of_each_grade_by_the_hash_of_its_name(aptos: Path) -> None:
    found = held(Aptos(image_size=8, test_share=0.3), aptos.parent)
    expected = set()
    for grade, count in ((0, 6), (4, 2), (1, 3)):  # 30% of 20, 7 and 10, rounded down
        codes = [code for code in GRADES if GRADES[code] == grade]
        codes.sort(key=lambda code: hashlib.sha256(code.encode()).hexdigest())
        expected |= {int(code[-2:]) for code in codes[:count]}
    assert len(expected) == 11
    assert found["test"] == expected
    assert found["train"] == set(range(37)) - expected


def test_the_order_of_rows_changes_nothing(aptos: Path) -> None:
    first = held(Aptos(image_size=8), aptos.parent)
    assert len(first["test"]) == 3 + 1 + 1
    (aptos / "train.csv").write_text(table(dict(reversed(GRADES.items()))))
    assert held(Aptos(image_size=9), aptos.parent) == first


def test_each_share_is_prepared_apart(aptos: Path) -> None:
    sizes = [
        len(held(Aptos(image_size=8, test_share=share), aptos.parent)["test"])
        for share in (0.15, 0.3, 0.15)
    ]
    assert sizes == [5, 11, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as a CSV table"),
        ("id_code,grade\na,1\n", "has no column DIAGNOSIS; it has id_code, grade"),
        ("id_code,diagnosis\nc0de01,1\nc0de02,5\n", "line 3: DIAGNOSIS is 5; allowed are 0 to 4"),
        ("id_code,diagnosis\nc0de01,1.0\n", "line 2: DIAGNOSIS is '1.0'; must be a whole"),
        ("id_code,diagnosis\nc0de01,\n", "line 2: DIAGNOSIS is empty"),
        ("id_code,diagnosis\nc0de01\n", "cannot be read as a CSV table .*Row #2"),
        ("id_code,diagnosis\n../secret,1\n", "line 2: ID_CODE is '../secret'; allowed are letters"),
        ("id_code,diagnosis\n,1\n", "line 2: ID_CODE is empty"),
        ("id_code,diagnosis\nc0de01,1\nc0de01,2\n", "line 3: ID_CODE 'c0de01' is there for the s"),
        ("id_code,diagnosis\nffff,1\n", r"line 2: .*train_images/ffff\.png is not there"),
        ("id_code,diagnosis\nc0de01,1\n", "1 images leave none for the test set with .*=0.15"),
        ("id_code,diagnosis\n", "0 images leave none for the train set"),
        ("id_code,diagnosis\n\udcff,1\n", "cannot be read as a CSV table"),
    ],
)
def test_what_is_wrong_with_the_table_is_named(aptos: Path, text: str, message: str) -> None:
    (aptos / "train.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=f"{aptos / 'train.csv'}: {message}"):
        Aptos(image_size=8).prepare(aptos.parent, ignore)
    assert not (aptos / "prepared").exists()


def test_a_damaged_image_is_named(aptos: Path) -> None:
    image = aptos / "train_images" / "c0de07.png"
    image.write_bytes(image.read_bytes()[:-25])
    with pytest.raises(DataError, match=f"{image}: cannot be decoded"):
        Aptos(image_size=8).prepare(aptos.parent, ignore)
    assert not (aptos / "prepared").exists()


def test_a_missing_table_says_where_to_put_what(tmp_path: Path) -> None:
    message = (
        r"train\.csv: not there; .*, from https://www\.kaggle\..* the folder train_images next"
    )
    with pytest.raises(DataError, match=message):
        Aptos().prepare(tmp_path, ignore)


@pytest.fixture
def xray(tmp_path: Path) -> Path:
    folder = tmp_path / "chest-xray"
    shades = iter(range(0, 200, 10))
    for split, normal, pneumonia in (("train", 2, 3), ("test", 1, 2), ("val", 1, 1)):
        for name, count in (("NORMAL", normal), ("PNEUMONIA", pneumonia)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.new("L", (10, 6), next(shades))
                image.save(folder / split / name / f"{number}.jpeg")
            (folder / split / name / ".DS_Store").write_bytes(b"left by a system")
    return folder


def test_chest_xray_reads_its_class_folders(xray: Path) -> None:
    paths = ChestXray(image_size=4).prepare(xray.parent, ignore)
    train, test = open_split(paths["train"]), open_split(paths["test"])
    assert train.y.tolist() == [0, 0, 1, 1, 1]
    assert test.y.tolist() == [0, 1, 1]
    for read, first in ((train, 0), (test, 50)):
        shades = first + 10 * np.arange(len(read))[:, None, None, None]
        assert np.abs(read.x[:].astype(int) - shades).max() <= 1  # JPEG is not exact


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "train/NORMAL").rename(f / "x"), "train/NORMAL: not there; put the class"),
        (lambda f: (f / "test").rename(f / "x"), "test/NORMAL: not there"),
        (lambda f: (f / "test/VIRUS").mkdir(), "test/VIRUS: is not a class of this dataset"),
        (lambda f: (f / "test/NORMAL/0.jpeg").unlink(), "test/NORMAL: contains no images"),
        (lambda f: (f / "train/NORMAL/notes").write_text("x"), "train/NORMAL/notes: cannot be dec"),
        (lambda f: (f / "train/NORMAL/more").mkdir(), "train/NORMAL/more: cannot be decoded"),
    ],
)
def test_what_is_wrong_with_the_folders_is_named(xray: Path, change, message: str) -> None:
    change(xray)
    with pytest.raises(DataError, match=f"{xray}/{message}"):
        ChestXray(image_size=4).prepare(xray.parent, ignore)
    assert not (xray / "prepared").exists()


def test_registered_names() -> None:
    aptos, xray = DATASETS.get("aptos")(), DATASETS.get("chest-xray")()
    assert aptos.settings() == {
        "name": "aptos",
        "normalised": True,
        "image_size": 224,
        "test_share": 0.15,
    }
    assert xray.settings() == {"name": "chest-xray", "normalised": True, "image_size": 224}
    assert aptos.shape == xray.shape == (3, 224, 224)
    assert (aptos.classes, xray.classes) == (5, 2)
