"""Datasets that Hugging Face's `datasets` saved on disk, or that its hub has.

Source: https://huggingface.co/docs/datasets, `save_to_disk`: a folder with `state.json`, which
names the files, and `data-*.arrow`, Arrow streams; several splits are such folders below one with
`dataset_dict.json`. They are read here without that library, so that no code of a dataset runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field

from raysim.api.components import suggest
from raysim.errors import DataError, SettingsError
from raysim.samples.data import Progress
from raysim.user_input import parse_json, portable_name, user_path
from raysim.workloads.datasets.files.dataset import FileDataset
from raysim.workloads.datasets.files.division import check_divided
from raysim.workloads.datasets.files.pictures import ImageReader, Look
from raysim.workloads.datasets.files.source import (
    Batches,
    Source,
    Sources,
    as_columns,
    reading,
    shown,
    side_by_side,
)
from raysim.workloads.datasets.files.tables import table
from raysim.workloads.datasets.prepared import NeededError

STATE, SPLITS = "state.json", "dataset_dict.json"


def _folder_or_name(path: str) -> str:
    place = user_path(path, "dataset.path")
    return str(place.absolute()) if place.exists() else path


class HuggingFace(FileDataset):
    """Dataset that Hugging Face's `datasets` saved with `save_to_disk`, or of its hub.

    Of the hub's, the name is given: `dataset.path=ylecun/mnist`; this needs `pip install
    'raysim-fl[huggingface]'`, and the dataset is saved under the data root. `dataset.split` may
    also name the split to test on, by default `test`.
    """

    path: Annotated[str, AfterValidator(_folder_or_name)] = Field(
        description="folder of save_to_disk, or name on the hub"
    )
    folder: ClassVar[str] = "huggingface"

    def sources(self, root: Path) -> Sources:
        """Return the samples of each split.

        Raises:
            DataError: `save_to_disk` did not write the folder, or it has no training samples.
        """
        path = self._place(root)
        if (path / STATE).is_file():
            return {"": _saved(path, Look(self.image_size))}
        if not (path / SPLITS).is_file():
            raise DataError(
                f"dataset.path={path}: has no {STATE} or {SPLITS}, as save_to_disk writes"
            )
        names = _read(path / SPLITS).get("splits")
        if not isinstance(names, list) or "train" not in names:
            raise DataError(f"{path / SPLITS}: names no split train")
        test = self.split if isinstance(self.split, str) else "test"
        if test in names:
            if not isinstance(self.split, str):
                check_divided(path, self.split)
            chosen = {"train": "train", "test": test}
            return {
                name: _saved(path / folder, Look(self.image_size))
                for name, folder in chosen.items()
            }
        if isinstance(self.split, str):
            raise DataError(
                f"dataset.split={shown(self.split)}: no such split; {suggest(self.split, names)}"
            )
        return {"": _saved(path / "train", Look(self.image_size))}

    @property
    def own_files(self) -> bool:
        """Say whether the path is a folder; a dataset of the hub is fetched once."""
        return Path(self.path).exists()

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Read the files, fetched from the hub if there is no such folder; write Arrow files.

        Raises:
            DataError: there is nothing, it is damaged, or does not fit the settings.
        """
        if not (path := self._place(root)).exists():
            progress(f"fetch {self.path}", 0, 1)
            fetch(self.path, path)
            progress(f"fetch {self.path}", 1, 1)
        return super().prepare(root, progress)

    def check_files(self, root: Path) -> None:
        """Check existing files; this fetches none from the hub.

        Raises:
            NeededError: existing files were not saved by `save_to_disk`; or there are none, and the
                library that fetches them is not installed.
        """
        if self._place(root).exists():
            super().check_files(root)
        elif find_spec("datasets") is None:
            raise NeededError(_not_installed(self.path))

    def _place(self, root: Path) -> Path:
        path = Path(self.path)
        return path if path.exists() else root / self.folder / "hub" / portable_name(self.path)


def _not_installed(name: str) -> str:
    return (
        f"dataset.path={name}: no such folder; a dataset of the hub needs pip install"
        " 'raysim-fl[huggingface]'"
    )


def fetch(name: str, path: Path) -> None:
    """Save a dataset of the hub to a folder.

    Raises:
        SettingsError: the library is not installed.
        DataError: the hub cannot be reached, or lacks the dataset.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise SettingsError(_not_installed(name)) from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        datasets.load_dataset(name).save_to_disk(str(temporary))
        temporary.rename(path)
    except Exception as error:  # its many libraries raise their own
        text = shown(" ".join(str(error).split()))
        raise DataError(
            f"dataset.path={name}: no such folder, and not fetched from the hub: {text}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(path: Path) -> Mapping[str, Any]:
    with reading(path, "JSON"):
        content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise DataError(f"{path}: must hold an object")
    return content


def _saved(folder: Path, look: Look) -> Source:
    rows = table(_files(folder))
    first = next(rows.read(rows.names), None)
    if first is None:
        raise DataError(f"{folder}: has no rows")

    def contents(name: str) -> Iterator[BytesIO]:
        return (_content(value, name) for batch in rows.read((name,)) for value in batch[name])

    images = {
        field.name: ImageReader(partial(contents, field.name), look)
        for field in first.schema
        if pa.types.is_struct(field.type) and "bytes" in {child.name for child in field.type}
    }

    def read(wanted: tuple[str, ...]) -> Batches:
        for whole in rows.read(wanted):
            sizes = [reader.rows for name, reader in images.items() if name in wanted]
            for start in range(0, len(whole), size := min([len(whole), *sizes])):
                yield _decoded(whole.slice(start, size), images)

    return replace(
        rows,
        path=folder,
        read=read,
        arrays=lambda: {name: reader.kind for name, reader in images.items()},
        images=tuple(images),
    )


def _files(folder: Path) -> list[Path]:
    listed = _read(folder / STATE).get("_data_files")
    paths = []
    for entry in listed if isinstance(listed, list) else []:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(f"{folder / STATE}: {shown(name)} must be a file in the folder")
        paths.append(folder / name)
    if not paths:
        raise DataError(f"{folder / STATE}: names no files")
    return paths


def _decoded(batch: pa.RecordBatch, images: Mapping[str, ImageReader]) -> pa.RecordBatch:
    batches: dict[str, pa.RecordBatch] = {}
    for name in batch.schema.names:
        if name in images:
            content = [_content(value, name) for value in batch[name]]
            batches[name] = as_columns({name: np.asarray(images[name](content))})
        else:
            batches[name] = batch
    return side_by_side(batches)


def _content(value: pa.Scalar, name: str) -> BytesIO:
    """Return the bytes of an image; a path next to them is not followed."""
    content = value["bytes"].as_py() if value.is_valid else None
    if not content:
        raise DataError(f"column {shown(name)}: an image has no bytes; embed_external_files=True")
    return BytesIO(content)
