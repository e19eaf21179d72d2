"""Small files of one set of samples in the layouts that each format publishes.

The samples are six of two features, of two clients, labelled `no` and `yes`; or images of 4x4
pixels in their place.
"""

from __future__ import annotations

import csv
import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

X = np.array([[0.5, 2], [1, -1], [3, 0.25], [-2, 8], [0, 1], [7, 7.5]], np.float32)
Y = np.array([0, 1, 1, 0, 1, 0])
WORDS = np.array(["no", "yes"])[Y]
CLIENTS = np.array(["a", "a", "b", "b", "a", "b"])
TEST = np.array([False, False, False, False, True, True])
PIXELS = np.random.default_rng(0).integers(256, size=(6, 4, 4), dtype=np.uint8)
ALL = np.ones(6, bool)
SETS = {"train": ~TEST, "test": TEST}

Columns = dict[str, Any]


def columns(rows: np.ndarray = ALL) -> Columns:
    """Return the columns of a table, without the split."""
    x = X[rows].astype(float)
    return {
        "site": CLIENTS[rows].tolist(),
        "first": x[:, 0].tolist(),
        "second": x[:, 1].tolist(),
        "spam": WORDS[rows].tolist(),
    }


def divided() -> Columns:
    """Return the columns with that of the split."""
    return {**columns(), "part": np.where(TEST, "Test", "train").tolist()}


def text(path: Path, given: Columns, separator: str = ",", end: str = "\n") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator=end)
        writer.writerow(given)
        writer.writerows(zip(*given.values(), strict=True))


def as_csv(folder: Path) -> Path:
    text(folder / "mails.csv", divided())
    return folder / "mails.csv"


def windows_csv(folder: Path) -> Path:
    """Write a byte-order mark and mixed line ends."""
    path = as_csv(folder)
    lines = path.read_text().splitlines()
    ends = ["\r\n", "\n", "\r\n", "\n", "\r\n", "\n", ""]
    path.write_bytes(
        b"\xef\xbb\xbf" + "".join(map("".join, zip(lines, ends, strict=True))).encode()
    )
    return path


def european_csv(folder: Path) -> Path:
    """Write semicolons, commas for decimals, and blanks beside them."""
    given = divided()
    for name in ("first", "second"):
        given[name] = [f"{value} ".replace(".", ",") for value in given[name]]
    text(folder / "mails.csv", {f" {name} ": values for name, values in given.items()}, ";")
    return folder / "mails.csv"


def compressed(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def csv_gz(folder: Path) -> Path:
    return compressed(as_csv(folder))


def tsv_gz(folder: Path) -> Path:
    return compressed(tsv(folder))


def json_lines_gz(folder: Path) -> Path:
    return compressed(json_lines(folder))


def tsv(folder: Path) -> Path:
    text(folder / "mails.tsv", divided(), "\t")
    return folder / "mails.tsv"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table(divided()), folder / "mails.parquet", row_group_size=2)
    return folder / "mails.parquet"


def parquet_of_lists(folder: Path) -> Path:
    given = divided()
    lists = {"x": X.astype(float).tolist()}
    more = {name: given[name] for name in ("site", "spam", "part")}
    pq.write_table(pa.table({**lists, **more}), folder / "mails.parquet")
    return folder / "mails.parquet"


