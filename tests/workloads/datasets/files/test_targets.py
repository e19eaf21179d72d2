"""Labels and natural clients: one of each, however a file stores them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.errors import DataError
from raysim.federation.prepared import open_prepared, prepared
from raysim.workloads.datasets.files import tables
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_formats import dataset, read

COUNT = 40
Y = [row % 2 for row in range(COUNT)]
OWNERS = [row // 2 % 4 for row in range(COUNT)]
STORED: dict[str, tuple[Any, Any, set[Any]]] = {
    "whole numbers, then floats": ("int64", "float64", {0, 1, 2, 3}),
    "floats, then whole numbers": ("float32", "uint8", {0, 1, 2, 3}),
    "halves, then floats": ("float16", "float64", {0, 1, 2, 3}),
    "decimals": (pa.decimal128(30, 2), "int8", {0, 1, 2, 3}),
    "whole numbers, then words": ("int64", "string", {"0", "1", "2", "3"}),
    "floats, then words": ("float64", "string", {"0", "1", "2", "3"}),
}


@pytest.mark.parametrize(("first", "second", "owners"), STORED.values(), ids=STORED)
def test_a_client_is_one_whatever_types_its_files_have(tmp_path, first, second, owners):
    for number, kind in enumerate((first, second)):
        given = np.array(OWNERS).astype(str) if kind == "string" else np.array(OWNERS)
        client = pa.array(given.astype(kind) if str(kind).startswith("float") else given)
        columns = {"client": client.cast(kind), "a": pa.array(np.arange(COUNT)), "y": Y}
        (tmp_path / "t").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "t" / f"p{number}.parquet")
    found = read(tmp_path / "t", tmp_path / "data", target="y", client="client")["train"]
    assert {*found.columns["client"].tolist()} == owners
    assert [type(each) for each in owners] == [type(c) for c in found.columns["client"].tolist()][
        :4
    ]


def test_a_client_is_one_whatever_types_the_blocks_of_a_file_have(tmp_path, monkeypatch):
    rows = [
        {"client": owner if row < 20 else f"{owner}", "a": row, "y": Y[row]}
        for row, owner in enumerate(OWNERS)
    ]
    text = "".join(f"{json.dumps(row):60}\n" for row in rows)
    (tmp_path / "t.jsonl").write_text(text)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 20 * 61)
    found = read(tmp_path / "t.jsonl", tmp_path / "data", target="y", client="client")["train"]
    assert {*found.columns["client"].tolist()} == {"0", "1", "2", "3"}
    monkeypatch.setattr(tables, "BLOCK_BYTES", 7 * 61)
    with pytest.raises(DataError, match="changed from number to string in row 21"):
        read(tmp_path / "t.jsonl", tmp_path / "data", target="y", features=["a"], client="client")


def test_files_of_pfllib_that_are_named_alike_are_two_clients(tmp_path):
    for split, count in (("train", 4), ("test", 2)):
        (tmp_path / split).mkdir()
        for name in ("0", "00", "1"):
            np.savez(tmp_path / split / f"{name}.npz", x=np.eye(4)[:count], y=Y[:count])
    found = read(tmp_path, tmp_path / "data")
    for split, count in (("train", 4), ("test", 2)):
        owners, sizes = np.unique(found[split].columns["client"], return_counts=True)
        assert owners.tolist() == ["0", "00", "1"] and sizes.tolist() == [count] * 3


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_zero_is_one_label_with_whichever_sign(tmp_path, suffix):
    labels = [0.0, 0.0, 1.0, 1.0, -0.0, -0.0]
    part = ["train"] * 4 + ["test"] * 2
    given: dict[str, Any] = {"a": [*range(6)], "y": labels, "part": part}
    if suffix == "csv":
        layouts.text(tmp_path / "t.csv", given)
    else:
        pq.write_table(pa.table(given), tmp_path / "t.parquet")
    path, fields = tmp_path / f"t.{suffix}", {"target": "y", "split": "part", "features": ["a"]}
    found = read(path, tmp_path / "data", **fields)
    assert found["train"].y.tolist() == [0, 0, 1, 1] and found["test"].y.tolist() == [0, 0]
    classes = prepared(dataset(path, **fields), tmp_path / "data", lambda *_: None)["classes"]
    assert open_prepared(dataset(path), classes).x.tolist() == ["0", "1"]
