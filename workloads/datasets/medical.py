"""APTOS and Chest X-ray: medical images, graded by physicians.

Sources: APTOS 2019 Blindness Detection, https://www.kaggle.com/c/aptos2019-blindness-detection;
Kermany et al., Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep Learning,
Cell, 2018, published at https://www.kaggle.com/datasets/paultimothymooney/chest-xray-pneumonia.

FedMAX splits each at random into 85% training and 15% test samples. Here APTOS is split so, as its
published test images have no labels; Chest X-ray keeps its published test set. FedMAX counts 38,788
samples of APTOS, including another competition's images, which are not read here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from raysim.errors import DataError
from raysim.workloads.datasets.csv_files import TEXT, WHOLE, find_csv, line_of, read_csv
from raysim.workloads.datasets.image_files import ImageFiles, Listing, class_folders

GRADES = ("none", "mild", "moderate", "severe", "proliferative")


class Aptos(ImageFiles):
    """Photographs of retinas, with five grades of blindness.

    Not downloaded: `train.csv` and the folder `train_images` belong in the folder `aptos` of
    the data root. The fraction `test_share` of the images of each grade, rounded down, forms the
    test set: the images with the smallest sha256 of `id_code`, independent of the order of the
    rows.
    """

    test_share: float = Field(
        default=0.15, gt=0, lt=1, description="fraction of each grade that forms the test set"
    )
    folder: ClassVar[str] = "aptos"
    published: ClassVar[str] = "https://www.kaggle.com/c/aptos2019-blindness-detection/data"
    classes: ClassVar[int] = len(GRADES)
    class_names: ClassVar[tuple[str, ...]] = GRADES

    @property
    def variant(self) -> str:
        """Name of the prepared files of these settings."""
        return f"{self.image_size}-{self.test_share}"

    def listed(self, folder: Path) -> Mapping[str, Listing]:
        """Return the files named in `train.csv`, in its order, split by the hash of their names.

        Raises:
            DataError: the table or an image is missing, or a row is wrong.
        """
        hint = f"{self.published}, and the folder train_images next to it"
        table = find_csv(folder, "train", hint)
        grades = _grades(table)
        tested: set[str] = set()
        for grade in range(len(GRADES)):
            codes = sorted((code for code in grades if grades[code] == grade), key=_digest)
            tested.update(codes[: int(len(codes) * self.test_share)])
        files = [
            (code in tested, (folder / "train_images" / f"{code}.png", grade))
            for code, grade in grades.items()
        ]
        parts = {
            "train": [file for in_test, file in files if not in_test],
            "test": [file for in_test, file in files if in_test],
        }
        if empty := [name for name, part in parts.items() if not part]:
            raise DataError(
                f"{table}: {len(files)} images leave none for the {empty[0]} set with"
                f" dataset.test_share={self.test_share}"
            )
        return parts


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _grades(table: Path) -> dict[str, int]:
    """Return the grades of the images that a table names.

    Raises:
        DataError: a column is missing, or a row is wrong; it names the line.
    """
    rows = read_csv(table, {"ID_CODE": TEXT, "DIAGNOSIS": WHOLE})
    grades: dict[str, int] = {}
    for number, row in enumerate(rows.to_pylist()):
        code, grade = row["ID_CODE"], row["DIAGNOSIS"]
        image = table.parent / "train_images" / f"{code}.png"
        problem = ""
        if not code.isalnum():
            problem = f"ID_CODE is {code!r}; allowed are letters and digits"
        elif code in grades:
            problem = f"ID_CODE {code!r} is there for the second time"
        elif not 0 <= grade < len(GRADES):
            problem = f"DIAGNOSIS is {grade}; allowed are 0 to {len(GRADES) - 1}"
        elif not image.is_file():
            problem = f"{image} is not there"
        if problem:
            raise DataError(f"{table}: line {line_of(number)}: {problem}")
        grades[code] = grade
    return grades


class ChestXray(ImageFiles):
    """Radiographs of children's chests, normal or with pneumonia.

    Not downloaded: the published folders `train` and `test`, each with the folders `NORMAL` and
    `PNEUMONIA`, belong in the folder `chest-xray` of the data root. The 16 images published as
    `val` are not read. Grey images are stored in three equal channels.
    """

    folder: ClassVar[str] = "chest-xray"
    published: ClassVar[str] = (
        "https://www.kaggle.com/datasets/paultimothymooney/chest-xray-pneumonia"
    )
    classes: ClassVar[int] = 2  # normal, pneumonia
    class_names: ClassVar[tuple[str, ...]] = ("normal", "pneumonia")

    def listed(self, folder: Path) -> Mapping[str, Listing]:
        """Return the files of the class folders.

        Raises:
            DataError: a class folder is missing.
        """
        return {
            split: class_folders(folder / split, ("NORMAL", "PNEUMONIA"), self.published)
            for split in ("train", "test")
        }