def arrow_file(folder: Path) -> Path:
    table = pa.table(divided())
    with pa.OSFile(str(folder / "m.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as f:
        f.write_table(table, max_chunksize=2)
    return folder / "m.arrow"


def arrow_stream(folder: Path) -> Path:
    table = pa.table(divided())
    path = folder / "m.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as f:
        f.write_table(table)
    return path


def json_lines(folder: Path) -> Path:
    rows = pa.table(divided()).to_pylist()
    (folder / "mails.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "mails.jsonl"


def marked_json_lines(folder: Path) -> Path:
    """Write a byte-order mark."""
    path = json_lines(folder)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def json_array(folder: Path) -> Path:
    """Write an array of objects over several lines, with marks of JSON in its words."""
    rows = [{**row, "note": '}],["\\'} for row in pa.table(divided()).to_pylist()]
    (folder / "mails.json").write_text("\n" + json.dumps(rows, indent=2) + "\n")
    return folder / "mails.json"


def json_array_gz(folder: Path) -> Path:
    return compressed(json_array(folder))


def zipped(path: Path) -> Path:
    """Write a file or folder as an archive next to it, with what macOS adds, and delete it."""
    packed = path.parent / "given.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._notes", b"")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            archive.write(file, file.relative_to(path.parent))
    return packed


def csv_zip(folder: Path) -> Path:
    return zipped(as_csv(folder))


def two_files_zip(folder: Path) -> Path:
    (folder / "mails").mkdir()
    return zipped(two_files(folder / "mails"))


def file_of_client(folder: Path) -> Path:
    """Write a file for each client, and one that is no data."""
    (folder / "README.md").write_text("A licence")
    for name in "ab":
        rows = name == CLIENTS
        given = {key: np.array(values)[rows].tolist() for key, values in divided().items()}
        text(folder / f"{name}.csv", given)
    return folder


def sets_of_files_of_clients(folder: Path) -> Path:
    for split, rows in SETS.items():
        (folder / split).mkdir()
        for name, own in of_clients(rows).items():
            text(folder / split / f"{name}.csv", columns(np.isin(np.arange(6), own)))
    return folder


def named_files_of_clients(folder: Path) -> Path:
    for split, rows in SETS.items():
        for name, own in of_clients(rows).items():
            pq.write_table(
                pa.table(columns(np.isin(np.arange(6), own))),
                folder / f"clinic {name}_{split}.parquet",
            )
    return folder


def folder_of_client(folder: Path) -> Path:
    for split, rows in SETS.items():
        for name, own in of_clients(rows).items():
            (folder / name).mkdir(exist_ok=True)
            text(folder / name / f"{split}.csv", columns(np.isin(np.arange(6), own)))
    return folder


def folder_of_client_zip(folder: Path) -> Path:
    (folder / "mails").mkdir()
    return zipped(folder_of_client(folder / "mails"))


def x_and_y(folder: Path) -> Path:
    """Write inputs and targets as files of their own."""
    for split, rows in SETS.items():
        given = columns(rows)
        text(folder / f"y_{split}.csv", {"": range(sum(rows)), "spam": given.pop("spam")})
        text(folder / f"X_{split}.csv", given)
    return folder


def y_beside(folder: Path) -> Path:
    given = divided()
    text(folder / "answers.tsv", {"first": given.pop("spam")}, "\t")  # a name of a feature, too
    text(folder / "mails.csv", given)
    return folder / "mails.csv"


def npz_of_prefixes(folder: Path) -> Path:
    """Write arrays as MedMNIST names them."""
    arrays = sets_of_arrays(X)
    named = {"_".join(reversed(name.split("_"))): values for name, values in arrays.items()}
    np.savez(folder / "mails.npz", **named, val_x=X[:1], val_y=Y[:1])
    return folder / "mails.npz"


def two_files(folder: Path) -> Path:
    for split, rows in SETS.items():
        text(folder / f"{split}.csv", columns(rows))
    return folder


def parts(folder: Path) -> Path:
    given = pa.table(divided())
    pq.write_table(given.slice(0, 3), folder / "part-0.parquet")
    pq.write_table(given.slice(3), folder / "part-1.parquet")
    return folder


def shards(folder: Path) -> Path:
    """Write files named as those of Hugging Face's hub."""
    for split, rows in SETS.items():
        given = pa.table(columns(rows))
        for number in (0, 1):
            path = folder / f"{split}-{number:05}-of-00002.parquet"
            pq.write_table(given.slice(number * len(given) // 2, len(given) // 2), path)
    return folder


def sets_of_arrays(x: np.ndarray) -> dict[str, np.ndarray]:
    return {
        f"{name}_{split}": values[rows]
        for split, rows in SETS.items()
        for name, values in {"x": x, "y": Y, "client": CLIENTS}.items()
    }


def npz(folder: Path) -> Path:
    np.savez_compressed(folder / "mails.npz", **sets_of_arrays(X))
    return folder / "mails.npz"


def npy(folder: Path) -> Path:
    for name, values in sets_of_arrays(X).items():
        np.save(folder / f"{name}.npy", values)
    return folder


def of_clients(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {each: np.flatnonzero(rows & (each == CLIENTS)) for each in "ab"}


def leaf(folder: Path) -> Path:
    for split, rows in SETS.items():
        held = of_clients(rows)
        data = {c: {"x": X[at].tolist(), "y": Y[at].tolist()} for c, at in held.items()}
        sizes = [len(at) for at in held.values()]
        content = {"users": [*held], "num_samples": sizes, "user_data": data}
        (folder / split).mkdir()
        (folder / split / "all_data_niid_0.json").write_text(json.dumps(content))
    return folder


def pfllib(folder: Path) -> Path:
    """Write plain arrays, as the error for PFLlib's pickles asks for."""
    for split, rows in SETS.items():
        (folder / split).mkdir()
        for number, at in enumerate(of_clients(rows).values()):
            np.savez_compressed(folder / split / f"{number}.npz", x=X[at], y=Y[at])
    return folder


def tff(folder: Path, x: np.ndarray = X) -> Path:
    import h5py

    for split, rows in SETS.items():
        with h5py.File(folder / f"fed_mails_{split}.h5", "w") as file:
            for client, at in of_clients(rows).items():
                file[f"examples/{client}/pixels"] = x[at]
                file[f"examples/{client}/label"] = Y[at].astype(np.int32)
    return folder


def tff_images(folder: Path) -> Path:
    return tff(folder, PIXELS.astype(np.float32) / 255)


def saved(folder: Path, tables: dict[str, pa.Table]) -> Path:
    """Write what `save_to_disk` of Hugging Face's `datasets` 5.2 writes of a DatasetDict."""
    for split, table in tables.items():
        inside = folder / split
        inside.mkdir()
        name = "data-00000-of-00001.arrow"
        with (
            pa.OSFile(str(inside / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as f,
        ):
            f.write_table(table)
        state = {"_data_files": [{"filename": name}], "_fingerprint": "0", "_split": None}
        (inside / "state.json").write_text(json.dumps(state))
        (inside / "dataset_info.json").write_text("{}")
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*tables]}))
    return folder


def hugging_face(folder: Path) -> Path:
    return saved(folder, {split: pa.table(columns(rows)) for split, rows in SETS.items()})


NAMED = {"target": "spam", "client": "site"}
VECTORS: dict[Callable[[Path], Path], Columns] = {
    **{
        layout: {**NAMED, "split": "part"}
        for layout in (
            *(as_csv, windows_csv, tsv, parquet, parquet_of_lists, arrow_file, arrow_stream),
            *(json_lines, parts, european_csv, csv_gz, tsv_gz, json_lines_gz, marked_json_lines),
        )
    },
    **{
        layout: {**NAMED, "split": "part", "leave_out": "note"}
        for layout in (json_array, json_array_gz)
    },
    csv_zip: {**NAMED, "split": "part"},
    two_files_zip: NAMED,
    file_of_client: {"target": "spam", "split": "part", "leave_out": "site"},
    **{
        layout: {"target": "spam", "leave_out": "site"}
        for layout in (
            *(sets_of_files_of_clients, named_files_of_clients),
            *(folder_of_client, folder_of_client_zip),
        )
    },
    x_and_y: {"client": "site"},
    y_beside: {"target": "answers.tsv", "client": "site", "split": "part"},
    npz_of_prefixes: {},
    two_files: NAMED,
    shards: NAMED,
    hugging_face: NAMED,
    npz: {},
    npy: {},
    leaf: {},
    pfllib: {},
    tff: {},
}
"""Layouts of vectors, and the settings that read them."""


def image(number: int) -> Image.Image:
    return Image.fromarray(PIXELS[number])


def by_class(folder: Path) -> Path:
    for split, rows in SETS.items():
        for number in np.flatnonzero(rows):
            path = folder / split / WORDS[number] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image(number).save(path)
    return folder


def by_class_zip(folder: Path) -> Path:
    return zipped(by_class(folder / "photos"))


def by_client(folder: Path) -> Path:
    """Write a folder of classes for each client, in folders of both sets."""
    for split, rows in SETS.items():
        for number in np.flatnonzero(rows):
            path = folder / split / CLIENTS[number] / WORDS[number] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image(number).save(path)
    return folder


def by_client_first(folder: Path) -> Path:
    """Write both sets in the folder of each client."""
    for split, rows in SETS.items():
        for number in np.flatnonzero(rows):
            path = folder / CLIENTS[number] / split / WORDS[number] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image(number).save(path)
    return folder


def with_labels(folder: Path) -> Path:
    (folder / "images").mkdir()
    for number in range(6):
        image(number).save(folder / "images" / f"{number}.png")
    names = [f"images/{number}.png" for number in range(6)]
    given = {key: divided()[key] for key in ("site", "spam", "part")}
    text(folder / "labels.csv", {"file": names, **given})
    return folder


def image_arrays(folder: Path) -> Path:
    np.savez(folder / "images.npz", **sets_of_arrays(PIXELS))
    return folder / "images.npz"


def encoded(number: int) -> dict[str, Any]:
    from io import BytesIO

    file = BytesIO()
    image(number).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def hugging_face_images(folder: Path) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return saved(
        folder,
        {
            split: pa.table(
                {
                    "image": pa.array([encoded(n) for n in np.flatnonzero(rows)], kind),
                    "label": Y[rows],
                    "site": CLIENTS[rows],
                }
            )
            for split, rows in SETS.items()
        },
    )


IMAGES: dict[Callable[[Path], Path], Columns] = {
    by_class: {},
    by_class_zip: {},
    by_client: {},
    by_client_first: {},
    with_labels: {**NAMED, "split": "part"},
    image_arrays: {},
    hugging_face_images: {"client": "site"},
}
"""Layouts of images, and the settings that read them."""
