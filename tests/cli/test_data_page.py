"""`raysim data show`: what its tables say and what its heat map shows."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread
from rich.console import Console

import raysim
from raysim.cli.data_page import COUNTED_CLIENTS, check_drawing, count, draw, drawing, page, title
from raysim.errors import DataError, SettingsError
from raysim.samples.client_indices import ListedIndices
from raysim.workloads.partitions.resample import Resample
from tests.cli.test_app import raysim_command  # noqa: F401 - a fixture
from tests.texts import write_tokenizer


def holdings(counts: list[list[int]]):
    """Return what is held by clients with these samples per class [K, C]."""
    table = np.array(counts)
    labels = np.concatenate([np.repeat(np.arange(table.shape[1]), row) for row in table])
    cuts = np.cumsum(table.sum(axis=1))[:-1]
    return count(ListedIndices.of(np.split(np.arange(len(labels)), cuts)), labels, table.shape[1])


def printed(held) -> list[list[str]]:
    """Return the words of the page's lines."""
    out = StringIO()
    Console(file=out, width=200).print(page("the heading", held))
    return [line.split() for line in out.getvalue().splitlines()]


def test_clients_and_totals():
    assert printed(holdings([[3, 0, 4], [0, 12, 0]])) == [
        ["the", "heading"],
        ["client", "samples", "classes", "label:samples"],
        ["0", "7", "2", "0:3", "2:4"],
        ["1", "12", "1", "1:12"],
        ["all", "19", "3", "0:3", "1:12", "2:4"],
        ["19", "samples", "held;", "the", "training", "set", "has", "19", "samples"],
    ]


def test_the_ten_most_frequent_of_many_labels_are_shown_in_order():
    line = printed(holdings([[5, 1, *range(20, 30)]]))[2]
    frequent = [f"{label}:{label + 18}" for label in range(2, 12)]
    assert line == ["0", "251", "12", *frequent, "and", "2", "more"]


def test_quantiles_stand_in_for_the_clients_not_shown():
    lines = printed(holdings([[k, 1 if k > 30 else 0] for k in range(1, 42)]))
    assert [line[0] for line in lines[2:23]] == [*map(str, range(20)), "all"]
    assert lines[22] == ["all", "872", "2", "0:861", "1:11"]
    assert lines[23:26] == [
        ["per", "client", "min", "25%", "median", "75%", "max"],
        # The clients hold 1..30 and 32..42 samples: the 1st, 11th, 21st, 31st and 41st of them.
        ["samples", "1", "11", "21", "32", "42"],
        ["classes", "1", "1", "1", "2", "2"],
    ]


def test_of_a_large_population_some_clients_are_counted():
    labels = np.arange(100) % 4
    held = count(Resample(samples=2).split(labels_only(labels), 10**6, 0), labels, 4)
    assert held.counts.shape == (COUNTED_CLIENTS, 4)
    assert held.clients[[0, -1]].tolist() == [0, 10**6 - 1]
    lines = printed(held)
    assert lines[2][:2] == ["0", "2"]
    assert lines[22][:2] == ["counted", str(2 * COUNTED_CLIENTS)]
    said = [" ".join(line) for line in lines[-2:]]
    assert said[0] == "classes were counted for 10000 of the 1000000 clients"
    assert said[1] == "2000000 samples held; the training set has 100 samples"


def labels_only(labels):
    return raysim.Split(np.zeros((len(labels), 1)), labels)


def test_title_names_dataset_partition_clients_and_seed():
    shards = title(raysim.load_config("mnist-noniid", {"seed": 3}))
    assert shards == "mnist, shards (per_client=2, size=300), clients=100, seed=3"
    assert title(raysim.load_config("mnist-fedavg")) == "mnist, iid, clients=100, seed=0"


def test_heat_map_has_clients_down_and_classes_across(tmp_path):
    counts = np.array([[0, 20], [40, 60], [80, 100]])
    path = tmp_path / "indices.png"
    draw("three clients of two classes", holdings(counts.tolist()), path)
    pixels = imread(path)
    assert pixels.shape == (900, 900, 4)
    places = np.empty((3, 2, 2))
    for cell in np.ndindex(3, 2):
        colour = colormaps["viridis"](counts[cell] / 100)
        of_colour = np.argwhere(np.abs(pixels - colour).max(axis=2) < 0.004)
        assert len(of_colour) > 0.05 * 900 * 900  # a cell; the colour bar has it on few pixels
        places[cell] = np.median(of_colour, axis=0)
    rows, columns = places[..., 0], places[..., 1]
    assert np.ptp(rows, axis=1).max() < 3 and np.ptp(columns, axis=0).max() < 3
    assert np.diff(rows[:, 0]) == pytest.approx(np.full(2, 265), abs=10)
    assert columns[0, 1] - columns[0, 0] == pytest.approx(330, abs=20)


