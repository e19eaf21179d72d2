"""Figures of a run worked out by hand, and records that a resumed run does not repeat."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from raysim.api.columns import OF_ENGINE, Column, Scored
from raysim.errors import RunError
from raysim.storage.column_names import OF_SCORES
from raysim.storage.recorder import RunRecorder, SealedTables
from raysim.storage.rows import parted
from raysim.storage.summary import rounds_to_target, summarise
from raysim.storage.trace import COLUMNS as TRACED
from tests.tuning.test_events import hparams_tab

SETTINGS = {"method": {"name": "fedavg"}, "local": {"lr": 0.1}, "out": None, "rounds": 9}
CLIENTS = 2


def row(number, accuracy=0.5, **other):
    values = {
        "round": number,
        "train_loss": 1 / (number + 10),
        "test_loss": None if accuracy is None else 1 - accuracy,
        "test_accuracy": accuracy,
        "seconds": 2.0,
        "evaluation_seconds": 0.5,
        "checkpoint_seconds": 0.25,
        "bytes_up": 10,
        "bytes_down": 30,
    }
    return values | other


def curve(*points):
    return [row(number, accuracy) for number, accuracy in points]


COLUMNS = {**OF_ENGINE, **TRACED, **OF_SCORES}
TARGETS = {
    "between two evaluations": ([(1, 0.5), (2, 0.75), (3, 1.0)], 0.875, 2.5),
    "from the running maximum": ([(1, 0.5), (2, 0.25), (3, 0.75)], 0.625, 2.5),
    "between distant evaluations": ([(5, 0.5), (6, None), (10, 0.75)], 0.625, 7.5),
    "exactly at an evaluation": ([(1, 0.25), (2, 0.5), (3, 1.0)], 0.5, 2.0),
    "at the first evaluation": ([(4, None), (5, 0.9), (10, 0.95)], 0.8, 5.0),
    "the first time counts": ([(1, 0.0), (2, 1.0), (3, 0.0), (4, 1.0)], 0.5, 1.5),
    "never": ([(1, 0.5), (2, 0.79)], 0.8, None),
    "never evaluated": ([(1, None), (2, None)], 0.8, None),
    "no rounds": ([], 0.8, None),
    "no target": ([(1, 0.9)], None, None),
}


@pytest.mark.parametrize("case", TARGETS)
def test_rounds_to_target(case):
    points, target, expected = TARGETS[case]
    found = rounds_to_target(curve(*points), COLUMNS["test_accuracy"], target)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_summary_by_hand():
    rows = [
        row(1, 0.25, seconds=1.0),
        row(2, 0.75, seconds=9.0, evaluation_seconds=None),
        row(3, None, seconds=3.0),
        row(4, 0.5, seconds=4.0, bytes_down=31),
    ]
    assert summarise(rows, COLUMNS, 0.5) == {
        "final_accuracy": 0.5,
        "best_accuracy": 0.75,
        "final_loss": 0.5,
        "score": "test_accuracy",
        "final_score": 0.5,
        "best_score": 0.75,
        "rounds_to_target": 1.5,
        "rounds": 4,
        "seconds": 1.0 + 9.0 + 3.0 + 4.0 + 3 * 0.5 + 4 * 0.25,
        "seconds_per_round": 3.5,
        "bytes_up": 40,
        "bytes_down": 121,
    }


def test_summary_without_evaluations():
    summary = summarise([row(1, None)], COLUMNS, 0.5)
    assert (summary["final_accuracy"], summary["best_accuracy"]) == (None, None)
    assert summary["rounds_to_target"] is None


def test_summary_has_the_last_of_the_other_evaluated_figures():
    def figures(value):
        names = ("test_macro_f1", "holdout_accuracy", "client_accuracy_d5", "drift")
        return dict.fromkeys(names, value)

    rows = [row(1, **figures(0.25)), row(2, **figures(0.75)), row(3, None, **figures(None))]
    finals = {"final_macro_f1", "final_holdout_accuracy", "final_client_accuracy_d5"}
    for last, expected in ((3, 0.75), (1, 0.25)):
        summary = summarise(rows[:last], COLUMNS, 0.5)
        assert {name for name, value in summary.items() if value == expected} == finals
    never = summarise([row(1, None, **figures(None))], COLUMNS, None)
    assert {name: never[name] for name in finals} == dict.fromkeys(finals)


def test_accuracies_of_clients_are_those_of_the_last_evaluation(tmp_path, record):
    recorder = record(1, 1, close=False)
    path = tmp_path / "client_accuracy.parquet"
    assert not path.exists()
    for number in (2, 3):
        own = {"client": np.array([0, 7]), "samples": np.array([4, 2]), "accuracy": [0.25, 0.5]}
        recorder.add(row(number), [columns(number)], own)
    recorder.flush()
    recorder.add(row(4, None), [columns(4)])
    recorder.flush()
    assert pq.read_table(path).to_pylist() == [
        {"round": 3, "client": 0, "samples": 4, "accuracy": 0.25},
        {"round": 3, "client": 7, "samples": 2, "accuracy": 0.5},
    ]


def columns(number):
    """Two clients' columns, which tell from which round they are."""
    return {
        "client": np.array([number, number + 1.0]),
        "samples": np.array([10.0, 20.0]),
        "train_loss": np.array([number / 2, np.nan]),
        "pass": np.zeros(2),
    }


