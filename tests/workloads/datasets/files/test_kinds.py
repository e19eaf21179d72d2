"""Kinds of columns: what is no number is refused or told, texts are refused, dates have parts."""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import DataError, SettingsError
from raysim.federation.prepared import notes_of, prepared
from raysim.workloads.datasets.files.kinds import NUMBER, Kind, as_numbers
from tests.workloads.datasets.files import layouts
from tests.workloads.datasets.files.test_formats import dataset, read

ROWS = 40
NUMBERS = [str(20 + row) for row in range(ROWS)]
TARGET = {"y": [row // 2 % 2 for row in range(ROWS)]}


def table(folder: Path, values: list[Any], suffix: str = "csv") -> Path:
    """Write a table of a column `a` and a target."""
    columns = {"a": values, **TARGET}
    if suffix == "csv":
        layouts.text(folder / "t.csv", columns)
    else:
        pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / f"t.{suffix}"


def note(path: Path, **fields: Any) -> str:
    """Return the line on how columns were read."""
    chosen = dataset(path, **{"target": "y", **fields})
    return notes_of(prepared(chosen, path.parent / "data", lambda *_: None))[0]


def put(*odd: str, row: int = 10) -> list[str]:
    return [*NUMBERS[:row], *odd, *NUMBERS[row + len(odd) :]]


IS_NOT = r"'a': 39 of its 40 values are numbers, '{}' in row 11 is not; leave it empty"
SIGNS = r"'a': '{}' in row {} is a number with signs or separated thousands; write 1.5"
REFUSED = {
    "a word": (put("unknown"), IS_NOT.format("unknown")),
    "a dash": (put("-"), IS_NOT.format("-")),
    "a bound": (put("<5"), IS_NOT.format("<5")),
    "a range": (put("3-5"), IS_NOT.format("3-5")),
    "None": (put("None"), IS_NOT.format("None")),
    "hexadecimal": (put("0x1f"), IS_NOT.format("0x1f")),
    "a fault of a spreadsheet": (put("#DIV/0!"), IS_NOT.format("#DIV/0!")),
    "another word among signs": (
        [*(f"{n}%" for n in NUMBERS[:39]), "?!"],
        "39 of its 40 .* row 40",
    ),
    "one percent": (put("1.5%"), SIGNS.format("1.5%", 11)),
    "percent": ([f"{n} %" for n in NUMBERS], SIGNS.format("20 %", 1)),
    "dollars": ([f"${n}.50" for n in NUMBERS], SIGNS.format(r"\$20.50", 1)),
    "euros": ([f"{n} €" for n in NUMBERS], SIGNS.format("20 €", 1)),
    "a currency's name": ([f"{n} EUR" for n in NUMBERS], SIGNS.format("20 EUR", 1)),
    "thousands by blanks": (put("1 500"), SIGNS.format("1 500", 11)),
    "thousands by apostrophes": (put("1'500'000.5"), "\"1'500'000.5\" in row 11 is a number"),
    "thousands by lines": (put("1_500"), SIGNS.format("1_500", 11)),
    "thousands of an account": (put("(1,500)"), SIGNS.format(r"\(1,500\)", 11)),
    "dollars and thousands": (put("$1,500.50"), SIGNS.format(r"\$1,500\.50", 11)),
    "other thousands": (put("1.500,50"), SIGNS.format(r"1\.500,50", 11) + " and 1500; dataset"),
    "mixed decimals": (
        put("20,5"),
        "'a': '20,5' in row 11 is a number with a comma; .*semicol",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_numbers_has_numbers_alone(tmp_path, case, suffix):
    values, says = REFUSED[case]
    path = table(tmp_path, values, suffix)
    with pytest.raises(DataError, match=f"column {says}" if says[0] == "'" else says) as caught:
        read(path, tmp_path / "data", target="y")
    assert "dataset.categories=a takes them for words, dataset.leave_out=a" in str(caught.value)
    asked = read(path, tmp_path / "data", target="y", categories="a")["train"]
    assert asked.x.shape[1] > 20 and {*asked.x.sum(1).tolist()} == {1}
    assert "words 'a'" in note(path, categories="a")


@pytest.mark.parametrize("word", ["20", "+20", "20.", ".5e2", "1E5", "-0", "0020"])
def test_numbers_as_they_may_be_written(tmp_path, word):
    assert read(table(tmp_path, put(word)), tmp_path / "data", target="y")["train"].x.shape[1] == 1


@given(st.text("0123456789.+-eE_, infaty", max_size=8).map(str.strip))
def test_numbers_are_those_that_arrow_reads(word):
    values = pa.array([word])
    is_number = as_numbers(values) is not None
    assert pa.compute.match_substring_regex(values, NUMBER)[0].as_py() is is_number or (
        word.lower().lstrip("+-") == "nan"
    )


def test_few_numbers_among_words_are_words(tmp_path):
    path = table(tmp_path, ["a", "b", "c", "1"] * (ROWS // 4))
    assert read(path, tmp_path / "data", target="y")["train"].x.shape[1] == 4


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_texts_are_refused_with_what_leaves_them_out(tmp_path, suffix):
    texts = [f"review {row} was {'good' if row % 3 else 'bad'}" for row in range(ROWS)]
    path = table(tmp_path, texts, suffix)
    says = r"column 'a': 32 of its 32 training values differ.* dataset\.leave_out=a goes on without"
    with pytest.raises(DataError, match=says):
        read(path, tmp_path / "data", target="y")
    assert read(path, tmp_path / "data", target="y", categories="a")["train"].x.shape[1] == 32
    half = table(tmp_path, texts[: ROWS // 2] * 2, suffix)
    assert read(half, tmp_path / "data", target="y")["train"].x.shape[1] <= 20


HOURS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=37 * row) for row in range(ROWS)]
PARTS = [[each.month, each.weekday(), each.hour] for each in HOURS]
WRITTEN: dict[str, tuple[list[Any], str, list[list[int]]]] = {
    "text": ([f"{each:%Y-%m-%d %H:%M}" for each in HOURS], "csv", PARTS),
    "text with T": ([each.isoformat() for each in HOURS], "csv", PARTS),
    "text with zones": ([f"{each.isoformat()}.25+02:00" for each in HOURS], "parquet", PARTS),
    "text of UTC": ([f"{each.isoformat()}Z" for each in HOURS], "csv", PARTS),
    "days": ([f"{each:%Y-%m-%d}" for each in HOURS], "csv", [[*p[:2], 0] for p in PARTS]),
    "dates": ([each.date() for each in HOURS], "parquet", [[*p[:2], 0] for p in PARTS]),
    "times": (HOURS, "parquet", PARTS),
    "times of a zone": (
        [each.replace(tzinfo=datetime.UTC) for each in HOURS],
        *("parquet", PARTS),
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_dates_become_month_weekday_and_hour(tmp_path, case):
    values, suffix, parts = WRITTEN[case]
    path = table(tmp_path, values, suffix)
    with pytest.raises(DataError, match=r"column 'a'.*; dataset\.dates=a makes month, weekday and"):
        read(path, tmp_path / "data", target="y")
    found = read(path, tmp_path / "data", target="y", dates="a")
    x = np.concatenate([found["train"].x, found["test"].x])
    assert sorted(x.tolist()) == sorted(parts)
    assert "read as: month, weekday and hour of 'a'; target" in note(path, dates="a")


def test_dates_are_filled_and_standardised_as_numbers(tmp_path):
    days = [f"{each:%Y-%m-%d %H:%M}" if row else "" for row, each in enumerate(HOURS)]
    path = table(tmp_path, days)
    with pytest.raises(DataError, match="column 'a': 1 value is missing, in row 1"):
        read(path, tmp_path / "data", target="y", dates="a")
    found = read(path, tmp_path / "data", target="y", dates="a", missing="mean", standardise=True)
    assert np.allclose(found["train"].x[:].mean(0), 0, atol=1e-5)


FORMS = {  # format of strftime: how the form is shown, and whether it has a time
    "%d.%m.%Y": ("DD.MM.YYYY", False),
    "%m/%d/%y": ("MM/DD/YY", False),
    "%m/%d/%Y": ("MM/DD/YYYY", False),
    "%m-%d-%Y %H:%M": ("MM-DD-YYYY hh:mm", True),
    "%m/%d/%Y %I:%M:%S %p": ("MM/DD/YYYY hh:mm:ss PM", True),
    "%d.%m.%YT%H:%M:%S.5Z": ("DD.MM.YYYY hh:mm:ss", True),
    "%d-%b-%y": ("DD-Mon-YY", False),
    "%d %B %Y": ("DD Mon YYYY", False),
    "%B %-d, %Y %-I:%M%p": ("Mon DD, YYYY hh:mm PM", True),
    "%Y/%m/%d": ("YYYY/MM/DD", False),
    "%Y-%-m-%-d": ("YYYY-MM-DD", False),
}


@pytest.mark.parametrize("form", FORMS)
def test_dates_may_have_any_form_that_is_one(tmp_path, form):
    told, has_time = FORMS[form]
    path = table(tmp_path, [each.strftime(form) for each in HOURS])
    with pytest.raises(DataError, match=r"column 'a'.*; dataset\.dates=a makes month, weekday and"):
        read(path, tmp_path / "data", target="y")
    found = read(path, tmp_path / "data", target="y", dates="a")
    x = np.concatenate([found["train"].x, found["test"].x])
    assert sorted(x.tolist()) == sorted(PARTS if has_time else [[*p[:2], 0] for p in PARTS])
    assert f"month, weekday and hour of 'a' ({told}); target" in note(path, dates="a")


OF_BOTH = [datetime.date(2024, row % 12 + 1, row % 9 + 1) for row in range(ROWS)]
UP_TO_2031 = [each.date() for each in HOURS]
SEVERAL = {  # format of strftime: dates, how its forms are shown, the first row that is several
    "%d.%m.%Y": (OF_BOTH, "DD.MM.YYYY or MM.DD.YYYY", 10),
    "%m/%d/%Y": (OF_BOTH, "DD/MM/YYYY or MM/DD/YYYY", 10),
    "%d-%m-%Y %H:%M": (OF_BOTH, "DD-MM-YYYY hh:mm or MM-DD-YYYY hh:mm", 10),
    "%y-%m-%d": (UP_TO_2031, "DD-MM-YY or YY-MM-DD", 1),
    "%y/%m/%d": (UP_TO_2031, "DD/MM/YY or YY/MM/DD", 1),
    "%d.%m.%y": (UP_TO_2031, "DD.MM.YY or YY.MM.DD", 1),
    "%m.%d.%y": (OF_BOTH, "DD.MM.YY or MM.DD.YY or YY.MM.DD", 1),
}
FIRSTS = {"d": "day", "m": "month", "y": "year"}


@pytest.mark.parametrize("form", SEVERAL)
def test_of_day_month_and_year_none_is_guessed(tmp_path, form):
    dates, forms, row = SEVERAL[form]
    days = [each.strftime(form) for each in dates]
    path, firsts = table(tmp_path, days), [FIRSTS[each[0].lower()] for each in forms.split(" or ")]
    says = f"dataset.dates_first={' or '.join(firsts)} says which"
    with pytest.raises(DataError) as refused:
        read(path, tmp_path / "data", target="y", dates="a")
    assert str(refused.value) == (
        f"column 'a': its dates, '{days[row - 1]}' in row {row} say, are {forms}; {says}"
    )
    told = f"it may hold dates, {forms}: dataset.dates=a makes month, weekday and hour of it, and "
    few = table(tmp_path, [days[row % 12] for row in range(ROWS)])
    assert f"12 inputs, as '{days[0]}' in row 1 is no number; {told}{says})" in note(few)
    chosen = {"dates": "a", "dates_first": FIRSTS[form[1]]}
    found = read(table(tmp_path, days), tmp_path / "data", target="y", **chosen)
    x = np.concatenate([found["train"].x, found["test"].x])
    assert sorted(x.tolist()) == sorted([each.month, each.weekday(), 0] for each in dates)


@pytest.mark.parametrize("first", ["day", "year"])
def test_what_comes_first_is_of_dates_that_are_several(tmp_path, first):
    path = table(tmp_path, [f"{each:%m/%d/%Y}" for each in HOURS])  # one form alone
    found = read(path, tmp_path / "data", target="y", dates="a", dates_first=first)
    assert {*found["train"].x[:, 0].tolist()} == {1, 2}
    if first == "year":
        path = table(tmp_path, [f"{each:%m/%d/%Y}" for each in OF_BOTH])
        with pytest.raises(DataError, match=r"are DD/MM/YYYY or MM/DD/YYYY; .*=day or month says"):
            read(path, tmp_path / "data", target="y", dates="a", dates_first=first)
    with pytest.raises(
        SettingsError, match=rf"^dataset\.dates_first={first}: needs dataset\.dates$"
    ):
        dataset(path, target="y", dates_first=first)


def test_dates_that_are_the_same_in_all_forms_are_read(tmp_path):
    days = ["5.5.2024", "6.6.2024", "12.12.2024", "5.5.2024"] * (ROWS // 4)
    found = read(table(tmp_path, days), tmp_path / "data", target="y", dates="a")
    x = np.concatenate([found["train"].x, found["test"].x])
    assert {*map(tuple, x.tolist())} == {(5, 6, 0), (6, 3, 0), (12, 3, 0)}


@pytest.mark.parametrize("wrong", ["02/29/2024", "2023-02-29", "soon"])
def test_what_is_no_date_is_refused(tmp_path, wrong):
    days = [f"{each:%Y-%m-%d}" if row != 4 else wrong for row, each in enumerate(HOURS)]
    with pytest.raises(
        DataError, match=f"column 'a': '{wrong}' in row 5 is no date of the form YY"
    ):
        read(table(tmp_path, days), tmp_path / "data", target="y", dates="a")
    with pytest.raises(
        DataError, match=r"'30\.02\.2024' in row 1 is no date as 2024-02-29 13:30, 29"
    ):
        read(table(tmp_path, ["30.02.2024", *days[1:]]), tmp_path / "data", target="y", dates="a")


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M"])
def test_a_wrong_date_is_found_among_thousands_of_others(form):
    days = [f"{HOURS[0] + datetime.timedelta(minutes=7 * n):{form}}" for n in range(5_000)]
    kind, begun = Kind({}), time.process_time()
    column = pa.field("a", pa.string())
    with pytest.raises(DataError, match="'soon' in row 5002 is no date of the form"):
        kind.see_dates(pa.array([*days, days[0], "soon", None]), column, lambda i: f"row {i + 1}")
    assert time.process_time() - begun < 5  # one at a time they take 10 seconds


def test_how_columns_were_read(tmp_path):
    """Rows that lack a value count, so that the row is that of the file."""
    given = {
        **{"": [*range(ROWS)], "size": NUMBERS, "age": ["", *NUMBERS[1:]]},
        **{"city": ["3", *["Rome", "Oslo", "Lima"] * 13], "zip": ["7", "8"] * 20, "id": NUMBERS},
        **{"site": ["a", "b"] * 20, **TARGET},
    }
    layouts.text(tmp_path / "t.csv", given)
    chosen = {"categories": "zip", "leave_out": "id", "client": "site", "missing": "drop"}
    assert note(tmp_path / "t.csv", **chosen) == (
        "samples of 7, read as: numbers 'size', 'age'; words 'city' (3 inputs, as 'Rome' in row 2"
        " is no number); words 'zip' (2 inputs); target 'y' (2 classes); clients 'site'; left out"
        " 'id'"
    )


@pytest.mark.parametrize(
    ("x", "fields", "told"),
    [
        (np.zeros((9, 24, 2)), {}, "samples of 24x2, read as: arrays 'x' (24x2 numbers); t"),
        (np.zeros((9, 24), int), {"categories": "x"}, "of 24, read as: arrays 'x' (24 categories)"),
        (
            *(np.zeros((9, 8, 8, 3), np.uint8), {}),
            "samples of 3x8x8, read as: images 'x' (8x8, 3 channels, scaled to [0, 1]); target",
        ),
        (np.zeros((9, 5), np.uint8), {}, "of 5, read as: bytes 'x' (5, scaled to [0, 1]); target"),
    ],
)
def test_how_arrays_were_read(tmp_path, x, fields, told):
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(9) % 2)
    assert told in note(tmp_path / "t.npz", **fields)


ODD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an empty column": ({"b": [""] * ROWS}, {}, r"'b': has no values; dataset\.leave_out=b goes"),
    "filled": (
        {"b": [""] * ROWS},
        {"missing": "mean"},
        r"'b': has no values; dataset\.leave_out=b",
    ),
    "dropped": (
        {"b": [""] * ROWS},
        {"missing": "drop"},
        "all 40 rows lack a value, .*leave_out=COLUMN",
    ),
    "a date to predict": (
        {"when": [each.date() for each in HOURS]},
        {"target": "when"},
        "'when' holds values of type date32.*; must be numbers, words or lists of numbers$",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_advice_can_be_followed(tmp_path, case):
    more, fields, says = ODD[case]
    columns = {"a": NUMBERS, **more, **TARGET}
    if "when" in more:
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    else:
        layouts.text(tmp_path / "t.csv", columns)
    path = next(tmp_path.glob("t.*"))
    with pytest.raises(DataError, match=says):
        read(path, tmp_path / "data", **{"target": "y", **fields})


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_columns_without_a_name_are_left_out(tmp_path, name):
    layouts.text(tmp_path / "t.csv", {name: NUMBERS, "a": NUMBERS, **TARGET})
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("\n", ",,\n"))  # as spreadsheets write
    found = read(tmp_path / "t.csv", tmp_path / "data", target="y")["train"]
    assert found.x.shape[1] == 1 and ("left out" in note(tmp_path / "t.csv")) is bool(name)


@pytest.mark.parametrize("word", ["", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "NULL"])
def test_words_of_missing_values(tmp_path, word):
    with pytest.raises(DataError, match="column 'a': 1 value is missing, in row 11"):
        read(table(tmp_path, put(word)), tmp_path / "data", target="y")


def test_dates_that_are_words_are_told(tmp_path):
    days = [f"2024-01-{row % 9 + 1:02}" for row in range(ROWS)]
    told = "(9 inputs, as '2024-01-01' in row 1 is no number; dataset.dates=a makes month, weekday"
    assert told in note(table(tmp_path, days))


def test_a_row_of_two_sets_is_told_with_its_file(tmp_path):
    for split in ("train", "test"):
        values = put("none", row=7) if split == "test" else NUMBERS
        layouts.text(tmp_path / f"{split}.csv", {"a": values, **TARGET})
    with pytest.raises(DataError, match=r"'none' in row 8 of test\.csv is not"):
        read(tmp_path, tmp_path / "data", target="y")


@pytest.mark.parametrize("of_sets", [False, True])
@pytest.mark.parametrize("values", [put("none", row=7), put("", row=7)], ids=["odd", "missing"])
def test_a_row_is_told_with_the_file_of_its_client(tmp_path, values, of_sets):
    folders = [tmp_path / "given" / split for split in (["train", "test"] if of_sets else [""])]
    for folder in folders:
        folder.mkdir(parents=True)
        for client in "abc":
            given = values if client == "b" and folder == folders[-1] else NUMBERS
            layouts.text(folder / f"{client}.csv", {"a": given, **TARGET})
    place = rf"in row 8 of {'test/' if of_sets else ''}b\.csv"
    with pytest.raises(DataError, match=place):
        read(tmp_path / "given", tmp_path / "data", target="y")


@pytest.mark.parametrize("labels", [[*range(ROWS)], [row + 0.5 for row in range(ROWS)]])
def test_numbers_that_the_test_set_alone_has_are_told_of_regression(tmp_path, labels):
    layouts.text(tmp_path / "t.csv", {"a": NUMBERS, "y": labels})
    with pytest.raises(DataError, match=r"is in the test set alone; .*; dataset\.task=regression"):
        read(tmp_path / "t.csv", tmp_path / "data", target="y")


def test_advice_names_columns_that_are_left_out_already(tmp_path):
    texts = {f"t{i}": [f"text {i} of {row}" for row in range(ROWS)] for i in range(3)}
    layouts.text(tmp_path / "t.csv", {**texts, "id": put("x"), "size": NUMBERS, **TARGET})
    left_out = ""
    for name in ("id", *texts):
        with pytest.raises(DataError, match=f"column '{name}'") as caught:
            read(tmp_path / "t.csv", tmp_path / "data", target="y", leave_out=left_out or ())
        (left_out,) = re.findall(r"dataset\.leave_out=(\S+) goes on", str(caught.value))
    assert left_out == "id,t0,t1,t2"
    assert "left out 't0', 't1', 't2', 'id'" in note(tmp_path / "t.csv", leave_out=left_out)
