"""Data files that are damaged, hostile, or that the settings do not fit."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from PIL import Image

from tests.inputs.case import Case, run
from tests.texts import write_tokenizer

HEADER = b"site,a,b,y\n"
ROWS = b"".join(b"%c,%d,%d,%d\n" % (97 + i % 2, i, i * i, i % 2) for i in range(20))


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def huge_png(size: int) -> bytes:
    """Return a PNG file that declares size x size pixels, and has few."""
    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def png(size: int = 4) -> bytes:
    file = io.BytesIO()
    Image.new("L", (size, size), 9).save(file, "PNG")
    return file.getvalue()


def archive(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def bomb() -> bytes:
    """Return an archive of 300 KB with an array of 300 MB."""
    header = io.BytesIO()
    shape = (3 * 10**8,)
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    file = io.BytesIO()
    opened = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with opened, opened.open("x.npy", "w", force_zip64=True) as member:
        member.write(header.getvalue())
        for _ in range(300):
            member.write(bytes(10**6))
    return file.getvalue()


def declaring(rows: int) -> bytes:
    """Return an archive whose array declares other rows than it has, 3."""
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (rows, 2)}
    np.lib.format.write_array_header_1_0(header, about)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("x.npy", header.getvalue() + bytes(24))
    return file.getvalue()


def lying_about_its_size() -> bytes:
    """Return an archive whose directory gives a member a tenth of its size."""
    content = archive(x=np.zeros(10_000), y=np.zeros(10_000))
    size = struct.pack("<I", 80_128)
    assert content.count(size) >= 2
    return content.replace(size, struct.pack("<I", 8_128))


FILES: dict[str, bytes] = {
    "good.csv": HEADER + ROWS,
    "rows/other.csv": HEADER + ROWS,
    "texts.csv": b"body,none,empty,a,y\n"
    + b"".join(
        b"we meet at noon,%s,,3,%d\n" % (b"lunch" if i % 5 else b"", i % 2) for i in range(10)
    ),
    "empty.csv": b"",
    "blank.csv": b"\n\n",
    "header.csv": HEADER,
    "nul.csv": HEADER + b"a,1,\x00,0\n",
    "utf16.csv": (HEADER + ROWS).decode().encode("utf-16"),
    "latin.csv": HEADER + b"\xe9\xff,1,1,0\n",
    "ragged.csv": HEADER + ROWS + b"a,1\n",
    "twice.csv": b"a,b,a,y\n1,2,3,0\n",
    "wide.csv": b",".join(b"c%d" % i for i in range(10**6)) + b"\n" + b"1," * (10**6 - 1) + b"1\n",
    "wide.jsonl": json.dumps({f"c{i}": 1 for i in range(20_000)}).encode(),
    "bomb.csv.gz": gzip.compress(b"a,y\n" + b"1,0\n" * 250_000) * 300,
    "cut.csv.gz": gzip.compress(HEADER + ROWS)[:40],
    "text.jsonl.gz": HEADER,
    "commas.csv": b'a,y\n"1,5",0\n"2,5",1\n"3,5",0\n',
    "words.csv": b"a,y\n" + b"".join(b"w%d,%d\n" % (i, i % 2) for i in range(2_000)),
    "one-class.csv": b"a,y\n1,0\n2,0\n3,0\n4,0\n5,0\n",
    "unseen.csv": b"a,y,part\n1,no,train\n2,yes,train\n3,maybe,test\n",
    "prices.csv": b"a,y\n1,1.5\n2,2.5\n3,7.5\n4,4.5\n5,5.25\n",
    "parts.csv": b"a,y,part\n1,0,train\n2,1,validation\n",
    **{f"sets/{name}.csv": HEADER + ROWS for name in ("test", "train")},
    **{f"three/{name}.csv": HEADER + ROWS for name in ("test", "train", "validation")},
    "h5/train.h5": b"",
    "all-train.csv": b"a,y,part\n1,0,train\n2,1,train\n",
    "infinite.csv": b"a,y\n1,0\ninf,1\n3,0\n4,1\n",
    "missing.csv": b"a,y\n1,0\n,1\n3,0\n",
    "large.csv": b"a,y\n1,0\n-1e300,1\n3,0\n4,1\n",
    "large-list.jsonl": b'{"a": [1, 1e300], "y": 0}\n' * 3 + b'{"a": [1, 2], "y": 1}\n' * 3,
    "no-target.csv": b"a,y\n1,0\n2,\n3,0\n",
    "brackets.jsonl": b"[" * 100_000,
    "broken.jsonl": b'{"a": 1, "y": 0}\n{"a": ',
    "twice.jsonl": b'{"a": 1, "a": 2, "y": 0}\n',
    "nested.jsonl": b'{"a": {"b": 1}, "y": 0}\n{"a": {"b": 2}, "y": 1}\n',
    "uneven.jsonl": b'{"a": [1], "y": 0}\n{"a": [1, 2], "y": 1}\n',
    "text.parquet": HEADER,
    "text.arrow": HEADER,
    "text.npz": HEADER,
    "text.h5": HEADER,
    "declares-more.npz": declaring(10**9),
    "declares-less.npz": declaring(1),
    "lying.npz": lying_about_its_size(),
    "pickle.npz": archive(data=np.array({"x": [1], "y": [0]}, object)),
    "objects.npz": archive(x=np.zeros((3, 2)), y=np.array(["a", 1, None], object)),
    "lengths.npz": archive(x=np.zeros((3, 2)), y=np.zeros(4)),
    "large.npz": archive(x=np.full((9, 2), 1e39), y=np.arange(9) % 2),
    "one-hot.npz": archive(x=np.zeros((6, 2)), y=np.eye(2)[np.arange(6) % 2]),
    "long.npz": archive(x=np.zeros((4, 2), np.longdouble), y=np.arange(4)),
    "no-values.npz": archive(x=np.zeros((3, 0)), y=np.zeros(3)),
    "no-arrays.npz": archive(),
    "scalar.npz": archive(x=np.float32(1), y=np.float32(1)),
    "pfl/train/0.npz": archive(data=np.array({"x": [[1.0]], "y": [0]}, object)),
    "pfl/test/0.npz": archive(data=np.array({"x": [[1.0]], "y": [0]}, object)),
    "pfl-sets/train/0.npz": archive(x_train=np.zeros((3, 2)), x_test=np.zeros((3, 2))),
    "pfl-sets/test/0.npz": archive(x=np.zeros((3, 2)), y=np.zeros(3)),
    "pfl-others/train/0.npz": archive(x=np.zeros((3, 2)), y=np.arange(3)),
    "pfl-others/train/1.npz": archive(x_train=np.zeros((3, 2)), x_test=np.zeros((3, 2))),
    "pfl-others/test/0.npz": archive(x=np.zeros((3, 2)), y=np.zeros(3)),
    **{f"{size}/a/0.png": huge_png(size) for size in (9_000, 12_000, 100_000)},
    **{f"grown/{name}.png": png() for name in ("a/0", "a/1", "b/0")},
    "grown/b/1.png": huge_png(12_000),
    "sizes/a/0.png": png(),
    "sizes/a/1.png": png(),
    "sizes/b/0.png": png(5),
    "sizes/b/1.png": png(5),
    "sizes/b/2.png": png(5),
    "damaged/a/0.png": png()[:40],
    "damaged/b/0.png": png(),
    "mixed/a/0.png": png(),
    "mixed/b/0.txt": b"",
    "leaves/in.png": png(),
    "leaves/labels.csv": b"file,y\n" + b"in.png,0\n../rows/other.csv,1\n" * 3,
    "outside.png": png(),
    "climbs/in.png": png(),
    "climbs/labels.csv": b"file,y\nin.png,0\n../outside.png,1\nin.png,1\nin.png,0\n",
    "gone/in.png": png(),
    "gone/labels.csv": b"file,y\n" + b"in.png,0\nout.png,1\n" * 3,
    "nothing/readme": b"",
    "torn/config.json": b"{",
    "bare/config.json": b"{}",
    "marred/config.json": b"{}",
    "marred/tokenizer.json": b"{}",
    "leaf/train/a.json": b'{"users": ["u"], "user_data": {"u": {"x": [[1], "a"], "y": [0, 1]}}}',
    "hollow/train/a.json": b'{"users": ["u"], "user_data": {"u": {"x": [[], []], "y": [0, 1]}}}',
    "hollow/test/a.json": b'{"users": ["u"], "user_data": {"u": {"x": [[]], "y": [0]}}}',
    "leaf/test/a.json": b'{"users": ["u"], "user_data": {"u": {"x": [[1]], "y": [0]}}}',
    "saved/state.json": b'{"_data_files": [{"filename": "../good.csv"}]}',
    "empty-state/state.json": b"[]",
    "plain.arrow": b"ARROW1\0\0" + bytes(100),
}
"""Files by the path in the kit's folder `files`."""


