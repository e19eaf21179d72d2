"""Layouts of folders and archives: clients, sets, targets, JSON arrays; and what has none."""

from __future__ import annotations

import json
import re
import shutil
import stat
import zipfile
from typing import Any

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.federation.prepared import notes_of, prepared
from raysim.workloads.datasets.files import tables
from raysim.workloads.datasets.files.sources import Reading, find_sources
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.layouts import CLIENTS, PIXELS, SETS, X, Y
from tests.workloads.datasets.files.test_formats import dataset, in_order, read


@pytest.mark.parametrize("layout", [layouts.by_client, layouts.by_client_first])
def test_folders_above_those_of_classes_are_clients(layout, tmp_path):
    path = layout(tmp_path / "given")
    for name, split in read(path, tmp_path / "data").items():
        order = in_order(split, PIXELS, SETS[name])
        assert split.columns["client"].tolist() == CLIENTS[order].tolist()
    if layout is layouts.by_client_first:
        return
    rows = read(path / "train", tmp_path / "data", split=0.5)  # without sets
    assert {*rows["train"].columns["client"], *rows["test"].columns["client"]} == {"a", "b"}


@pytest.mark.parametrize("third", ["val", "Validation", "notes"])
def test_a_third_folder_is_told_and_may_be_tested_on(third, tmp_path):
    path = layouts.by_class(tmp_path / "given")
    shutil.copytree(path / "test", path / third)
    (path / third / "no" / "more.png").write_bytes((path / "test/no/5.png").read_bytes())
    paths = prepared(dataset(path), tmp_path / "data", lambda *_: None)
    assert notes_of(paths)[1:] == [f"not read: {third}"]
    assert len(read(path, tmp_path / "data")["test"]) == 2
    if third != "notes":
        assert len(read(path, tmp_path / "data", split=third)["test"]) == 3


@pytest.mark.parametrize("name", ["valid", "DEV"])
def test_the_only_folder_of_another_set_is_tested_on_when_it_is_named(name, tmp_path):
    path = layouts.by_class(tmp_path / "given")
    (path / "test").rename(path / name)
    with pytest.raises(DataError, match=rf"has the folders .*: dataset\.split={name} tests on"):
        read(path, tmp_path / "data")
    assert len(read(path, tmp_path / "data", split=name)["test"]) == 2


def test_a_class_may_be_called_as_a_set(tmp_path):
    path = layouts.by_class(tmp_path / "given") / "train"
    (path / "no").rename(path / "train")
    (path / "yes").rename(path / "test")
    assert len(read(path, tmp_path / "data", split=0.25)["train"]) == 3


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["train/a.csv"], None),  # a folder in a folder, or a single file, is looked into
        (["in/in/a.csv"], None),
        (["a.csv", "b.parquet"], r"has no known layout, but 1 \.csv and 1 \.parquet; known lay"),
        (["a.csv", "x/b.csv"], None),
        (["b/a.csv", "b/x.json", "c/a.csv"], r"/b: has no known layout, but 1 \.csv and 1 \.json"),
        (["b.csv", "c.doc", "in.png", "d.csv"], r"but 2 \.csv and 1 \.doc and 1 \.png"),
        (["c.doc", "in/d.doc", "readme"], r"/in: has no known layout, but 1 \.doc; known"),
        ([], r"has no known layout, but nothing; known layouts are CLASS/\*\.png, CLIENT/"),
        (["a/train.csv", "a/test.csv", "b/c.csv"], r"/b: has no test set, as other clients'"),
        (["a/in.png", "b/c/in.png"], r"/b/c: is no \.png or \.jpg or \.jpeg file; remove it"),
        (["test/a.csv", "b/c.csv"], r"has the folders b, test; .* name one train and one test"),
    ],
)
def test_what_has_no_layout_is_told_with_what_was_found(files, says, tmp_path):
    (tmp_path / "given").mkdir()
    for name in files:
        path = tmp_path / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".csv"):
            layouts.text(path, layouts.columns())
        elif name.endswith(".png"):
            layouts.image(0).save(path)
        else:
            path.write_bytes(b"{}")
    if says is None:
        read(tmp_path / "given", tmp_path / "data", **layouts.NAMED, split=0.34)
        return
    with pytest.raises(DataError, match=says):
        read(tmp_path / "given", tmp_path / "data", **layouts.NAMED, split=0.34)


