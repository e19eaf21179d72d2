"""`raysim predict`: rows of new files through a run's preparation and model."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import raysim
from raysim.errors import DataError
from raysim.samples.arrow import open_split
from raysim.storage.schema import SCHEMA
from raysim.storage.sealed.words import sealed
from tests.driver import used
from tests.tasks import Notes, StopAfter, make_settings, make_task

TARGETLESS = [row[:-1] for row in used.rows(40, seed=1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a run whose data, prepared or not, has gone; and its test samples."""
    folder = tmp_path_factory.mktemp("used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_DATA", str(folder / "data"))
        used.trained_with_test(folder)
        for lost in ("train.csv", "test.csv"):
            (folder / lost).unlink()
        shutil.rmtree(folder / "data")
        used.write(folder / "new.csv", TARGETLESS, used.COLUMNS[:-1])
        yield folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    return used.command_in(folder, monkeypatch, capsys)


def test_rows_are_prepared_and_predicted_as_the_runs_test_set(folder, command, tmp_path):
    code, out, _ = command("predict", "run", "new.csv", "-o", str(tmp_path / "out.csv"))
    assert code == 0 and "40 predictions" in out
    with torch.no_grad():
        x = torch.tensor(open_split(folder / "test.arrow").x)
        expected = raysim.load(folder / "run")(x).softmax(1)
    with (tmp_path / "out.csv").open(newline="") as file:
        found = [*csv.DictReader(file)]
    assert [row["load"] for row in found] == [str(row[2]) for row in TARGETLESS]
    for row, (no, yes) in zip(found, expected.tolist(), strict=True):
        assert float(row["p_no"]) == pytest.approx(no, abs=1e-6)
        assert float(row["p_yes"]) == pytest.approx(yes, abs=1e-6)
        assert row["prediction"] == ("yes" if yes > no else "no")
    assert len({row["prediction"] for row in found}) == 2
    table = raysim.predict(folder / "run", folder / "new.csv").to_pylist()
    assert [row["prediction"] for row in table] == [row["prediction"] for row in found]


def test_the_first_rows_are_printed(command):
    code, out, _ = command("predict", "run", "new.csv")
    header, *lines = out.splitlines()
    assert code == 0 and header.split()[-3:] == ["prediction", "p_no", "p_yes"]
    assert len(lines) == 10 and all(line.split()[-3] in ("yes", "no") for line in lines)


def test_other_formats_give_the_same(folder, tmp_path):
    pq.write_table(raysim.predict(folder / "run", folder / "new.csv"), tmp_path / "all.parquet")
    renamed = pq.read_table(tmp_path / "all.parquet").select(used.COLUMNS[:-1])
    typed = renamed.set_column(2, "load", pa.compute.cast(renamed["load"], pa.float64()))
    pq.write_table(typed, tmp_path / "typed.parquet")
    expected = raysim.predict(folder / "run", folder / "new.csv")
    found = raysim.predict(folder / "run", tmp_path / "typed.parquet")
    assert found["p_yes"].equals(expected["p_yes"])


def test_columns_of_no_single_values_are_not_repeated(folder, tmp_path):
    line = '{"age": 1, "load": 2, "city": "Rome", "seen": "2024-01-01 10:00", "more": %s}\n'
    (tmp_path / "new.jsonl").write_text(line % '{"inner": [1]}')
    found = raysim.predict(folder / "run", tmp_path / "new.jsonl")
    own = {*used.COLUMNS[1:-1]}
    assert {*found.column_names} == own | {"prediction", "p_no", "p_yes"}


def test_unknown_words_are_none_of_the_known_ones(folder, tmp_path):
    notes, at = Notes(), used.COLUMNS.index("city")
    tables = []
    for city in ("Paris", ""):
        changed = [[*row[:at], city, *row[at + 1 :]] for row in TARGETLESS[:5]]
        path = used.write(tmp_path / "changed.csv", changed, used.COLUMNS[:-1])
        tables.append(raysim.predict(folder / "run", path, listener=notes))
    assert tables[0]["p_yes"].equals(tables[1]["p_yes"])
    assert len(notes.notes) == 1
    assert "column 'city': 5 rows have words that no training sample has" in notes.notes[0]