def test_the_axes_count_clients_and_classes():
    labels = np.arange(100) % 4
    held = count(Resample(samples=2).split(labels_only(labels), 20_000, 0), labels, 4)
    axes, bar = drawing("the heading", held).axes
    assert axes.get_xlim() == (-0.5, 3.5)
    assert axes.get_ylim() == (19_999.5, -0.5)  # the first client on top
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("class", "client")
    assert (axes.get_title(), bar.get_ylabel()) == ("the heading", "samples")
    assert bar.get_ylim() == (0, 2)


def test_where_no_heat_map_can_be_drawn(tmp_path, monkeypatch):
    for wrong in (tmp_path / "a.jpg", tmp_path / "none" / "a.png"):
        with pytest.raises(SettingsError, match=r"must be a \.png file in an existing folder"):
            check_drawing(wrong)
    folder = tmp_path / "b.png"
    folder.mkdir()
    with pytest.raises(DataError, match=r"--out=.*b\.png: cannot be written: .*directory"):
        draw("a folder", holdings([[1]]), folder)
    check_drawing(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"needs matplotlib; pip install 'raysim-fl\[plots\]'"):
        check_drawing(Path("a.png"))


def test_classes_have_their_names_where_the_data_has_them(raysim_command, tmp_path):  # noqa: F811
    kinds = ["cat", "dog", "owl"]
    rows = [f"{n / 60},{kinds[n % 3]}" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,kind", *rows]))
    words = ["dataset.name=files", f"dataset.path={tmp_path / 't.csv'}", "dataset.target=kind"]
    words += ["partition.name=iid", "clients=4", "model.name=linear"]
    code, out, err = raysim_command("data", "show", "mnist-fedavg", *words)
    assert code == 0, err
    total = next(line.split() for line in out.splitlines() if line.split()[:1] == ["all"])
    held = {word.split(":")[0]: int(word.split(":")[1]) for word in total[3:]}
    assert {*held} == {*kinds} and sum(held.values()) == int(total[1])
    drawn = drawing("heading", replace(holdings([[3, 0, 4], [0, 12, 0]]), words=tuple(kinds)))
    assert [tick.get_text() for tick in drawn.axes[0].get_xticklabels()] == kinds


def test_a_table_without_a_target_shows_its_columns(raysim_command, tmp_path, monkeypatch):  # noqa: F811
    rows = [f"{'abc'[n % 3]}.org,{n % 10 or ''},{'yes' if n % 10 > 5 else 'no'}" for n in range(60)]
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mails.csv").write_text("\n".join(["domain,links,spam", *rows]))
    code, out, err = raysim_command("data", "show", "mails.csv")
    assert code == 0, err
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "60 rows of 3 columns",
        "column holds missing",
        "domain 3 different words: 'a.org', 'b.org', 'c.org' 0",
        "links numbers from 1 to 9, 9 different 6",
        "spam 2 different words: 'no', 'yes' 0",
        f"choose what to predict: raysim run {tmp_path / 'mails.csv'} target=COLUMN",
    ]
    code, out, err = raysim_command("data", "show", "mails.csv", "target=spam", "client=domain")
    assert code == 0, err
    assert "target 'spam' (2 classes); clients 'domain'" in out
    assert "natural_or_iid, clients=3" in out and "1 (b.org)" in out


@pytest.mark.parametrize("columns", [["prompt=ask", "answer=reply"], ["text=ask"]])
def test_prompts_and_texts_without_a_target_show_their_clients(raysim_command, tmp_path, columns):  # noqa: F811
    folder = write_tokenizer(tmp_path / "t", ends=False)
    rows = [f"{'ab'[n % 2]}.org,buy now,lunch" for n in range(10)]
    (tmp_path / "asks.csv").write_text("\n".join(["domain,ask,reply", *rows]))
    given = [*columns, "client=domain", f"model.path={folder}"]
    code, out, err = raysim_command("data", "show", "asks.csv", *given)
    assert code == 0, err
    assert "clients 'domain'" in out and "1 (b.org)" in out and "choose what" not in out