@pytest.mark.parametrize("end", ["npy", "csv"])
def test_targets_may_lie_in_a_file_beside(end, tmp_path):
    given = {"inputs": X, "answers": np.where(Y, 7, 3)}
    for name, values in given.items():
        np.save(tmp_path / f"{name}.npy", values)
        table = {"": range(6), **{f"v{n}": v for n, v in enumerate(values.reshape(6, -1).T)}}
        layouts.text(tmp_path / f"{name}.csv", table)
    path, fields = tmp_path / f"inputs.{end}", {"target": f"answers.{end}", "split": 0.34}
    splits = read(path, tmp_path / "data", **fields)
    for split in splits.values():
        assert split.y.tolist() == Y[in_order(split, X, np.ones(6, bool))].tolist()
    with pytest.raises(DataError, match=r"dataset\.target: must .*; or a file of targets beside"):
        read(path, tmp_path / "data")
    with pytest.raises(DataError, match=r"inputs.csv: has the columns 'v0, v1'; a file of target"):
        read(tmp_path / f"answers.{end}", tmp_path / "data", target="inputs.csv")
    np.save(tmp_path / "answers.npy", Y[:5])
    with pytest.raises(DataError, match=r"inputs\.\w+: has more rows than .*answers\.npy"):
        read(path, tmp_path / "data", **{**fields, "target": "answers.npy"})
    sets = layouts.npz(tmp_path)
    with pytest.raises(DataError, match=r"target='answers\.npy': is a file of targets, and .* two"):
        read(sets, tmp_path / "data", target="answers.npy")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "y": 0}', r"holds an object; data is an array of objects; .*called \.jsonl"),
        ("3", "holds no array"),
        ("", r"t\.json: is empty; must have objects"),
        ("[]", "is empty; must have objects"),
        ('[{"a": 1}', "its array has no end"),
        ('[{"a": 1},]', r"value 2 of its array must be an object"),
        ('[{"a": 1} {"a": 2}]', r"'\{' follows '\}'"),
        ('[{"a": 1}] []', r"'\[' follows '\]'"),
        ('[{"a": 1}, 5]', r"value 2 of its array must be an object"),
        ('[{"a": 1}, {"a": }]', r"object 2: Expecting value"),
        ('[{"a": 1}, {"a": "b]', r"object 2: Unterminated string"),
        ('[{"a": 1, "a": 2}]', r"cannot be read as JSON"),
        ("[" * 100_000, r"value 1 of its array must be an object"),
        ('[{"a":' * 100_000, r"cannot be read as JSON: maximum recursion"),
    ],
)
def test_json_that_is_no_array_of_objects_is_refused(text, says, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=says):
        read(tmp_path / "t.json", tmp_path / "data", target="y")


def test_an_array_of_json_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 90)
    rows = [{"a": n, "word": 'käse, [1] } \\" é' * (n % 2), "y": n % 2} for n in range(40)]
    (tmp_path / "t.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    (source,) = find_sources(tmp_path / "t.json", Reading(0.2)).values()
    batches = [*source.read(("a", "word", "y"))]
    assert [row for batch in batches for row in batch.to_pylist()] == rows and len(batches) > 10
    rows[3]["word"] = "x" * 200
    (tmp_path / "t.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="object 4: Unterminated"):
        find_sources(tmp_path / "t.json", Reading(0.2))


def member(name: str, mode: int = 0, **about: Any) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr, info.create_system = mode << 16, 3
    for key, value in about.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    ("info", "content", "says"),
    [
        (member("../out.csv"), b"a", r"'\.\./out\.csv' leads out of the archive"),
        (member("/out.csv"), b"a", r"'/out\.csv' leads out"),
        (member("..\\out.csv"), b"a", "leads out"),
        (member("C:out.csv"), b"a", "leads out"),
        (member("x/in.csv", stat.S_IFLNK), b"/etc/passwd", r"'x/in\.csv' is a link or a device"),
        (member("pipe", stat.S_IFIFO), b"", "is a link or a device"),
        (member("in.csv", compress_type=zipfile.ZIP_DEFLATED), bytes(3 * 10**8), r"at most 100 ti"),
    ],
)
def test_archives_that_may_do_harm_are_refused_before_anything_is_written(
    info, content, says, tmp_path
):
    path = tmp_path / "given.zip"
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        archive.writestr("good.csv", "a,y\n1,0\n")
        archive.writestr(info, content)
    before = {*tmp_path.rglob("*")}
    with pytest.raises(DataError, match=says):
        read(path, tmp_path / "data", target="y")
    written = {path for path in {*tmp_path.rglob("*")} - before if path.is_file()}
    assert {path.name for path in written} <= {".lock"}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_with_damaged_bytes_is_refused(method, tmp_path):
    path = tmp_path / "given.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("t.csv", "a,y\n" + "1,0\n" * 99)
    packed = bytearray(path.read_bytes())
    packed[44:60] = b"\xff" * 16
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"given\.zip: cannot be read as a \.zip archive"):
        read(path, tmp_path / "data", target="y")


def test_errors_name_the_archive(tmp_path):
    path = tmp_path / "given.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one/t.csv", "a,y\n1,0\n2\n")
    with pytest.raises(DataError, match=re.escape(f"{path / 'one/t.csv'}: cannot be read as")):
        read(path, tmp_path / "data", target="y")


def test_names_of_an_archive_may_have_the_time_of_day(tmp_path):
    path = tmp_path / "given.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("2024-01-31T13:30.csv", "a,y\n1,0\n2,1\n3,0\n4,1\n5,1\n")
    assert len(read(path, tmp_path / "data", target="y")["train"]) == 4


def test_a_damaged_archive_is_refused_and_a_changed_one_is_read_anew(tmp_path):
    path = tmp_path / "given.zip"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(DataError, match=r"given\.zip: cannot be read as a \.zip archive"):
        read(path, tmp_path / "data", target="y")
    for rows in (10, 20):
        layouts.text(tmp_path / "t.csv", {"a": range(rows), "y": [n % 2 for n in range(rows)]})
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "t.csv", "folder/in/t.csv")
        assert len(read(path, tmp_path / "data", target="y")["train"]) == rows * 0.8
    left = {path.name for path in (tmp_path / "data/files").iterdir()}
    assert left == {"prepared", ".lock"}  # nothing that was unpacked
    (tmp_path / "data/files").chmod(0o500)  # nothing is written once it is there
    try:
        assert len(read(path, tmp_path / "data", target="y")["train"]) == 16
    finally:
        (tmp_path / "data/files").chmod(0o700)
