"""Figures resolve, are drawn from the tables of real runs, and give the same bytes twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.analysis import ANALYSES
from raysim.cli.app import main
from raysim.cli.figures import _columns
from raysim.workloads.figures import FIGURES
from raysim.workloads.figures.drawing import KINDS, draw, rendered
from tests.tasks import make_settings, make_task

SMALL = [
    *("dataset.name=synthetic", "dataset.users=4", "dataset.samples=30", "clients=4"),
    *("dataset.test_samples=20", "partition.name=dirichlet", "model.name=synthetic-mlp"),
    *("engine.backend=inline", "local.epochs=1", "fraction=0.5"),
]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_resolves(name):
    figure = FIGURES[name]
    assert figure.draw in KINDS
    assert figure.table in {"metrics", *ANALYSES}
    labels = [run.label for run in figure.runs]
    assert len({run.folder for run in figure.runs}) == len(labels)
    for place, run in enumerate(figure.runs):
        assert run.reference == "" or run.reference in labels[:place]
        settings = raysim.load_config(run.preset or figure.preset, figure.overrides(run))
        assert settings.analysis == (
            () if figure.table == "metrics" or not run.drawn else (figure.table,)
        )
        assert settings.dataset.title == raysim.load_config(figure.preset).dataset.title


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with all analyses, and a reference."""
    folder = tmp_path_factory.mktemp("figures")
    task = make_task((30,) * 6)
    common = {"rounds": 2, "evaluation.clients": True, "fraction": 0.5}
    raysim.run(make_settings(folder / "reference", **common | {"rounds": 1}), task)
    analyses = {"analysis": [*ANALYSES], "reference": str(folder / "reference")}
    raysim.run(make_settings(folder / "run", **common | analyses), task)
    return folder / "run"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn(name, run):
    figure = FIGURES[name]
    columns = _columns(run, figure.table)
    labels = [each.label for each in figure.runs if each.drawn]
    canvas = draw(figure, dict.fromkeys(labels, columns), "shortened")
    drawn = [a for a in canvas.axes if a.lines or a.collections or a.images or a.patches]
    assert drawn
    assert figure.title in canvas.get_suptitle() and "shortened" in canvas.get_suptitle()
    if name == "fedmax-2":
        again = draw(figure, dict.fromkeys(labels, columns), "shortened")
        for suffix in ("svg", "png"):
            content = rendered(canvas, suffix)
            assert content == rendered(again, suffix)
        assert b"<svg" in rendered(canvas, "svg")


def test_curves_are_the_means_of_the_rounds():
    columns = {
        "round": np.array([1, 1, 2, 2, 3]),
        "kl_mean_client": np.array([1.0, 3.0, 5.0, np.nan, 2.0]),
    }
    canvas = draw(FIGURES["fedmax-2"], {"a": columns})
    [line] = canvas.axes[0].lines
    assert line.get_xydata().tolist() == [[1, 2], [2, 5], [3, 2]]


def test_differences_are_drawn_apart_for_participants_and_others():
    columns = {
        "round": np.array([1, 1, 1]),
        "participant": np.array([True, False, False]),
        "accuracy_before": np.array([0.75, 0.25, 0.5]),
        "accuracy_after": np.array([0.5, 0.75, 0.5]),
    }
    canvas = draw(FIGURES["flexchill-7"], {"T=1": columns})
    assert [axes.get_title() for axes in canvas.axes] == ["participant", "not participant"]
    assert [axes.lines[0].get_ydata().tolist() for axes in canvas.axes] == [[-0.25], [0.25]]


def test_divergence_of_rounds_up_to_the_reference_is_left_out():
    columns = {
        "round": np.repeat([1, 2, 3, 4], 2),
        "layer": np.tile([1, 2], 4),
        "divergence": np.array([1.0, 1.0, 1e-17, 0.0, 2.0, 3.0, 4.0, 5.0]),
    }
    canvas = draw(FIGURES["dnc-5"], {"FedAvg": columns})
    assert [line.get_label() for line in canvas.axes[0].lines] == ["round 3", "round 4"]
    assert canvas.axes[0].lines[0].get_ydata().tolist() == [2, 3]


def figure(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["raysim", "figure", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_same_command_goes_on_and_another_one_is_refused(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = ["dnc-5", "--out", str(out), "--rounds", "2", *SMALL]
    assert figure(monkeypatch, *words) == 0
    content = (out / "dnc-5.svg").read_bytes()
    rows = pq.read_table(out / "fedavg/analysis/weight_divergence.parquet").to_pylist()
    assert [row["round"] for row in rows] == [1, 1, 2, 2]
    assert pq.read_table(out / "pre-pass/metrics.parquet")["round"].to_pylist() == [1]
    assert "shortened: 2 of 8 rounds" in capsys.readouterr().out
    monkeypatch.setattr(raysim, "run", None)  # nothing is run twice
    (out / "dnc-5.svg").unlink()
    assert figure(monkeypatch, *words) == 0
    assert (out / "dnc-5.svg").read_bytes() == content
    assert figure(monkeypatch, *words, "local.lr=0.5") == 2
    assert "holds a run with local.lr=0.001 (here 0.5)" in capsys.readouterr().err
