"""Columns of tables as inputs and targets: words, missing values, figures, regression."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.api.scoring import REGRESSION
from raysim.config import parse_override
from raysim.errors import DataError
from raysim.federation.prepared import network_size, notes_of, open_prepared, prepared
from raysim.workloads.datasets.files import samples, tables, targets
from raysim.workloads.datasets.files.columns import Figures, inputs
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_formats import dataset, read

DRAW = np.random.default_rng(0)
ROWS = {
    "city": ["Rome", "Oslo", "Rome", "", "Lima", "Bonn"],
    "size": ["1", "4", "", "3", "100", "5"],
    "month": ["1", "2", "2", "12", "1", "12"],
    "price": ["10", "20", "30", "40.5", "50", "60"],
    "part": ["train", "train", "train", "train", "test", "test"],
}


@pytest.fixture
def table(tmp_path):
    layouts.text(tmp_path / "t.csv", ROWS)
    return tmp_path / "t.csv"


def splits(table, **fields):
    chosen = {"target": "price", "task": "regression", "split": "part", "missing": "zero"}
    return read(table, table.parent / "data", **{**chosen, **fields})


def test_words_are_one_input_each_and_others_of_the_test_set_are_none(table):
    found = splits(table, features=["city"])
    assert found["train"].x.tolist() == [[0, 1], [1, 0], [0, 1], [0, 0]]  # Oslo, Rome
    assert found["test"].x.tolist() == [[0, 0], [0, 0]]


def test_numbers_are_words_if_asked(table):
    found = splits(table, features=["month"], categories=["month"])
    assert found["train"].x.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]]  # 1, 12, 2
    assert splits(table, features=["month"])["train"].x.tolist() == [[1], [2], [2], [12]]


@pytest.mark.parametrize(("missing", "filled"), [("zero", 0.0), ("mean", 8 / 3)])
def test_missing_numbers_are_filled_with_the_training_figures(table, missing, filled):
    found = splits(table, features="size", missing=missing)
    assert np.allclose(found["train"].x[:, 0], [1, 4, filled, 3])
    assert found["test"].x[:, 0].tolist() == [100, 5]


@pytest.mark.parametrize("typed", [["city", "size"], "city,size", "city, size", "[city,size]"])
def test_names_as_they_are_typed(table, typed):
    expected = splits(table, features=["city", "size"], missing="zero")
    found = splits(table, features=typed, missing="zero")
    assert np.array_equal(found["train"].x, expected["train"].x)


@pytest.mark.parametrize("client", [None, "part"])
def test_columns_that_are_left_out_are_no_inputs_and_decide_nothing(table, client):
    """The missing values of `city` and `size` drop no row."""
    more = {"client": client, "missing": "refuse", "split": 0.5, "target": "month"}
    found = splits(table, leave_out="city,size,part", **more)
    prices = [x for split in found.values() for x in split.x[:, 0]]
    assert sorted(prices) == [10, 20, 30, 40.5, 50, 60]


@pytest.mark.parametrize("name", ["my notes", "a, b", "[a]", "12", "none", "it's", '"x"'])
def test_the_setting_that_a_message_names_leaves_the_column_out(tmp_path, name):
    rows = [{name: {"inner": row}, "x": row, "y": row % 2} for row in range(5)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError) as caught:
        read(tmp_path / "t.jsonl", tmp_path / "data", target="y")
    advice = str(caught.value).rpartition("; ")[2].removesuffix(" goes on without it")
    (typed,) = shlex.split(advice)
    left_out = parse_override(typed)[1]
    found = read(tmp_path / "t.jsonl", tmp_path / "data", target="y", leave_out=left_out)
    assert found["train"].x.shape == (4, 1)


def test_rows_that_lack_a_value_are_dropped(table):
    found = splits(table, features=["city", "size"], missing="drop")
    assert found["train"].y.tolist() == [10, 20] and found["test"].y.tolist() == [50, 60]
    assert found["train"].x.tolist() == [[0, 1, 1], [1, 0, 4]]
    fields = {"target": "price", "task": "regression", "split": "part", "missing": "drop"}
    assert notes(table, features=["city", "size"], **fields)[0] == (
        "2 of 6 rows lack a value, and are left out"
    )


def notes(path, **fields):
    """Return the lines after that on how the columns were read."""
    return notes_of(prepared(dataset(path, **fields), path.parent / "data", lambda *_: None))[1:]


@pytest.mark.parametrize(("missing", "filled"), [("mean", (2.5 + 4) / 2), ("zero", 0.0)])
def test_rows_without_a_target_or_a_client_are_left_out_where_features_are_filled(
    tmp_path, missing, filled
):
    """Nothing is learned of them: 9 and `x` are in no mean, word or class."""
    given = {
        **{"a": ["2.5", "", "9", "9", "4", ""], "w": ["u", "v", "x", "x", "", "u"]},
        **{"site": ["s", "s", "s", "", "t", "t"], "y": ["1", "0", "", "z", "1", "0"]},
        "part": ["train"] * 5 + ["test"],
    }
    layouts.text(tmp_path / "t.csv", given)
    fields = {"target": "y", "client": "site", "split": "part", "missing": missing}
    found = read(tmp_path / "t.csv", tmp_path / "data", **fields)
    expected = [[2.5, 1, 0], [filled, 0, 1], [4, 0, 0]]
    assert found["train"].x.tolist() == expected and found["train"].y.tolist() == [1, 0, 1]
    assert found["test"].x.tolist() == [[filled, 1, 0]]
    assert notes(tmp_path / "t.csv", **fields)[0] == (
        "2 of 6 rows lack a value of 'y' or 'site', and are left out"
    )


VECTORS = np.tile([[1.0, -60.0]], (10, 1))
SIZES = {
    "small": ({"a": [9.0] * 10}, {}, None),
    "number": ({"a": [1.0] * 9 + [-79.0], "b": [0.5] * 10}, {}, "'a' up to 79; dataset.standard"),
    "standardised": ({"a": [1.0] * 9 + [79.0]}, {"standardise": True}, None),
    "left out": ({"a": [79.0] * 10, "b": [0.5] * 10}, {"leave_out": "a"}, None),
    "five": ({n: [70.0] * 10 for n in "abcde"}, {}, "'c' up to 70 and 2 more; dataset.standardise"),
    "vectors": ({"a": VECTORS}, {}, "'a' up to 60; dataset.standardise=true"),
    "scaled vectors": ({"a": VECTORS}, {"standardise": True}, None),
    "images": ({"a": np.full((10, 2, 2), 255.0)}, {}, "'a' up to 255; divide them, by 255 say"),
    "bytes": ({"a": np.full((10, 2, 2), 255, np.uint8)}, {}, None),
    "tokens": ({"a": np.full((10, 3), 700)}, {"categories": "a"}, None),
}


@pytest.mark.parametrize("case", SIZES)
def test_inputs_of_raw_size_are_told_before_training(tmp_path, case):
    given, fields, told = SIZES[case]
    np.savez(tmp_path / "t.npz", **given, y=np.arange(10) % 2)
    found = [line for line in notes(tmp_path / "t.npz", **fields) if "raw size" in line]
    assert found == [] if told is None else told in found[0]


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_nothing_is_learned_from_rows_that_are_dropped_for_their_arrays(tmp_path, suffix):
    """The last row of the training set alone has the word `far`, the label z and no number."""
    lists = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [float("nan"), 1.0], [7.0, 8.0]]
    given = {
        **{"a": lists, "word": ["low", "high", "low", "far", "low"]},
        **{"number": ["1", "2", "3", "none", "4"], "y": ["p", "q", "p", "z", "q"]},
        **{"part": ["train"] * 4 + ["test"]},
    }
    path = tmp_path / f"t.{suffix}"
    if suffix == "npz":
        np.savez(path, **given)
    else:
        pq.write_table(pa.table(given), path)
    fields = {"target": "y", "split": "part", "missing": "drop"}
    found = read(path, tmp_path / "data", **fields, features=["word", "number", "a"])
    assert found["train"].x.tolist() == [[0, 1, 1, 1, 2], [1, 0, 2, 3, 4], [0, 1, 3, 5, 6]]
    assert found["test"].x.tolist() == [[0, 1, 4, 7, 8]]
    chosen = dataset(path, **fields, features=["a"])
    classes = prepared(chosen, tmp_path / "data", lambda *_: None)["classes"]
    assert open_prepared(chosen, classes).x.tolist() == ["p", "q"]


def test_missing_values_are_refused_with_the_first_row_of_them(table):
    with pytest.raises(DataError, match=r"column 'size': 1 value is missing, in row 3"):
        splits(table, features=["size"], missing="refuse")
    with pytest.raises(
        DataError, match=r"column 'city': 1 value is .* row 4; dataset\.missing=drop"
    ):
        splits(table, target="city", task="classification", features=["price"], missing="refuse")


def test_a_number_that_is_none_is_missing(tmp_path):
    given = {
        **{"a": [1.0, float("nan"), 3.0, 4.0, 5.0], "b": ["1", "2", "-NaN", "4", "5"]},
        **{"y": [0, 1, 0, 1, 0], "part": ["train"] * 4 + ["test"]},
    }
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    path, root, fields = tmp_path / "t.parquet", tmp_path / "data", {"target": "y", "split": "part"}
    with pytest.raises(DataError, match=r"column 'a': 1 value is missing, in row 2"):
        read(path, root, features=["a"], **fields)
    with pytest.raises(DataError, match=r"column 'b': 1 value is missing, in row 3"):
        read(path, root, features=["b"], **fields)
    assert read(path, root, missing="drop", **fields)["train"].x.tolist() == [[1, 1], [4, 4]]


def test_numbers_are_standardised_with_the_training_figures(table):
    found = splits(
        table, features=["price", "month"], target="size", standardise=True, missing="drop"
    )
    prices, months = np.array([10, 20, 40.5]), np.array([1, 2, 12])  # the third lacks its target
    means, deviations = [prices.mean(), months.mean()], [prices.std(), months.std()]
    given = np.array([[10, 1], [20, 2], [40.5, 12], [50, 1], [60, 12]])
    x = np.concatenate([found["train"].x, found["test"].x])
    assert np.allclose(x, (given - means) / deviations, atol=1e-6)


def test_arrays_are_standardised_number_by_number_and_images_stay(tmp_path):
    (tmp_path / "given").mkdir()
    found = read(layouts.npz(tmp_path / "given"), tmp_path / "data", standardise=True)["test"]
    train, test = (layouts.X[rows] for rows in layouts.SETS.values())
    assert np.allclose(found.x, (test - train.mean(0)) / train.std(0), atol=1e-6)
    images = layouts.image_arrays(tmp_path)
    assert np.array_equal(
        read(images, tmp_path / "data", standardise=True)["test"].x,
        read(images, tmp_path / "data")["test"].x,
    )
    x, is_test = DRAW.normal(3, 2, (9, 2, 5)), np.arange(9) > 5
    np.savez(
        tmp_path / "series.npz",
        **{"x_train": x[~is_test], "y_train": np.arange(6) % 2},
        **{"x_test": x[is_test], "y_test": np.arange(3) % 2},
    )
    series = read(tmp_path / "series.npz", tmp_path / "data", standardise=True)["test"]
    train = x[~is_test]
    assert np.allclose(series.x, (x[is_test] - train.mean(0)) / train.std(0), atol=1e-6)


def test_free_text_is_left_out_if_asked_and_told(tmp_path):
    """More than 20 words, nearly all different, are text; so are more than 1000."""
    count = 1300
    given = {
        **{
            "name": [f"n{row}" for row in range(count)],
            "many": [f"m{row % 1100}" for row in range(count)],
        },
        **{"word": ["low", "high"] * (count // 2), "y": ["no", "yes"] * (count // 2)},
    }
    layouts.text(tmp_path / "t.csv", given)
    fields = {"target": "y", "split": 0.1, "texts": "leave_out"}
    found = read(tmp_path / "t.csv", tmp_path / "data", **fields)
    assert found["train"].x.shape == (1170, 2)
    told = [line for line in notes(tmp_path / "t.csv", **fields) if line.startswith("left out")]
    assert told == [
        f"left out '{name}': more than 1000 of its 1170 training values differ"
        for name in ("name", "many")
    ]
    with pytest.raises(DataError, match=r"left out 'name': .*no other is left"):
        read(tmp_path / "t.csv", tmp_path / "data", **fields, features="name")
    with pytest.raises(DataError, match=r"'many' has more than 1000 different words"):
        read(
            tmp_path / "t.csv", tmp_path / "data", **fields | {"texts": "refuse"}, leave_out="name"
        )


def test_missing_values_that_are_filled_in_are_told(table):
    told = notes(table, target="price", task="regression", split="part", missing="mean")
    assert "2 missing values of 'city', 'size' are filled in with their training mean" in told[0]


def test_columns_may_be_named_by_whole_numbers(tmp_path):
    layouts.text(tmp_path / "t.csv", {"0": ["1", "2"] * 4, "1": ["a", "b"] * 4, "2": ["x"] * 8})
    chosen = dict(map(parse_override, ["target=1", "features=0", "leave_out=[2]"]))
    assert read(tmp_path / "t.csv", tmp_path / "data", **chosen)["train"].x.shape == (6, 1)


def test_a_regression_has_one_output_and_its_own_metrics(table):
    found = splits(table, features=["month"])
    chosen = dataset(table, target="price", task="regression")
    assert found["train"].y.dtype == np.float32
    assert network_size(chosen, lambda: found["train"]) == ((1,), 1)
    assert chosen.scoring is REGRESSION


def test_wide_inputs_are_written_in_parts(tmp_path, monkeypatch):
    """Of 20 inputs in float32 a row, three rows a part."""
    monkeypatch.setattr(samples, "PART_BYTES", 3 * 20 * 4)
    encoded = []

    def counted(*given):
        encoded.append(inputs(*given))
        return encoded[-1]

    monkeypatch.setattr(samples, "inputs", counted)
    given = {"w": [f"w{i}" for i in range(20)], "y": [0, 1] * 10, "part": ["train"] * 20}
    rest = {"w": ["w3"], "y": [1], "part": ["test"]}
    table = pa.concat_tables([pa.table(given), pa.table(rest)])
    pq.write_table(table, tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet", tmp_path / "data", target="y", split="part")["train"]
    order = np.argsort([f"w{i}" for i in range(20)])
    assert np.array_equal(found.x[:], np.eye(20)[:, order]) and max(map(len, encoded)) == 3


def test_a_late_word_makes_words_of_the_numbers_before_it(tmp_path):
    """In another batch: all values before it are numbers."""
    count = 70_000
    given = {
        "code": ["7"] * count + ["x"] * (count + 2) + ["7"],
        "y": [0, 1] * count + [0, 1, 1],
        "part": ["train"] * (2 * count + 2) + ["test"],
    }
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet", tmp_path / "data", target="y", split="part")
    assert found["train"].x[[0, -1]].tolist() == [[1, 0], [0, 1]]
    assert found["test"].x.tolist() == [[1, 0]]


@pytest.mark.parametrize("second", ["1,5", "1,234", "1.234,5"])
def test_numbers_with_commas_are_words_only_if_asked(tmp_path, second):
    """Which comma it is, cannot be told; numbers without any stand beside them."""
    given = {"a": ["2", second, "2", second, "2"], "y": list("01011")}
    layouts.text(tmp_path / "t.csv", given)
    with pytest.raises(DataError, match=r"column 'a': '1.*' in row 2 is a number with .*; write 1"):
        read(tmp_path / "t.csv", tmp_path / "data", target="y")
    with pytest.raises(DataError, match=r"'a': holds numbers with commas; must hold numbers, as"):
        read(tmp_path / "t.csv", tmp_path / "data", target="a", task="regression")
    found = read(tmp_path / "t.csv", tmp_path / "data", target="y", categories=["a"])
    assert {*map(tuple, found["train"].x.tolist())} == {(0, 1), (1, 0)}


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("links;a, b;spam", ("links", "a, b", "spam")),
        ("a;b,c;d,e;y", ("a", "b,c", "d,e", "y")),
        ("a;b,y", ("a;b", "y")),
        ("a|b;c|y", ("a", "b;c", "y")),
        ('"a;b;c",y', ("a;b;c", "y")),
        ("y", ("y",)),
    ],
)
def test_the_most_frequent_separator_of_the_header_is_meant(tmp_path, header, names):
    (tmp_path / "t.csv").write_text(f"{header}\n")
    assert tables.table([tmp_path / "t.csv"]).names == names


def test_pairs_and_dates_are_words(tmp_path):
    given = {"a": ["1,2,3,4", "1,2,3", "4", "4"], "b": ["01.02.2024"] * 4, "y": list("0101")}
    layouts.text(tmp_path / "t.csv", {**given, "part": ["train"] * 3 + ["test"]})
    found = read(tmp_path / "t.csv", tmp_path / "data", target="y", split="part")
    assert found["train"].x.tolist() == [[0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]]


def test_values_beside_blanks_and_question_marks(table):
    """As in `adult.data`; the column without a name is the index that pandas writes."""
    given = {"": list("01234"), "size": ["1", " ? ", "3", "4", " NA"], "price": list("12345")}
    sites = {"part": ["train "] * 4 + [" test"], "site": ["a ", "a", " b", "b", "a"]}
    layouts.text(table, {**given, **sites})
    found = splits(table, client="site")
    assert found["train"].x.tolist() == [[1], [0], [3], [4]] and found["test"].x.tolist() == [[0]]
    assert found["train"].columns["client"].tolist() == ["a", "a", "b", "b"]


def test_blanks_beside_words_and_zeros_before_numbers(tmp_path):
    """Blanks make no other client, zeros another label."""
    given = {"site": [" u", "u", "v ", "v"], "y": ["01", "1", "2", "2 "], "a": list("1234")}
    given["part"] = ["train"] * 3 + ["test"]
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    layouts.text(tmp_path / "t.csv", given)
    for path in (tmp_path / "t.parquet", tmp_path / "t.csv"):
        fields = {"target": "y", "split": "part", "client": "site", "features": ["a"]}
        found = read(path, tmp_path / "data", **fields)
        assert found["train"].columns["client"].tolist() == ["u", "u", "v"]
        assert found["train"].y.tolist() == [0, 1, 2] and found["test"].y.tolist() == [2]
        classes = prepared(dataset(path, **fields), tmp_path / "data", lambda *_: None)["classes"]
        assert open_prepared(dataset(path), classes).x.tolist() == ["01", "1", "2"]


def test_classes_and_rows_have_limits(table, monkeypatch):
    """Of six rows, four for training, with labels 1, 2, 2 and 12."""
    fields = {"target": "month", "features": ["price"], "task": "classification"}
    splits(table, **fields)
    monkeypatch.setattr(targets, "MOST_CLASSES", 2)
    with pytest.raises(DataError, match=r"dataset\.target='month': has more than 2 different"):
        splits(table, **fields, standardise=True)
    monkeypatch.setattr(samples, "MOST", 5)
    with pytest.raises(DataError, match=r"t\.csv: has more than 5 rows"):
        splits(table, **fields, standardise=True)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("values", [[0.1], [0.1 + 0.2, 0.3], [2.0**53, 2.0**53 + 2], [0.0]])
def test_equal_numbers_have_a_deviation_of_one(values, width):
    """Equal but for rounding, however many they are."""
    figures = Figures()
    for count in (3, 70_000):
        figures.see(np.resize(values, (width, count)).T)
    assert figures.deviation.tolist() == [1] * width


@pytest.mark.parametrize("lists", [False, True])
def test_times_in_nanoseconds_are_standardised(tmp_path, lists):
    """Float64 tells them apart to 256; they differ by a millisecond."""
    offsets = np.random.default_rng(0).normal(0, 1e6, (40_000, 2)).astype(np.int64)
    times = 1_700_000_000_000_000_000 + offsets
    part = np.where(np.arange(40_000) < 39_000, "train", "test")
    given = {"t": [*times] if lists else times[:, 0], "y": np.arange(40_000) % 2, "part": part}
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    fields = {"target": "y", "split": "part", "standardise": True}
    found = read(tmp_path / "t.parquet", tmp_path / "data", **fields)["train"].x[:]
    known = offsets[:39_000, : found.shape[1]]
    assert np.allclose(found, (known - known.mean(0)) / known.std(0), atol=1e-2)


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.none(), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_figures_do_not_depend_on_the_batches(values, cuts):
    numbers = np.array([np.nan if v is None else v for v in values])[:, None] + 1e7
    figures = Figures()
    for part in np.split(numbers, sorted(cuts)):
        figures.see(part)
    there = numbers[~np.isnan(numbers)]
    if len(there):
        assert np.isclose(figures.mean[0], there.mean(), rtol=1e-9)
        deviation = there.std() if there.std() > 1e-4 else figures.deviation[0]
        assert np.isclose(figures.deviation[0], deviation, rtol=1e-3)


LARGE = 2**53
NEIGHBOURS = [LARGE, LARGE + 1, LARGE + 2]


def write_column(folder, suffix, values):
    """Write values as the column `v` of a table, with a target and a split."""
    part, y = ["train"] * len(values) + ["test"], [0, 1] * len(values)
    given = {"v": [*values, values[0]], "y": y[: len(values) + 1], "part": part}
    if suffix == "csv":
        layouts.text(folder / "t.csv", given)
    elif suffix == "jsonl":
        rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
        (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.table(given), folder / "t.parquet")
    return folder / f"t.{suffix}"


@pytest.mark.parametrize(
    ("suffix", "values"),
    [
        *[(suffix, NEIGHBOURS) for suffix in ("csv", "jsonl", "parquet")],
        ("csv", [2**63, 2**63 + 1, 2**63 + 2]),
        ("csv", [1, LARGE, LARGE + 1, 0.5]),
    ],
)
def test_large_integers_are_classes_of_their_own_and_numbers_to_rounding(tmp_path, suffix, values):
    path, root = write_column(tmp_path, suffix, values), tmp_path / "data"
    fields = {"split": "part", "features": ["y"]}
    found = read(path, root, target="v", **fields)["train"]
    assert len(set(found.y.tolist())) == len(values)
    chosen = prepared(dataset(path, target="v", **fields), root, lambda *_: None)["classes"]
    order = sorted(map(str, values)) if values is not NEIGHBOURS else [*map(str, values)]
    assert open_prepared(dataset(path), chosen).x.tolist() == order
    numbers = read(path, root, features=["v"], target="y", split="part")["train"].x
    assert np.array_equal(numbers[:, 0], np.array(values, np.float32))


@pytest.mark.parametrize("lack", [None, [None, 2.0], [float("nan"), 2.0]], ids=repr)
@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 2)], ids=str)
def test_a_list_that_lacks_a_number_is_missing(tmp_path, lack, kind):
    lists = [[1.0, 2.0], lack, [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    given = {"y": [0, 1, 0, 1, 0], "part": ["train"] * 4 + ["test"]}
    columns = {"a": pa.array(lists, kind), "none": pa.array([lack] * 5, kind)}
    pq.write_table(pa.table({**given, **columns}), tmp_path / "t.parquet")
    path, root, fields = tmp_path / "t.parquet", tmp_path / "data", {"target": "y", "split": "part"}
    for missing in ("refuse", "mean"):
        with pytest.raises(DataError, match=r"column 'a': 1 value is missing, in row 2; .*drop"):
            read(path, root, features=["a"], missing=missing, **fields)
        with pytest.raises(DataError, match=r"column 'none': 5 values are missing, .*=drop"):
            read(path, root, features=["none"], missing=missing, **fields)
    found = read(path, root, features=["a"], missing="drop", **fields)["train"]
    assert found.x.tolist() == [[1, 2], [3, 4], [5, 6]] and found.y.tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_arrays_of_integers_are_numbers_unless_they_are_categories(tmp_path, dtype):
    x = np.arange(12, dtype=dtype).reshape(6, 2)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(6) % 2)
    path, root = tmp_path / "t.npz", tmp_path / "data"
    for fields, expected in ({}, torch.float32), ({"categories": "x"}, torch.int64):
        found = read(path, root, **fields)["train"].x[:]
        decoded = dataset(path, **fields).decode(torch.tensor(np.asarray(found)))
        assert decoded.dtype == expected and len(found) == 5
        assert {*map(tuple, decoded.tolist())} < {*map(tuple, x.tolist())}


def test_lists_that_are_all_empty_are_refused(tmp_path):
    given = {"a": pa.array([[]] * 5, pa.list_(pa.float64())), "y": [0, 1, 0, 1, 0]}
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'a': its lists are empty; must hold numbers"):
        read(tmp_path / "t.parquet", tmp_path / "data", target="y")
