"""The same samples in each format's own layout become the same arrays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysim import workloads  # noqa: F401 - registers the datasets
from raysim.api.components import build_component
from raysim.errors import DataError
from raysim.federation.prepared import network_size, open_prepared, prepared
from raysim.numbers.seeds import stream
from raysim.samples.data import DATASETS, Dataset, Split
from raysim.workloads.datasets.files import pictures, tables
from raysim.workloads.datasets.files.sources import Reading, find_sources
from raysim.workloads.partitions.natural import Natural
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.layouts import CLIENTS, PIXELS, SETS, X, Y


def dataset(path: Path, **fields: Any) -> Dataset:
    folder = path.is_dir() and (path / "dataset_dict.json").exists()
    name = "huggingface" if folder else "files"
    return build_component(DATASETS.get(name), {"path": str(path), **fields}, "dataset.")


def read(path: Path, root: Path, **fields: Any) -> Mapping[str, Split]:
    """Return the prepared samples of each split."""
    chosen = dataset(path, **fields)
    paths = prepared(chosen, root, lambda *_: None)
    return {name: open_prepared(chosen, paths[name]) for name in ("train", "test")}


def in_order(split: Split, x: np.ndarray, rows: np.ndarray) -> list[int]:
    """Return which of the samples each row is, as formats of clients store them by client."""
    flat = x.reshape(len(x), -1)
    return [
        int(np.flatnonzero(rows & (flat == each.reshape(-1)).all(axis=1))[0]) for each in split.x
    ]


@pytest.mark.parametrize("layout", layouts.VECTORS, ids=lambda layout: layout.__name__)
def test_vectors(layout, tmp_path):
    (tmp_path / "given").mkdir()
    path, fields = layout(tmp_path / "given"), layouts.VECTORS[layout]
    splits = read(path, tmp_path / "data", **fields)
    for name, rows in SETS.items():
        split = splits[name]
        order = in_order(split, X, rows)
        assert sorted(order) == np.flatnonzero(rows).tolist()
        assert split.x.dtype == np.float32 and np.array_equal(split.x, X[order])
        assert np.array_equal(split.y, Y[order])
        own = split.columns["client"]
        numbered = np.unique(own, return_inverse=True)[1]
        assert np.array_equal(np.unique(own)[numbered], own)
        assert np.array_equal(numbered, (CLIENTS[order] == "b").astype(int))
    size = network_size(dataset(path, **fields), lambda: splits["train"])
    assert size == ((2,), 2)
    indices = Natural().split(splits["train"], 2, 0)
    assert [len(indices[client]) for client in (0, 1)] == [2, 2]


@pytest.mark.parametrize("layout", layouts.IMAGES, ids=lambda layout: layout.__name__)
def test_images(layout, tmp_path):
    (tmp_path / "given").mkdir()
    path, fields = layout(tmp_path / "given"), layouts.IMAGES[layout]
    splits = read(path, tmp_path / "data", **fields)
    chosen = dataset(path, **fields)
    for name, rows in SETS.items():
        split = splits[name]
        order = in_order(split, PIXELS, rows)
        assert sorted(order) == np.flatnonzero(rows).tolist()
        assert split.x.dtype == np.uint8 and np.array_equal(split.x, PIXELS[order][:, None])
        assert np.array_equal(split.y, Y[order])
        decoded = chosen.decode(torch.tensor(np.asarray(split.x)))
        assert np.array_equal(decoded.numpy(), PIXELS[order][:, None].astype(np.float32) / 255)
    assert network_size(chosen, lambda: splits["train"]) == ((1, 4, 4), 2)


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (("KDDTrain+", "KDDTest+"), {"train": 1, "test": 1}),
        (("nb15_training-set", "nb15_testing-set"), {"train": 1, "test": 1}),
        (("trainData", "TEST"), {"train": 1, "test": 1}),
        (("train1", "train2", "testset"), {"train": 2, "test": 1}),
        (("train-0", "train-1"), {"": 2}),
        (("strain_a", "latest_b", "contest"), {"": 3}),
        (("Xtrain", "Xtest"), {"train": 1, "test": 1}),
        (("adulttraining", "adulttest"), {"train": 1, "test": 1}),
        (("Xtrain_latest", "Xtest_latest"), {"train": 1, "test": 1}),
        (("Dtrain-0-of-2", "Dtrain-1-of-2", "Dtest-0-of-1"), {"train": 2, "test": 1}),
    ],
)
def test_words_of_the_names_tell_the_sets(names, files, tmp_path):
    for name in names:
        layouts.text(tmp_path / f"{name}.csv", layouts.columns())
    found = find_sources(tmp_path, Reading(0.2))
    assert {split: len(source.files) for split, source in found.items()} == files


@pytest.mark.parametrize("other", ["notes", "Dvalidation", "latest"])
def test_a_file_beside_two_sets_is_of_one_of_them(other, tmp_path):
    for name in ("Dtrain", "Dtest", other):
        layouts.text(tmp_path / f"{name}.csv", layouts.columns())
    says = rf"{other}\.csv: lies beside 'Dtrain\.csv', .* name each file train or test, or move"
    with pytest.raises(DataError, match=says):
        find_sources(tmp_path, Reading(0.2))


@pytest.mark.parametrize("split", ["tset.csv", "spam", 0.5])
@pytest.mark.parametrize("layout", [layouts.two_files, layouts.npz, layouts.hugging_face])
def test_a_split_of_what_has_a_test_set_is_refused(layout, split, tmp_path):
    path = layout(tmp_path)
    saved = layout is layouts.hugging_face and isinstance(split, str)
    says = "no such split" if saved else "has its own test set; leave it out"
    with pytest.raises(DataError, match=rf"dataset\.split='?{split}'?: .*{says}"):
        read(path, tmp_path / "data", **{**layouts.VECTORS[layout], "split": split})


@pytest.mark.parametrize("layout", [layouts.as_csv, layouts.arrow_file])
def test_a_fraction_divides_rows_once_whatever_the_batches(layout, tmp_path):
    path = layout(tmp_path)  # one batch, or three
    fields = {**layouts.NAMED, "features": ["first", "second"], "split": 0.34}
    splits = read(path, tmp_path / "data", **fields)
    orders = [in_order(splits[name], X, np.ones(6, bool)) for name in ("train", "test")]
    assert [len(order) for order in orders] == [4, 2]
    assert sorted([*orders[0], *orders[1]]) == [0, 1, 2, 3, 4, 5]
    assert orders[1] == np.sort(stream(0, "files").permutation(6)[:2]).tolist() != [4, 5]


def test_the_line_for_pickles_converts_them(tmp_path):
    """PFLlib writes each client's samples as one pickled mapping."""
    for path in layouts.pfllib(tmp_path).rglob("*.npz"):
        arrays = dict(np.load(path))
        np.savez_compressed(path, data=arrays)
    with pytest.raises(DataError, match=r"train/0\.npz: 'data' is a pickle") as caught:
        read(tmp_path, tmp_path / "data")
    (code, files) = re.findall(r'python -c "(.*)" (.*), of files', str(caught.value))[0]
    paths = [path for pattern in files.split() for path in sorted(tmp_path.glob(pattern))]
    subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True)
    splits = read(tmp_path, tmp_path / "data")
    assert len(splits["train"]) == 4 and in_order(splits["test"], X, SETS["test"]) == [4, 5]


