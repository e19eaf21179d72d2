"""Names of natural clients, which stand next to their numbers."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.cli.app import main
from raysim.errors import RunError, SettingsError
from raysim.results.failures import failure_of
from raysim.samples.data import Split
from raysim.storage.run_directory import RunDirectory
from raysim.workloads.partitions.iid import Iid

NAMES = ["5", "Lima", "[b]a&b<c>$x$", "north"]
SHOWN = ["3 (north)", "2 ([b]a&b<c>$x$)", "1 (Lima)", "0 (5)"]


class Misnamed(Iid):
    """Names other clients than there are."""

    names: ClassVar[Any] = ()

    def client_names(self, train: Any, held: Any) -> Any:
        return self.names


def settings(folder: Path, **changes: Any) -> raysim.Settings:
    chosen = {
        **{"dataset.name": "files", "dataset.path": str(folder / "t.csv"), "dataset.target": "ok"},
        **{"dataset.client": "site", "partition.name": "natural", "clients": 4, "fraction": 1.0},
        **{"model.name": "linear", "rounds": 1, "target_accuracy": None, "method.name": "ditto"},
        **{"engine.backend": "inline", "evaluation.local_test": 0.3, "out": str(folder / "run")},
    }
    return raysim.load_config("mnist-fedavg", {**chosen, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a table of four sites, and a run on it."""
    folder = tmp_path_factory.mktemp("named")
    with (folder / "t.csv").open("w", newline="") as file:
        rows = [[NAMES[n % 4], n, "yes" if n % 3 else "no"] for n in range(80)]
        csv.writer(file).writerows([["site", "age", "ok"], *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_DATA", str(folder / "data"))
        raysim.run(settings(folder, **{"clock.name": "devices"}))
        yield folder


def test_tables_of_clients_have_their_names(folder):
    run = folder / "run"
    tables = [pq.read_table(run / f"{name}.parquet") for name in ("clients", "client_accuracy")]
    with pa.memory_map(str(run / "partition.arrow")) as source:
        tables.append(pa.ipc.open_file(source).read_all())
    for table in tables:
        named = {*zip(table["client"].to_pylist(), table["name"].to_pylist(), strict=True)}
        assert named == {*enumerate(NAMES)}


def printed(monkeypatch: Any, capsys: Any, *words: str) -> str:
    """Return what a command prints."""
    monkeypatch.setattr("sys.argv", ["raysim", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return capsys.readouterr().out


def test_a_report_has_their_names(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed(monkeypatch, capsys, "report", str(folder / "run"), "--out", "report.html")
    page = html.unescape((tmp_path / "report.html").read_text())
    for text in SHOWN:
        assert f"client {text}, seed 0" in page  # a client's point
        assert page.count(f">{text}<") == 2  # beside the heat map and the virtual time
    assert page.count(">no<") == page.count(">yes<") == 1  # the classes of the heat map


def test_data_show_has_their_names(folder, monkeypatch, capsys):
    given = settings(folder).to_dict()
    words = [f"dataset.{name}={given['dataset'][name]}" for name in ("name", "path", "target")]
    words += ["dataset.client=site", "partition.name=natural", "clients=4", "model.name=linear"]
    out = printed(monkeypatch, capsys, "data", "show", "mnist-fedavg", *words)
    assert all(text in out for text in SHOWN)


def test_a_model_is_exported_by_name(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    out = printed(monkeypatch, capsys, "export", str(folder / "run"), "--client", "Lima")
    assert "client 1 (Lima) took part in 1 of 1 rounds" in out and "client_lima.safetens" in out
    assert (tmp_path / "client_lima.safetensors").is_file()
    own = raysim.client_model(folder / "run", "Lima")
    other = raysim.client_model(folder / "run", 2)
    assert any(not torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("given", ["lima", "4", -1, 4])
def test_a_client_that_there_is_not_cannot_be_exported(folder, given):
    with pytest.raises(SettingsError, match=rf"--client={given}: must be from 0 to 3, or a name"):
        raysim.client_model(folder / "run", given)


def test_errors_have_their_names(folder, tmp_path):
    failing = {"local.lr": 1e30, "evaluation.local_test": 0, "out": str(tmp_path / "run")}
    with pytest.raises(RunError, match=r"^client \d \(.+\): failed twice"):
        raysim.run(settings(folder, **failing))
    failure = failure_of(RunDirectory(tmp_path / "run"), 0)
    assert failure is not None
    assert re.match(r"client \d \(.+\) in round 1;", failure.error)


@pytest.mark.parametrize("names", [["a"], 3])
def test_a_rule_must_name_each_client(folder, names):
    partition = Misnamed()
    partition.__class__.names = names
    samples = Split(np.zeros((4, 1)), np.zeros(4, np.int64))
    with pytest.raises(SettingsError, match="client_names"):
        partition.names_of(samples, partition.client_indices(samples, 2, 0))
