"""Files of federated benchmarks with natural clients: LEAF, PFLlib, TensorFlow Federated.

Sources: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018 (JSON, see
`raysim.workloads.datasets.leaf`); https://github.com/TsingZ0/PFLlib: its `dataset/utils` writes
`train/0.npz` and `test/0.npz` for client 0 and so on; TensorFlow Federated's HDF5 files, where
`examples/CLIENT/FEATURE` is an array of a client's samples.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import DataError, SettingsError
from raysim.numbers.arrays import Array
from raysim.workloads.datasets.files.arrays import archive, check_ratio
from raysim.workloads.datasets.files.combined import of_clients
from raysim.workloads.datasets.files.source import Batches, Source, as_columns, reading, shown
from raysim.workloads.datasets.image_files import visible
from raysim.workloads.datasets.leaf import users

CLIENT = "client"
HDF5 = (".h5", ".hdf5")
PIXELS = "pixels"
"""TensorFlow Federated's name of grey images, numbers [n, height, width]."""


def files_of(folder: Path, suffix: str) -> list[Path]:
    """Return the files of a folder with an end of their names, in lower case or not."""
    return [folder / name for name in visible(folder) if name.lower().endswith(suffix)]


def leaf(folder: Path) -> Source:
    """Return the samples of one of LEAF's folders of JSON files, `train` or `test`."""
    paths = tuple(files_of(folder, ".json"))

    def read(wanted: tuple[str, ...]) -> Batches:
        origins: dict[str, Path] = {}
        for path in paths:
            for user in users(path, origins):
                with reading(path, f"LEAF's samples of user {shown(user.name)}"):
                    columns = {"x": _as_array(user.x), "y": _as_array(user.y)}
                columns[CLIENT] = np.full(len(user.y), user.name)
                yield as_columns({name: columns[name] for name in wanted})

    return Source(folder, ("x", "y", CLIENT), read, paths, CLIENT)


def _as_array(values: list[Any]) -> Array:
    array = np.array(values)
    if array.dtype.kind not in "fiubU" or (array.dtype.kind == "U" and array.ndim > 1):
        raise ValueError(f"values of type {array.dtype}; must be numbers, or a word a sample")
    return array


def pfllib(folder: Path) -> Source:
    """Return the samples of a folder of .npz files, one a client, as PFLlib's `train` and `test`.

    Raises:
        DataError: a file holds a pickle, as PFLlib writes it; the message says how to convert it.
    """
    paths = sorted(files_of(folder, ".npz"), key=lambda path: (len(path.stem), path.stem))
    return of_clients(folder, {path.stem: _of_client(path) for path in paths})


def _of_client(path: Path) -> Source:
    sources = archive(path)
    if "" not in sources:
        raise DataError(
            f"{path}: has arrays of both sets, as x_train and x_test; a file of a client"
            " has x and y of one set"
        )
    return sources[""]


def tff(path: Path) -> Source:
    """Return the samples of one of TensorFlow Federated's HDF5 files.

    Raises:
        SettingsError: h5py is not installed.
        DataError: the file is damaged, has another layout, or leads to other files.
    """
    if find_spec("h5py") is None:
        raise SettingsError(f"dataset.path={path}: needs h5py; pip install 'raysim-fl[hdf5]'")
    import h5py

    def arrays(client: Any, name: str) -> Any:
        link = client.get(name, getlink=True)
        held = client[name] if type(link) is h5py.HardLink else None
        if not isinstance(held, h5py.Dataset) or held.external or held.is_virtual:
            raise DataError(f"{path}: {shown(name)} of a client is no array of this file")
        check_ratio(path, name, held.id.get_storage_size(), held.nbytes)
        return held

    def clients(file: Any) -> Any:
        examples = file.get("examples")
        if type(file.get("examples", getlink=True)) is not h5py.HardLink or not len(examples):
            raise DataError(f"{path}: has no group `examples` of clients, as TFF's files have")
        return examples

    def read(wanted: tuple[str, ...]) -> Batches:
        with reading(path, "HDF5", RuntimeError), h5py.File(path, "r") as file:
            examples = clients(file)
            for name in examples:
                if type(examples.get(name, getlink=True)) is not h5py.HardLink:
                    raise DataError(f"{path}: client {shown(name)} is no group of this file")
                columns = {n: _values(n, arrays(examples[name], n)) for n in wanted if n != CLIENT}
                columns[CLIENT] = np.full(len(next(iter(columns.values()))), name)
                yield as_columns({n: columns[n] for n in wanted})

    with reading(path, "HDF5", RuntimeError), h5py.File(path, "r") as file:
        examples = clients(file)
        names = tuple(examples[next(iter(examples))])
    return Source(path, (*names, CLIENT), read, (path,), CLIENT)


def _values(name: str, held: Any) -> Array:
    """Return an HDF5 array: bytes of text as words, grey images with an axis of channels."""
    if held.dtype.kind == "O":
        return np.array(held.asstr()[...].tolist())
    values = np.asarray(held[...])
    return values[:, None] if name == PIXELS and values.ndim == 3 else values