def test_rows_without_a_value_have_no_prediction_where_the_run_dropped_them(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.trained(tmp_path, **{"dataset.missing": "drop", "rounds": 1})
    command = used.command_in(tmp_path, monkeypatch, capsys)
    code, out, _ = command("predict", "run", "test.csv", "-o", "out.csv")
    assert code == 0 and "4 rows lack a value, and have no prediction" in out
    with (tmp_path / "out.csv").open(newline="") as file:
        found = [*csv.DictReader(file)]
    assert [row["prediction"] == "" for row in found] == [n % 9 == 8 for n in range(40)]


def test_a_regression_predicts_in_the_targets_unit(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    changes = {"dataset.target": "load", "dataset.task": "regression", "rounds": 20}
    used.trained(tmp_path, **changes)
    found = raysim.predict(tmp_path / "run", tmp_path / "test.csv")
    loads = np.array([row[2] for row in used.rows(40, seed=1)])
    error = np.abs(np.array(found["prediction"]) - loads).mean()
    assert error < 0.7 * np.abs(loads - loads.mean()).mean()


def test_a_clients_own_model_predicts(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.trained(tmp_path, **{"method.name": "ditto"})
    by_name, by_number, other, common = (
        raysim.predict(tmp_path / "run", tmp_path / "test.csv", client)["p_yes"]
        for client in ("s1", 1, "s2", None)
    )
    assert by_name.equals(by_number)
    assert not by_name.equals(other) and not by_name.equals(common)


def _photos(folder: Path, mode: str = "RGB", size: int = 6) -> None:
    draw = np.random.default_rng(4)
    for name, light in (("dark", 40), ("light", 210)):
        (folder / name).mkdir(parents=True)
        for n in range(8):
            pixels = (light + draw.integers(-30, 30, (size, size, 3))).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{n}.png")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_in_a_folder(tmp_path, monkeypatch, mode):
    """Grey ones, too, where the run's have colours; a single file, and an array of bytes."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    _photos(tmp_path / "photos")
    _photos(tmp_path / "new", mode)
    chosen = {
        **{"dataset.name": "files", "dataset.path": str(tmp_path / "photos"), "clients": 2},
        **{"dataset.split": 0.25, "partition.name": "iid", "model.name": "linear", "rounds": 2},
    }
    raysim.run(make_settings(tmp_path / "run", **chosen))
    found = raysim.predict(tmp_path / "run", tmp_path / "new")
    assert found["file"].to_pylist()[0] == "dark/0.png" and len(found) == 16
    opened = (Image.open(tmp_path / "new" / name) for name in found["file"].to_pylist())
    x = np.stack([np.asarray(image.convert("RGB")).transpose(2, 0, 1) for image in opened])
    with torch.no_grad():
        expected = raysim.load(tmp_path / "run")(torch.tensor(x) / 255).softmax(1)
    assert np.allclose(np.array(found["p_light"]), expected[:, 1], atol=1e-6)
    alone = raysim.predict(tmp_path / "run", tmp_path / "new/light/3.png")
    assert alone["p_light"].to_pylist() == found["p_light"].to_pylist()[11:12]
    pixels = np.asarray(Image.open(tmp_path / "new/light/3.png").convert("RGB"))
    np.savez(tmp_path / "x.npz", pictures=pixels[None])
    assert raysim.predict(tmp_path / "run", tmp_path / "x.npz")["p_light"].equals(alone["p_light"])
    Image.new("RGB", (5, 5)).save(tmp_path / "small.png")
    with pytest.raises(raysim.RaysimError, match="3x5x5 values; the model reads 3x6x6"):
        raysim.predict(tmp_path / "run", tmp_path / "small.png")


def test_a_data_set_of_raysim_reads_arrays(tmp_path):
    chosen = {
        **{"dataset.name": "synthetic", "dataset.users": 5, "dataset.samples": 20, "clients": 5},
        **{"partition.name": "iid", "model.name": "synthetic-mlp", "rounds": 2},
    }
    settings = make_settings(tmp_path / "run", **chosen)
    raysim.run(settings)
    x = np.random.default_rng(0).normal(size=(7, *settings.dataset.shape)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    found = raysim.predict(tmp_path / "run", tmp_path / "new.npz")
    with torch.no_grad():
        expected = raysim.load(tmp_path / "run")(torch.from_numpy(x)).argmax(1)
    assert found["prediction"].to_pylist() == [str(n) for n in expected.tolist()]


def test_a_table_of_no_rows_is_an_error_of_the_data(folder, tmp_path):
    path = used.write(tmp_path / "new.csv", [], used.COLUMNS[:-1])
    with pytest.raises(DataError, match=r"new\.csv: has no rows"):
        raysim.predict(folder / "run", path)


def _without(name: str) -> Any:
    def write(run: Path, new: Path) -> None:
        keep = [n for n, column in enumerate(used.COLUMNS[:-1]) if column != name]
        table = [[row[n] for n in keep] for row in TARGETLESS]
        used.write(new, table, tuple(used.COLUMNS[n] for n in keep))

    return write


def _with(name: str, value: str, row: int = 12) -> Any:
    def write(run: Path, new: Path) -> None:
        table = [[*given] for given in TARGETLESS]
        table[row][used.COLUMNS.index(name)] = value
        used.write(new, table, used.COLUMNS[:-1])

    return write


def _flipped(name: str) -> Any:
    def damage(run: Path, new: Path) -> None:
        content = bytearray((run / name).read_bytes())
        content[len(content) // 2] ^= 1
        (run / name).write_bytes(content)

    return damage


def _lost(*names: str) -> Any:
    def damage(run: Path, new: Path) -> None:
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return damage


def _sealed(**changes: Any) -> Any:
    """Return a damage that someone made on purpose, with the right checksum."""

    def damage(run: Path, new: Path) -> None:
        values = json.loads((run / "preparation.json").read_text())
        (run / "preparation.json").write_text(json.dumps(sealed({**values, **changes})))

    return damage


def _model(run: Path, new: Path) -> None:
    _flipped("model.safetensors")(run, new)
    _flipped("checkpoints/round_000004/state.safetensors")(run, new)


OBJECTS = '{"columns":[{"kind":"arrays","name":"age","dtype":"O"}],"missing":"mean"}'
REFUSED = {
    "has no column 'age'; the model reads 'age', 'load', 'city', 'seen'; ": _without("age"),
    "column 'load': 'much' in row 13 is no number": _with("load", "much"),
    "column 'seen': holds other values than dates of the form YYYY-MM-DD": _with("seen", "soon"),
    "column 'load': holds inf; must be finite": _with("load", "inf"),
    "column 'load': holds values of type 'struct<": lambda run, new: new.with_suffix(
        ".jsonl"
    ).write_text('{"age": 1, "load": {"much": 1}, "city": "Rome", "seen": "2024-01-01 10:00"}\n'),
    "new.csv: not there": lambda run, new: new.unlink(),
    "has NUL bytes": lambda run, new: new.write_bytes(b"age,load\0\n1,2"),
    "new.csv: has a column 'prediction', as": lambda run, new: new.write_text(
        "prediction,age,load,city,seen\n1,2,3,Rome,2024-01-01 10:00\n"
    ),
    "new.csv: has no rows": lambda run, new: new.write_text("age,load,city,seen\n"),
    "preparation.json: not there: it is lost, or an earlier": _lost("preparation.json"),
    "preparation.json: is damaged": _flipped("preparation.json"),
    f"schema=99 is not {SCHEMA}": _sealed(schema=99),
    "preparation.json: is damaged (outputs: Input should be g": _sealed(outputs=-1),
    "preparation.json: is damaged (columns: Field required)": _sealed(columns='{"inputs": 3}'),
    "run: holds no run": _lost("config.json", "checkpoints"),
    "model.safetensors: cannot be read": _lost("model.safetensors", "checkpoints"),
    "model.safetensors: does not match its checksum": _model,
    "is damaged (columns.0.arrays.dtype: String should match": _sealed(columns=OBJECTS),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_predicted_is_one_line(folder, tmp_path, monkeypatch, capsys, message):
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copy(folder / "new.csv", tmp_path)
    REFUSED[message](tmp_path / "run", tmp_path / "new.csv")
    before, lines = used.files(tmp_path), tmp_path / "new.jsonl"
    code, _, said = used.command_in(tmp_path, monkeypatch, capsys)(
        *("predict", "run", lines.name if lines.exists() else "new.csv", "-o", "out.csv")
    )
    assert code == 2 and message in said and said.count("\n") == 1, said
    assert used.files(tmp_path) == before


@pytest.mark.parametrize(
    ("out", "message"),
    {
        "out.txt": "--out=out.txt: must be a .csv file",
        "no/out.csv": "--out=no/out.csv: must be a .csv file",
        "run/clients/out.csv": "must be a .csv file in an existing folder",
        "run/checkpoints/out.csv": "is a run's own file",
        "new.csv": "--out=new.csv: is the data itself",
    }.items(),
)
def test_a_place_that_is_no_good_is_refused(command, out, message):
    code, _, said = command("predict", "run", "new.csv", "-o", out)
    assert code == 2 and message in said and said.count("\n") == 1


UNFINISHED = (
    "run: is unfinished: its checkpoints reach round {} of 4; to finish it, type: raysim resume run"
)


@pytest.mark.parametrize("reached", [2, 0])
def test_the_model_of_an_unfinished_run_is_not_used(tmp_path, monkeypatch, capsys, reached):
    """Neither for predictions nor for exports; what the line says to type finishes it."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.write(tmp_path / "train.csv", used.rows(120))
    used.write(tmp_path / "test.csv", used.rows(40, seed=1))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(used.settings(tmp_path), listener=StopAfter(2))
    if not reached:
        shutil.rmtree(tmp_path / "run/checkpoints")  # as a kill before the first one leaves it
    command, before = used.command_in(tmp_path, monkeypatch, capsys), used.files(tmp_path)
    wanted = [
        ("predict", "run", "test.csv", "-o", "out.csv"),
        ("export", "run"),
        ("export", "run", "--client", "s1"),
        ("export", "run", "--to", "torch"),
    ]
    for words in wanted:
        assert command(*words) == (2, "", f"raysim: {UNFINISHED.format(reached)}\n")
    assert used.files(tmp_path) == before
    assert command("resume", "run")[0] == 0
    assert [command(*words)[0] for words in wanted] == [0] * len(wanted)


def test_a_task_in_memory_has_no_preparation(tmp_path):
    raysim.run(make_settings(tmp_path / "run", rounds=1), make_task((8, 7)))
    with pytest.raises(raysim.RunError, match=r"had its own task; raysim.load returns its netw"):
        raysim.predict(tmp_path / "run", tmp_path)