def test_colour_images_are_resized_and_channels_come_first(tmp_path):
    from PIL import Image

    noise = np.random.default_rng(1).integers(256, size=(4, 6, 5, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        folder = tmp_path / "given" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    np.savez(tmp_path / "given.npz", x=noise, y=[0, 1, 0, 1])
    plain = read(tmp_path / "given", tmp_path / "data", split=0.25)
    arrays = read(tmp_path / "given.npz", tmp_path / "data", split=0.25)
    small = read(tmp_path / "given", tmp_path / "data", split=0.25, image_size=3)
    assert small["train"].x.shape == (3, 3, 3, 3)
    found = np.concatenate([plain[name].x for name in ("train", "test")])
    same = np.concatenate([arrays[name].x for name in ("train", "test")])
    expected = {pixels.transpose(2, 0, 1).tobytes() for pixels in noise}
    assert {each.tobytes() for each in found} == {each.tobytes() for each in same} == expected


def test_grey_images_of_16_bits_keep_their_levels(tmp_path):
    from PIL import Image

    deep = np.random.default_rng(1).integers(2**16, size=(4, 3, 5), dtype=np.uint16)
    for number, pixels in enumerate(deep):
        folder = tmp_path / "given" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    splits = read(tmp_path / "given", tmp_path / "data", split=0.25)
    found = np.concatenate([splits[name].x for name in ("train", "test")])
    assert found.dtype == np.float32
    in_rank = [part[np.argsort(part[..., 0, 0].ravel())] for part in (found, deep[:, None])]
    assert np.allclose(in_rank[0] * (2**16 - 1), in_rank[1], rtol=0, atol=0.01)
    decoded = dataset(tmp_path / "given").decode(torch.tensor(found))
    assert np.array_equal(decoded.numpy(), found)
    small = read(tmp_path / "given", tmp_path / "data", split=0.25, image_size=2)
    assert small["train"].x.shape == (3, 1, 2, 2) and 0.1 < small["train"].x[:].mean() < 0.9
    Image.fromarray(np.zeros((3, 5), np.uint8)).save(tmp_path / "given/b/9.png")
    with pytest.raises(DataError, match=r"b/9\.png: differs from other images in its bits"):
        read(tmp_path / "given", tmp_path / "data", split=0.25)


@pytest.mark.parametrize("coloured", [0, 5])
def test_one_image_of_colours_makes_colours_of_all(tmp_path, monkeypatch, coloured):
    """Whichever it is: a grey one has its value in each channel. Heads are read two by two."""
    from PIL import Image

    monkeypatch.setattr(pictures, "HEADS", 2)
    given = np.random.default_rng(1).integers(256, size=(7, 4, 3), dtype=np.uint8)
    colours = np.repeat(given[:, None], 3, axis=1)
    colours[coloured, 0] //= 2
    for number in range(7):
        image = Image.fromarray(given[number])
        if number == coloured:
            image = Image.fromarray(colours[number].transpose(1, 2, 0))
        (tmp_path / "given" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "given" / "ab"[number % 2] / f"{number}.png")
    splits = read(tmp_path / "given", tmp_path / "data", split=0.4)
    found = [*splits["train"].x, *splits["test"].x]
    assert {each.tobytes() for each in found} == {each.tobytes() for each in colours}


@pytest.mark.parametrize("shape", [(24, 2), (5, 5), (4, 6, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, bool])
def test_arrays_that_are_no_bytes_keep_their_shape(tmp_path, shape, dtype):
    x = np.random.default_rng(0).integers(2, size=(6, *shape)).astype(dtype)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(6) % 2)
    found = read(tmp_path / "t.npz", tmp_path / "data", split=0.5)["train"].x
    assert found.shape == (3, *shape) and found.dtype == np.float32
    assert {*map(np.ndarray.tobytes, found)} < {*map(np.ndarray.tobytes, x.astype(np.float32))}
    np.savez(tmp_path / "t.npz", x=x, age=np.arange(6), y=np.arange(6) % 2)
    found = read(tmp_path / "t.npz", tmp_path / "data", split=0.5)["train"].x
    assert found.shape == (3, 1 + x[0].size)  # no image, which would be the only input


def test_bytes_are_scaled_alone_or_with_others(tmp_path):
    x = (np.arange(40).reshape(10, 4) * 6).astype(np.uint8)
    y = np.arange(10) % 2
    np.savez(tmp_path / "alone.npz", x=x, y=y)
    np.savez(tmp_path / "others.npz", x=x, age=np.arange(10.0), y=y)
    inputs = []
    for name in ("alone", "others"):
        path = tmp_path / f"{name}.npz"
        stored = torch.tensor(np.asarray(read(path, tmp_path / "data")["train"].x[:]))
        inputs.append(dataset(path).decode(stored))
    assert torch.equal(inputs[0], inputs[1][:, :4]) and inputs[0].max() <= 1


def test_grey_images_of_tff_have_a_channel(tmp_path):
    path = layouts.tff_images(tmp_path)
    assert read(path, tmp_path / "data")["train"].x.shape[1:] == (1, 4, 4)


def test_changed_files_and_settings_are_prepared_anew(tmp_path):
    path = layouts.as_csv(tmp_path)
    fields = {**layouts.NAMED, "split": "part"}

    def place(**more: Any) -> Path:
        return prepared(dataset(path, **fields, **more), tmp_path / "data", lambda *_: None)[
            "train"
        ]

    first = place()
    assert place() == first and place(standardise=True) != first
    changed = path.read_text().replace("7.5", "9.5").replace("0.5,2", "4.5,2")
    path.write_text(changed)
    assert place() != first
    assert 4.5 in read(path, tmp_path / "data", **fields)["train"].x


def test_a_regression_may_have_several_numbers_a_sample(tmp_path):
    """Of arrays alone: no column is a plain number."""
    x, y = np.random.default_rng(0).random((2, 5, 3))
    np.savez(tmp_path / "t.npz", x=x, y=y[:, :2])
    splits = read(tmp_path / "t.npz", tmp_path / "data", task="regression")
    assert {len(splits["train"]), len(splits["test"])} == {4, 1}
    found = {
        each.tobytes(): tuple(to)
        for s in splits.values()
        for each, to in zip(s.x, s.y, strict=True)
    }
    given = zip(x.astype(np.float32), y[:, :2].astype(np.float32), strict=True)
    assert found == {each.tobytes(): tuple(to) for each, to in given}


def test_a_row_group_of_parquet_is_not_read_whole(tmp_path):
    numbers = np.random.default_rng(0).random(2**20)
    table = pa.table({"a": numbers})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=len(numbers), use_dictionary=False)
    before, most, found = pa.total_allocated_bytes(), 0, []
    for batch in tables.table([tmp_path / "t.parquet"]).read(("a",)):
        most = max(most, pa.total_allocated_bytes() - before)
        found.append(batch["a"].to_numpy().copy())
    assert np.array_equal(np.concatenate(found), numbers) and 0 < most < numbers.nbytes / 2


def test_a_line_of_json_may_be_long(tmp_path):
    """Longer than the blocks of a megabyte in which Arrow reads JSON by default."""
    draw = np.random.default_rng(0)
    rows = [{"x": draw.random(80_000).tolist(), "y": y} for y in (0, 1, 0, 1)]
    lines = [*map(json.dumps, rows)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert min(map(len, lines)) > 2**20
    splits = read(tmp_path / "t.jsonl", tmp_path / "data", split=0.25)
    assert splits["train"].x.shape == (3, 80_000)


@pytest.mark.parametrize("layout", [layouts.csv_gz, layouts.json_lines_gz, layouts.parquet])
def test_ends_of_names_in_capitals(layout, tmp_path):
    path = layout(tmp_path)
    path = path.rename(path.with_name(path.name.upper()))
    fields = {**layouts.VECTORS[layout], "features": ["first", "second"]}
    assert len(read(path, tmp_path / "data", **fields)["train"]) == 4


@pytest.mark.parametrize(
    ("layout", "pipe"),
    [
        (layouts.by_class, "train/no/9.png"),
        (layouts.with_labels, "images/0.png"),
        (layouts.two_files, "train-2.csv"),
        (layouts.npy, "z_train.npy"),
        (layouts.leaf, "train/more.json"),
        (layouts.pfllib, "train/7.npz"),
        (layouts.hugging_face, "train/data-00000-of-00001.arrow"),
        (layouts.as_csv, "mails.csv"),
    ],
)
def test_a_pipe_is_not_waited_for(layout, pipe, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    path, known = layout(folder), {**layouts.VECTORS, **layouts.IMAGES}
    (folder / pipe).unlink(missing_ok=True)
    os.mkfifo(folder / pipe)
    with pytest.raises(DataError, match=rf"{re.escape(pipe)}: is (no file|neither a file nor)"):
        read(path, tmp_path / "data", **known[layout])


@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_lists_of_decimals_are_finite_in_float32(tmp_path, missing):
    wide = pa.list_(pa.decimal256(60, 2))
    table = pa.table({"a": pa.array([[1, 10**50]] * 6, wide), "y": [0, 1] * 3})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'a': holds 1e\+50; must be finite"):
        read(tmp_path / "t.parquet", tmp_path / "data", target="y", missing=missing)
    narrow = table.slice(0).set_column(0, "a", pa.array([[1, 2]] * 6, wide))
    pq.write_table(narrow, tmp_path / "n.parquet")
    found = read(tmp_path / "n.parquet", tmp_path / "data", target="y")["train"]
    assert found.x.dtype == np.float32 and found.x[0].tolist() == [1, 2]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_dates_in_text_are_words(tmp_path, suffix, monkeypatch):
    """In each block of lines, whether the others look like dates or not."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 100)
    dates = ["2020-01-01", "2020-01-02", "2020-01-01", "never", "2020-01-02 10:00"]
    rows = [{"day": day, "y": row % 2} for row, day in enumerate(dates)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    layouts.text(tmp_path / "t.csv", {"day": dates, "y": [row["y"] for row in rows]})
    (source,) = find_sources(tmp_path / f"t.{suffix}", Reading(0.2)).values()
    assert [word for batch in source.read(("day",)) for word in batch["day"].to_pylist()] == dates


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (layouts.with_labels, {"target": "spam", "split": "part"}),
        (layouts.hugging_face_images, {}),
    ],
)
def test_images_are_the_inputs_without_the_columns_beside_them(layout, more, tmp_path):
    (tmp_path / "given").mkdir()
    path = layout(tmp_path / "given")
    found = read(path, tmp_path / "data", **more)["train"]
    assert found.x.shape[1:] == (1, 4, 4)


def test_other_files_may_lie_beside_the_folders_of_classes(tmp_path):
    layouts.by_class(tmp_path / "given")
    for folder in ("given", "given/train", "given/test"):
        (tmp_path / folder / "readme.txt").write_text("a licence")
    assert len(read(tmp_path / "given", tmp_path / "data")["train"]) == 4
    assert len(read(tmp_path / "given/train", tmp_path / "other", split=0.25)["train"]) == 3


@pytest.mark.parametrize("layout", [layouts.as_csv, layouts.csv_zip])
def test_an_error_of_a_kind_of_its_own_is_passed_on(layout, tmp_path):
    class StoppedError(DataError):
        def __init__(self, what: str, step: int) -> None:
            super().__init__(f"{what} in step {step}")

    def stop(*_: Any) -> None:
        raise StoppedError("stopped", 1)

    (tmp_path / "given").mkdir()
    path, fields = layout(tmp_path / "given"), layouts.VECTORS[layout]
    with pytest.raises(StoppedError, match=r"^stopped in step 1$"):
        prepared(dataset(path, **fields), tmp_path / "data", stop)