@pytest.fixture
def record(tmp_path, tmp_path_factory):
    """Record some rounds, each one sealed when it is done, and close or leave open."""
    opened, sealed = [], {}

    def go(first, last, close=True, after=None, accuracy=0.5):
        recorder = RunRecorder(tmp_path, SETTINGS, COLUMNS)
        opened.append(recorder)
        recorder.open(sealed.get(first - 1 if after is None else after))
        for number in range(first, last + 1):
            recorder.add(values := row(number, accuracy), [columns(number)])
            recorder.publish(values)
            folder = tmp_path_factory.mktemp("checkpoint")
            sealed[number] = SealedTables(folder, recorder.seal(folder, number, 0.25))
        if close:
            recorder.close()
        return recorder

    yield go
    for recorder in opened:
        recorder.close()


def rounds_in(path):
    return pq.read_table(path)["round"].to_pylist()


def events_in(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def parts_in(folder):
    parts = sorted((folder / "clients.parquet").glob("part-*.parquet"))
    return {int(part.stem.removeprefix("part-")): rounds_in(part) for part in parts}


def twice(*numbers):
    return [number for number in numbers for _ in range(CLIENTS)]


def test_records_are_readable_while_open(tmp_path, record):
    recorder = record(1, 2, close=False)
    assert pq.read_table(tmp_path / "metrics.parquet").to_pylist() == [row(1), row(2)]
    clients = pq.read_table(tmp_path / "clients.parquet")
    assert clients["round"].to_pylist() == twice(1, 2)
    assert clients["client"].to_pylist() == [1, 2, 2, 3]
    assert clients["train_loss"].to_pylist()[::2] == [0.5, 1.0]
    assert str(clients.schema.field("client").type) == "int64"
    assert [e.step for e in events_in(tmp_path).Scalars("test/accuracy")] == [1, 2]
    assert recorder.table().to_pylist() == [row(1), row(2)]


def test_the_first_round_is_published_at_once(tmp_path):
    recorder = RunRecorder(tmp_path, SETTINGS, COLUMNS)
    recorder.open()
    recorder.add(values := row(1), [columns(1)])
    recorder.publish(values)
    assert rounds_in(tmp_path / "metrics.parquet") == [1]
    recorder.close()


def test_seconds_of_a_checkpoint_are_written_with_its_round(tmp_path, record):
    recorder = record(1, 3, close=False)
    recorder.add(row(4), [columns(4)])
    (tmp_path / "sealed").mkdir()
    assert recorder.seal(tmp_path / "sealed", 3, 9.0) == {}
    expected = [row(1), row(2), row(3, checkpoint_seconds=9.0), row(4)]
    for path in (tmp_path, tmp_path / "sealed"):
        assert pq.read_table(path / "metrics.parquet").to_pylist() == expected
    for name in ("clients.parquet", "sealed/open.parquet"):
        assert rounds_in(tmp_path / name) == twice(1, 2, 3, 4)


def test_half_written_tables_are_not_read(tmp_path, record):
    record(1, 1)
    (tmp_path / "clients.parquet/.part-000001.parquet.4711").write_bytes(b"half")
    assert rounds_in(tmp_path / "clients.parquet") == twice(1)


def test_metrics_of_a_method_may_appear_later(tmp_path):
    recorder = RunRecorder(tmp_path, SETTINGS, COLUMNS)
    recorder.open()
    for number, own in [(1, {}), (2, {"pruned": 3})]:
        recorder.add(row(number, None, **own), [])
    recorder.close()
    found = pq.read_table(tmp_path / "metrics.parquet")
    assert found["pruned"].to_pylist() == [None, 3]
    assert found["test_accuracy"].to_pylist() == [None, None]


def test_events_hold_every_figure_once(tmp_path, record):
    record(1, 3, accuracy=0.25)
    events = events_in(tmp_path)
    for name, tag in {
        "train_loss": "train/loss",
        "test_accuracy": "test/accuracy",
        "seconds": "seconds/round",
        "bytes_up": "bytes/up",
    }.items():
        found = {event.step: event.value for event in events.Scalars(tag)}
        assert found == pytest.approx({n: row(n, 0.25)[name] for n in (1, 2, 3)})
        assert len(events.Scalars(tag)) == 3
    tags = events.Tags()["scalars"]
    assert not [tag for tag in tags if "round" in tag.split("/")[0] or "/" not in tag]


def test_columns_are_grouped_each_under_a_tag_of_its_own(tmp_path):
    grouped = {
        "test": ("accuracy", "loss", "loss_at_temperature", "mae"),
        "personal_holdout": ("accuracy",),
        "personal_local_test": ("accuracy_mean", "accuracy_d1"),
        "local_test": ("accuracy_d9",),
        "client_accuracy": ("mean", "d5"),
        "bytes": ("up", "down"),
    }
    columns = {f"{group}_{name}": f"{group}/{name}" for group in grouped for name in grouped[group]}
    columns |= {
        "lr": "train/lr",
        "objective": "train/objective",
        "evaluation_seconds": "seconds/evaluation",
        "worker_training_seconds": "seconds/worker_training",
        "trained_accuracy_d1": "trained_accuracy/d1",
        "train_set_loss": "train_set/loss",
        "virtual_seconds": "virtual/seconds",
        "lost_clients": "clients/lost",
        "clients": "clients/counted",
        "prepass_bytes_up": "method/prepass_bytes_up",
        "train_share": "method/train_share",
        "client_accuracy_gap": "method/client_accuracy_gap",
    }
    mae = Column("mae", "smaller").of(Scored("test", "mae"))
    recorder = RunRecorder(tmp_path, SETTINGS, {**COLUMNS, "test_mae": mae})
    recorder.open()
    values = {name: float(number) for number, name in enumerate(columns)}
    recorder.add(given := {"round": 1, **values}, [])
    recorder.publish(given)
    recorder.close()
    events = events_in(tmp_path)
    found = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert found == {columns[name]: value for name, value in values.items()}


def test_the_first_chart_of_custom_scalars_is_the_accuracy(tmp_path, record):
    """Of the accuracies that the run has; TensorBoard sorts other tabs by name."""
    record(1, 2, close=False)
    record(2, 3)
    content = events_in(tmp_path).Tensors("custom_scalars__config__")
    assert len(content) == 1
    layout = Layout.FromString(content[0].tensor_proto.string_val[0])
    charts = [
        (category.title, chart.title, [*chart.multiline.tag])
        for category in layout.category
        for chart in category.chart
    ]
    assert charts[0] == ("accuracy", "test set", ["test/accuracy"])
    assert ("loss", "training and test set", ["train/loss", "test/loss"]) in charts
    assert not [tag for *_, tags in charts for tag in tags if "holdout" in tag]


def test_events_tell_stages_in_another_order_apart(tmp_path):
    for name, stages in {"a": ("clip", "masks"), "b": ("masks", "clip")}.items():
        settings = {**SETTINGS, "channel": {stage: {} for stage in stages}}
        (tmp_path / name).mkdir()
        recorder = RunRecorder(tmp_path / name, settings)
        recorder.open()
        recorder.close()
    _, found = hparams_tab(tmp_path)
    assert {group.hparams["channel"].string_value for group in found.values()} == {
        "clip, masks",
        "masks, clip",
    }
    assert {group.hparams["channel.masks"].string_value for group in found.values()} == {"{}"}


def test_what_was_not_measured_is_no_event(tmp_path, record):
    record(1, 1, accuracy=None)
    tags = events_in(tmp_path).Tags()["scalars"]
    assert "train/loss" in tags and "test/loss" not in tags and "test/accuracy" not in tags


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_reopening_drops_later_rounds_everywhere(tmp_path, record, kept):
    record(1, 3, close=False)  # as if killed
    record(kept + 1, 4, accuracy=0.75)
    expected = [row(n, 0.5 if n <= kept else 0.75) for n in range(1, 5)]
    assert pq.read_table(tmp_path / "metrics.parquet").to_pylist() == expected
    assert rounds_in(tmp_path / "clients.parquet") == twice(1, 2, 3, 4)
    events = events_in(tmp_path).Scalars("test/accuracy")
    assert [(e.step, e.value) for e in events] == [
        (r["round"], r["test_accuracy"]) for r in expected
    ]
    moments = [event.wall_time for event in events]
    assert moments == sorted(moments)


def test_reopening_without_going_on_keeps_what_was_committed(tmp_path, record):
    record(1, 3)
    record(5, 4, after=2)
    assert rounds_in(tmp_path / "metrics.parquet") == [1, 2]
    assert rounds_in(tmp_path / "clients.parquet") == twice(1, 2)


PARTS = {
    0: {0: twice(1, 2), 1: twice(3, 4)},
    1: {0: twice(1, 2), 1: twice(3, 4)},
    2: {0: twice(1, 2), 1: twice(3, 4)},
    3: {0: twice(1, 2), 1: twice(3, 4)},
    5: {0: twice(1, 2), 1: twice(3, 4), 2: twice(5)},
}


@pytest.mark.parametrize("kept", PARTS)
def test_parts_roll_over_and_are_gone_on_with(tmp_path, record, kept, monkeypatch):
    """Parts of two rounds; rounds 2 and 4 end between parts, 1, 3 and 5 in the middle of one."""
    monkeypatch.setattr(parted, "FILE_ROWS", 2 * CLIENTS)
    record(1, 5)
    assert parts_in(tmp_path) == {0: twice(1, 2), 1: twice(3, 4), 2: twice(5)}
    record(kept + 1, 4)
    assert parts_in(tmp_path) == PARTS[kept]


def test_a_part_that_is_too_long_at_once_is_closed(tmp_path, record, monkeypatch):
    monkeypatch.setattr(parted, "FILE_ROWS", 1)
    record(1, 3)
    assert parts_in(tmp_path) == {0: twice(1), 1: twice(2), 2: twice(3)}


def sealed_at(folder, record, monkeypatch, last=5):
    """Record rounds in files of two, and seal the tables after the fifth."""
    monkeypatch.setattr(parted, "FILE_ROWS", 2 * CLIENTS)
    recorder = record(1, 5, close=False)
    sealed = folder / "sealed"
    sealed.mkdir()
    closed = recorder.seal(sealed, 5, 0.25)
    assert list(closed) == ["part-000000.parquet", "part-000001.parquet"]
    for number in range(6, last + 1):
        recorder.add(row(number), [columns(number)])
        recorder.flush()
    recorder.close()
    return SealedTables(sealed, closed)


LOST = {
    "nothing": (),
    "metrics": ("metrics.parquet",),
    "open file": ("clients.parquet/part-000002.parquet",),
    "both": ("metrics.parquet", "clients.parquet/part-000002.parquet"),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("last", [5, 6, 9])
def test_sealed_rows_come_back(tmp_path, record, monkeypatch, lost, last):
    sealed = sealed_at(tmp_path, record, monkeypatch, last)
    for name in LOST[lost]:
        (tmp_path / name).unlink()
    recorder = RunRecorder(tmp_path, SETTINGS, COLUMNS)
    recorder.check(sealed)
    recorder.open(sealed)
    recorder.close()
    assert rounds_in(tmp_path / "metrics.parquet") == [1, 2, 3, 4, 5]
    assert parts_in(tmp_path) == {0: twice(1, 2), 1: twice(3, 4), 2: twice(5)}


@pytest.mark.parametrize("content", [None, b"", b"other"])
def test_a_closed_file_that_is_not_as_it_was_sealed_is_named(
    tmp_path, record, monkeypatch, content
):
    sealed = sealed_at(tmp_path, record, monkeypatch)
    path = tmp_path / "clients.parquet/part-000001.parquet"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, OSError)) as caught:
        RunRecorder(tmp_path, SETTINGS, COLUMNS).check(sealed)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["metrics.parquet", "open.parquet"])
def test_a_damaged_table_is_named(tmp_path, record, monkeypatch, name):
    sealed = sealed_at(tmp_path, record, monkeypatch)
    path = sealed.folder / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunError, match="is damaged") as caught:
        RunRecorder(tmp_path, SETTINGS, COLUMNS).open(sealed)
    assert str(path) in str(caught.value)
