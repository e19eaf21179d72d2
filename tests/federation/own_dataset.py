"""Datasets as users write them: with `raysim.write_split`, or as they think that files are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import raysim

GENERATOR = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (GENERATOR.normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
SITES = np.array(["a", "b", "c"])[np.arange(60) // 20]


class Own(raysim.Dataset):
    """Three sites of 20 samples each; sample 25, the fifth of the second, may not be finite."""

    shape: ClassVar = (4,)
    classes: ClassVar = 3
    form: str = "split"

    def prepare(self, root: Path, progress: Any) -> Mapping[str, Path]:
        folder = root / "own" / self.form
        paths = {name: folder / f"{name}.arrow" for name in ("train", "test")}
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            x = X.copy()
            if name == "train" and self.form == "infinite":
                x[25, 1] = np.inf
            FORMS.get(self.form, write)(path, x)
        return paths


def write(path: Path, x: np.ndarray) -> None:
    raysim.write_split(str(path), raysim.Split(x, Y, {"site": SITES}))


def table(x: np.ndarray, **names: Any) -> pa.Table:
    return pa.table({"x": [*x], "y": Y, **names})


def plain(path: Path, x: np.ndarray) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table(x).schema) as writer:
        writer.write_table(table(x))


def features(path: Path, x: np.ndarray) -> None:
    columns = pa.table({"a": x[:, 0], "b": x[:, 1], "y": Y})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, columns.schema) as writer:
        writer.write_table(columns)


def stream(path: Path, x: np.ndarray) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table(x).schema) as writer:
        writer.write_table(table(x))


def arrays(path: Path, x: np.ndarray) -> None:
    with path.open("wb") as file:
        np.savez(file, x=x, y=Y)


FORMS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "plain": plain,
    "features": features,
    "stream": stream,
    "parquet": lambda path, x: pq.write_table(table(x), path),
    "arrays": arrays,
    "text": lambda path, x: path.write_text("x,y\n1,2\n") and None,
    "nothing": lambda path, x: None,
}