def write(folder: Path) -> None:
    """Write the files to a folder."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_tokenizer(folder / "words", ends=False)
    write_tokenizer(folder / "small", ends=False)
    (folder / "small/config.json").write_text('{"model_type": "bert", "vocab_size": 5}')
    write_tokenizer(folder / "failing", chat_template="{{ raise_exception('no system') }}")
    (folder / "bomb.npz").write_bytes(bomb())  # here, as it takes half a second
    dates = pa.table({"a": pa.array([0, 1], pa.timestamp("s")), "y": [0, 1]})
    path = str(folder / "dates.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, dates.schema) as file:
        file.write_table(dates)
    offsets = pa.py_buffer(np.array([0, 10**8, 2], np.int32).tobytes())
    lying = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    words = pa.table({"a": lying, "y": [0, 1]})
    path = str(folder / "lying.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, words.schema) as file:
        file.write_table(words)
    with h5py.File(folder / "other.h5", "w") as file:
        file["examples/u/x"], file["examples/u/y"] = np.zeros((3, 2)), np.zeros(3)
    with h5py.File(folder / "external.h5", "w") as file:
        file["examples/u/y"] = np.zeros(3)
        file["examples/u/x"] = h5py.ExternalLink("other.h5", "examples/u/x")
    with h5py.File(folder / "outside.h5", "w") as file:
        raw = [(str(folder / "good.csv"), 0, 3)]
        file["examples/u/y"] = np.zeros(3)
        file["examples/u"].create_dataset("x", (3,), "u1", external=raw)
    with h5py.File(folder / "bomb.h5", "w") as file:
        file["examples/u/y"] = np.zeros(3)
        file["examples/u"].create_dataset("x", (10**10,), "u1", chunks=True, compression="gzip")
    with h5py.File(folder / "groups.h5", "w") as file:
        file["examples/u/x/deep"], file["examples/u/y"] = np.zeros(3), np.zeros(3)
    with h5py.File(folder / "flat.h5", "w") as file:
        file["x"], file["y"] = np.zeros(3), np.zeros(3)
    (folder / "linked/a").mkdir(parents=True)
    (folder / "linked/in.png").write_bytes(png())
    (folder / "linked/link.png").symlink_to(folder / "outside.png")
    (folder / "linked/labels.csv").write_text("file,y\n" + "in.png,0\nlink.png,1\n" * 3)


def case(name: str, *overrides: str, says: tuple[str, ...], dataset: str = "files") -> Case:
    given = (f"dataset.name={dataset}", f"dataset.path=KIT/files/{name}", *overrides)
    return run(*given, "model.name=linear", says=says)


def text(name: str, *overrides: str, says: tuple[str, ...]) -> Case:
    """Return the case of a table of texts, with a tokeniser and a target unless it says others."""
    return case(name, TOKENS + "words", Y, *overrides, says=says)


def network(path: str, says: str) -> Case:
    """Return the case of texts whose tokeniser is that of a pretrained network."""
    given = ("dataset.name=files", "dataset.path=KIT/files/texts.csv", "dataset.text=body", Y)
    words = (*given, "model.name=huggingface", f"model.path={path}")
    return run(*words, says=(f"raysim: model.path={path}: {says}",))


TOKENS = "dataset.tokenizer=KIT/files/"
Y = "dataset.target=y"
PART = "dataset.split=part"
CASES = [
    run("dataset.name=files", "model.name=linear", says=("dataset.path: must be given",)),
    run("dataset.name=files", "dataset.path=", says=("dataset.path", "one character")),
    case("absent.csv", says=("absent.csv: not there",)),
    case("nothing", says=("no known layout, but 1 other", "CLASS/*.png")),
    case("outside.png", says=("no known format",)),
    case("empty.csv", Y, says=("empty.csv: is empty",)),
    case("blank.csv", Y, says=("blank.csv: its first line is empty",)),
    case("header.csv", Y, says=("of 0 rows",)),
    case("nul.csv", Y, says=("nul.csv: has NUL bytes",)),
    case("utf16.csv", Y, says=("utf16.csv: has NUL bytes", "UTF-8")),
    case("latin.csv", Y, says=("latin.csv: ", "UTF8")),
    case("ragged.csv", Y, says=("ragged.csv: ", "row 21: Expected 4 columns, got 2")),
    case("twice.csv", Y, says=("twice.csv: two columns are named 'a'",)),
    case("wide.csv", Y, says=("wide.csv: has 1000000 columns; at most 10000",)),
    case("wide.jsonl", Y, says=("wide.jsonl: has 20000 columns",)),
    case("bomb.csv.gz", Y, says=("bomb.csv.gz: has", "at most 100 times as many are read")),
    case("cut.csv.gz", Y, says=("cut.csv.gz: cannot be read", "Truncated")),
    case("text.jsonl.gz", Y, says=("text.jsonl.gz: cannot be read as JSON lines",)),
    case("commas.csv", Y, says=("column 'a': '1,5' in row 1", "dataset.categories=a")),
    case("words.csv", Y, says=("column 'a' has more than 1000 different words", "leave_out=a")),
    case("one-class.csv", Y, says=("dataset.target='y'", "two classes")),
    case("unseen.csv", Y, PART, says=("dataset.target='y'", "'maybe'", "test set alone")),
    case("prices.csv", Y, says=("dataset.target='y'", "test set alone", "dataset.task=regression")),
    case("good.csv", Y, "dataset.categories=y", says=("dataset.categories='y': is not among",)),
    case("good.csv", Y, "dataset.categories=z", says=("dataset.categories='z': no such",)),
    case("parts.csv", Y, PART, says=("dataset.split='part'", "'validation'", "train or test")),
    case("parts.csv", Y, PART, "dataset.features=a,part", says=("dataset.split='part': is a f",)),
    case("parts.csv", "dataset.split=y", Y, says=("dataset.split='y': is a feature, the target",)),
    case("parts.csv", Y, PART, "dataset.client=part", says=("dataset.split='part': is a feature",)),
    case(
        "sets", Y, "dataset.split=tset.csv", says=("dataset.split='tset.csv': ", "its own test set")
    ),
    case("three", Y, says=("validation.csv: lies beside 'train.csv'", "train or test, or move")),
    case("h5", Y, says=("h5: must hold one *train*.h5, one *test*.h5",)),
    case("all-train.csv", Y, PART, says=("all-train.csv: the test set has no samples",)),
    case("good.csv", Y, "dataset.split=0.01", says=("dataset.split=0.01: of 20 rows, 0",)),
    case("good.csv", Y, "dataset.split=1.5", says=("dataset.split=1.5",)),
    case("good.csv", Y, "dataset.split=prat", says=("dataset.split='prat'",)),
    case("infinite.csv", Y, says=("column 'a': holds inf", "must be finite")),
    case("large.csv", Y, says=("column 'a': holds -1e+300", "3.4e+38")),
    case("large.csv", Y, "dataset.standardise=true", says=("column 'a': holds -1e+300",)),
    case(
        *("large.csv", "dataset.target=a", "dataset.task=regression", "target_accuracy=none"),
        says=("column 'a': holds -1e+300",),
    ),
    case("large-list.jsonl", Y, says=("column 'a': holds 1e+300", "3.4e+38")),
    case("large.npz", says=("column 'x': holds 1e+39", "3.4e+38")),
    case("missing.csv", Y, says=("column 'a': 1 value is missing, in row 2; dataset",)),
    case("no-target.csv", Y, says=("column 'y'", "missing=drop leaves", "as mean and zero do")),
    case("good.csv", "dataset.target=z", says=("dataset.target='z': no such column", "known are")),
    case("words.csv", "dataset.target=a", says=("dataset.target='a'", "test set alone")),
    case(
        *("words.csv", "dataset.target=a", "dataset.task=regression"),
        says=("dataset.target='a': holds words", "dataset.task=regression"),
    ),
    case("good.csv", Y, "dataset.features=a,c", says=("dataset.features='c'", "no such column")),
    case("good.csv", Y, "dataset.features=a,y", says=("dataset.features", "not the target")),
    case("good.csv", Y, "dataset.leave_out=c", says=("dataset.leave_out='c'", "no such column")),
    case("good.csv", Y, "dataset.leave_out=y", says=("leave_out='y': is a feature or the target",)),
    case(
        *("good.csv", Y, "dataset.leave_out=a", "dataset.features=a,b"),
        says=("leave_out='a': is a feature or the target",),
    ),
    case("good.csv", Y, "dataset.leave_out=site,a,b", says=("needs a feature",)),
    case("good.csv", Y, "dataset.client=town", says=("dataset.client='town'",)),
    case(
        "good.csv", Y, "partition.name=natural", says=("partition.name=natural", "dataset.client")
    ),
    case(
        *("good.csv", Y, "dataset.client=site", "partition.name=natural"),
        says=("clients=4: 2 of the 2 values",),
    ),
    case(
        *("good.csv", Y, "dataset.task=regression", "dataset.standardise=true"),
        *("dataset.split=0.5", "target_accuracy=0.5"),
        says=("target_accuracy=0.5: ", "mae, r2"),
    ),
    case("brackets.jsonl", Y, says=("brackets.jsonl: ",)),
    case("broken.jsonl", Y, says=("broken.jsonl: ",)),
    case("twice.jsonl", Y, says=("twice.jsonl: ",)),
    case("nested.jsonl", Y, says=("column 'a'", "dataset.leave_out=a goes on without it")),
    case("uneven.jsonl", Y, says=("column 'a'", "differ in length")),
    case("text.parquet", Y, says=("text.parquet: cannot be read as Parquet",)),
    case("text.arrow", Y, says=("text.arrow: cannot be read as Arrow",)),
    case("plain.arrow", Y, says=("plain.arrow: cannot be read as Arrow",)),
    case("text.npz", says=("text.npz: cannot be read as an .npz archive",)),
    case("text.h5", says=("text.h5: cannot be read as HDF5",)),
    case("external.h5", says=("external.h5: 'x' of a client is no array of this file",)),
    case("outside.h5", says=("outside.h5: 'x' of a client is no array of this file",)),
    case("bomb.h5", says=("bomb.h5: 'x' has 0 bytes and declares 10000000000",)),
    case("groups.h5", says=("groups.h5: 'x' of a client is no array of this file",)),
    case("flat.h5", says=("flat.h5: has no group `examples`",)),
    case("lying.arrow", Y, says=("lying.arrow: cannot be read as Arrow",)),
    case("dates.arrow", Y, says=("column 'a'", "timestamp")),
    case("bomb.npz", says=("bomb.npz: 'x.npy'", "at most 100 times")),
    case("declares-more.npz", says=("declares 8000000000 bytes, and has 24",)),
    case("declares-less.npz", says=("declares 8 bytes, and has 24",)),
    case("lying.npz", says=("lying.npz: ",)),
    case("pickle.npz", says=("pickle.npz: 'data' is a pickle", "python -c")),
    case("objects.npz", says=("objects.npz: 'y' is a pickle", "read; save numbers or words, as")),
    case("lengths.npz", says=("lengths.npz: its arrays must have one length",)),
    case(
        *("large.npz", "dataset.categories=x"),
        says=("dataset.categories='x': holds arrays of float64", "must be of integers"),
    ),
    case("one-hot.npz", says=("dataset.target='y': holds arrays", "numpy.argmax(y, axis=1)")),
    case("long.npz", says=("long.npz: 'x' holds", "must be numbers or words")),
    case("no-values.npz", says=("no-values.npz: 'x' has shape [3, 0]", "must have values")),
    case("no-arrays.npz", says=("it has no array",)),
    case("scalar.npz", says=("scalar.npz: ",)),
    case("pfl", says=("0.npz: 'data' is a pickle", "python -c", "allow_pickle=True")),
    case("pfl-sets", says=("pfl-sets/train/0.npz: has arrays of both sets", "x and y")),
    case("pfl-others", says=("pfl-others/train/1.npz: has arrays of both sets", "x and y")),
    case("9000", says=("0.png: has 9000x9000 pixels; at most 67108864",)),
    case("12000", says=("0.png: has 12000x12000 pixels; at most 67108864",)),
    case("100000", says=("0.png: ", "exceeds limit of 178956970 pixels")),
    case("grown", "dataset.split=0.25", says=("b/1.png: has 12000x12000 pixels; at most",)),
    case("sizes", says=("sizes/b/", "has 5x5 pixels", "dataset.image_size")),
    case("damaged", says=("damaged/a/0.png: cannot be decoded",)),
    case("mixed", says=("mixed/b/0.txt: is no .png",)),
    case(
        "leaves",
        Y,
        "dataset.split=0.5",
        says=("labels.csv: '../rows/other.csv' must be an image in the folder",),
    ),
    case("gone", Y, "dataset.split=0.5", says=("gone/out.png: there is no such file, which a",)),
    case("climbs", Y, says=("labels.csv: '../outside.png' must be an image in the folder",)),
    case(
        "linked",
        Y,
        "dataset.split=0.5",
        says=("labels.csv: 'link.png' must be an image in the folder",),
    ),
    case("leaf", says=("leaf/train/a.json: ",)),
    case("hollow", says=("column 'x': its lists are empty",)),
    case("saved", dataset="huggingface", says=("state.json: '../good.csv' must be a file",)),
    case("empty-state", dataset="huggingface", says=("state.json: must hold an object",)),
    case("good.csv", dataset="huggingface", says=("has no state.json",)),
    text("texts.csv", "dataset.text=bodi", says=("dataset.text='bodi': no such column", "'body'")),
    text("texts.csv", "dataset.text=none", says=("column 'none': ", "2 values are missing")),
    text("texts.csv", "dataset.text=a", says=("dataset.text='a': holds numbers alone",)),
    text("texts.csv", "dataset.text=[]", says=("dataset.text=[]: ", "string")),
    text(
        "texts.csv",
        "dataset.text=empty",
        says=("dataset.text='empty': has no text: all cells are empty",),
    ),
    text("texts.csv", "dataset.text=body", "dataset.length=1", says=("dataset.length=1: ",)),
    text("texts.csv", "dataset.text=body", "dataset.standardise=true", says=("only input",)),
    text("texts.csv", "dataset.text=body", "dataset.task=regression", says=("task=regression",)),
    text("texts.csv", "dataset.prompt=body", says=("prompt='body': needs dataset.answer, too",)),
    text("texts.csv", "dataset.answer=body", says=("answer='body': needs dataset.prompt, too",)),
    text("texts.csv", "dataset.text=body", TOKENS + "absent", says=("absent: no such folder",)),
    text("texts.csv", "dataset.text=body", TOKENS + "leaf", says=("leaf: has no config.json",)),
    text(
        "texts.csv",
        "dataset.text=body",
        "dataset.tokenizer=",
        says=("dataset.tokenizer", "one character"),
    ),
    case("texts.csv", Y, "dataset.text=body", says=("text='body': needs a tokeniser",)),
    text(
        "texts.csv",
        *("dataset.prompt=body", "dataset.answer=empty", "dataset.target=none"),
        says=("dataset.answer='empty': has no text: all cells are empty",),
    ),
    text(
        "texts.csv",
        *("dataset.prompt=body", "dataset.answer=a", "dataset.target=none"),
        "dataset.length=2",
        says=("the text in row 1 of ", "fills dataset.length=2, as 10 do"),
    ),
    text(
        "texts.csv",
        *("dataset.prompt=body", "dataset.answer=a", "dataset.target=none"),
        TOKENS + "failing",
        says=("failing: its chat template fails: TemplateError: no system",),
    ),
    network("nowhere", "no such folder, and no pack; packs are minilm"),
    network("KIT/files/absent", "no such folder"),
    network("org/net", "no such folder; if it is a network of the hub, add its commit"),
    network("org/net@main", "must name a commit by its 40 hexadecimal digits"),
    network("KIT/files/leaf", "has no config.json"),
    network("KIT/files/torn", "its config.json cannot be read"),
    network("KIT/files/bare", "has no tokenizer.json"),
    network("KIT/files/marred", "its tokenizer cannot be read"),
    network("KIT/files/small", "its tokenizer has 21 tokens, but the network embeds 5"),
]
