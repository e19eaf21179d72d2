"""Figures resolve, are drawn from the tables of real runs, and give the same bytes twice."""

from __future__ import annotations

import re
import shlex
from io import StringIO
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from rich.console import Console
from threadpoolctl import threadpool_limits

import raysim
from raysim.analysis import ANALYSES
from raysim.config import parse_override
from raysim.display.canvas import written
from raysim.tuning.figures.command import columns as read_columns
from raysim.workloads.figures import FIGURES
from raysim.workloads.papers.drawing import KINDS, draw
from raysim.workloads.papers.figure_pages import page
from tests.driver.analyses.common import OF_ANY_INPUTS
from tests.tasks import make_settings, make_task


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_resolves(name):
    figure = FIGURES[name]
    assert figure.draw in KINDS
    assert {figure.table_of(run) for run in figure.runs} <= {"metrics", *ANALYSES}
    drawn = dict.fromkeys(figure.table_of(run) for run in figure.runs if run.drawn)
    names = [run.name for run in figure.runs]
    assert len({*names}) == len(names)
    datasets = {}
    for place, run in enumerate(figure.runs):
        assert run.reference == "" or run.reference in names[:place]
        settings = raysim.load_config(run.preset or figure.preset, figure.overrides(run))
        assert settings.analysis == (
            () if figure.table == "metrics" or not run.drawn else tuple(drawn)
        )
        datasets[run.name] = settings.dataset.title
        assert datasets[run.name] == datasets.get(run.reference, datasets[run.name])
        if figure.table == "metrics":
            scores = ("loss", "loss_at_temperature", *settings.dataset.scoring.metrics)
            metrics = {f"test_{name}" for name in scores}
            if settings.evaluation.train_set:
                metrics |= {name.replace("test", "train_set") for name in metrics}
            for column in {*figure.values} - metrics - {"train_loss"}:
                assert column.startswith("client_accuracy_") and settings.evaluation.clients


def test_the_settings_on_a_page_can_be_typed():
    console = Console(width=1000, record=True, file=StringIO())
    for name, figure in FIGURES.items():
        console.print(page(name))
        lines = console.export_text(clear=True).splitlines()
        for run in figure.runs:
            [line] = [each for each in lines if each.startswith(f" {run.name}  ")]
            preset, *typed = shlex.split(line.removeprefix(f" {run.name} "))
            found = raysim.load_config(preset, dict(map(parse_override, typed)))
            expected = run.preset or figure.preset
            assert found == raysim.load_config(expected, figure.overrides(run))


def test_a_page_names_the_presets_with_deviations():
    console = Console(width=1000, record=True, file=StringIO())
    console.print(page("mifl-3"))
    others = "all others, and deviations: raysim list presets mifl-mnist-2nn-iid | "
    assert f"{others}mifl-mnist-2nn-noniid" in console.export_text()


def test_the_list_of_all_figures_of_the_papers_names_each_that_is_drawn():
    lines = (Path(__file__).parents[2] / "workloads/README.md").read_text().splitlines()
    start = lines.index("| paper | figure | counterpart |")
    table = list(takewhile(lambda line: line.startswith("|"), lines[start + 2 :]))
    named = [name for line in table for name in re.findall(r"`([a-z]+-c?\d+[a-z]?)`", line)]
    assert sorted(named) == sorted(FIGURES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with all analyses, and a reference."""
    folder = tmp_path_factory.mktemp("figures")
    task = make_task((30,) * 6)
    common = {
        "rounds": 2,
        "evaluation.clients": True,
        "evaluation.train_set": True,
        "fraction": 0.5,
    }
    raysim.run(make_settings(folder / "reference", **common | {"rounds": 1}), task)
    analyses = {"analysis": OF_ANY_INPUTS, "reference": str(folder / "reference")}
    raysim.run(make_settings(folder / "run", **common | analyses), task)
    plane = {"rounds": 1, "engine.backend": "inline", "out": str(folder / "plane")}
    raysim.run(raysim.load_config("flexchill-plane", plane | {"analysis": "decision_regions"}))
    return folder / "run"


TWICE = "mifl-7"
QUICK = {TWICE, *{(f.draw, f.table): name for name, f in FIGURES.items()}.values()}
"""A figure of each kind, and one that is drawn twice."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.full) for n in FIGURES],
)
def test_a_figure_is_drawn(name, run):
    figure = FIGURES[name]
    recorded = run.with_name("plane") if figure.table == "decision_regions" else run
    tables = {each.name: read_columns(recorded, figure, each) for each in figure.runs if each.drawn}
    canvas = draw(figure, tables, ["shortened"])
    drawn = [a for a in canvas.axes if a.lines or a.collections or a.images or a.patches]
    assert drawn
    title, note = (" ".join(t.split()) for t in (canvas.get_suptitle(), canvas.get_supxlabel()))
    assert (title, note) == (f"{figure.title} {figure.source}", "shortened")
    if name == TWICE:
        again = draw(figure, tables, ["shortened"])
        for suffix in ("svg", "png"):
            content = written(canvas, suffix)
            assert content == written(again, suffix)
        assert b"<svg" in written(canvas, "svg")
    check_places(canvas)


def check_places(canvas: Any) -> None:
    """Check that legend, title and notes cover no panel, and that axes with ticks have names."""
    canvas.draw_without_rendering()
    beside = [*canvas.legends, *(text for text in canvas.texts if text.get_text())]
    boxes = [each.get_window_extent() for each in beside]
    panels = [axes.get_tightbbox() for axes in canvas.axes if axes.axison]
    assert len(boxes) >= 2
    assert not [(a, b) for a in boxes for b in panels if a.overlaps(b)]
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    for axes in canvas.axes:
        if axes.lines or axes.patches:
            assert axes.get_xlabel() and axes.get_ylabel()


def test_regions_have_the_classes_of_the_grid_and_the_samples_of_the_clients():
    """A panel for each client, then one for all of them; the first coordinate runs to the right."""
    points, left = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)], [(4, 0.2, 0.3, 5)]
    rows = [(c, x1, x2, int(10 * c + 2 * x1 + x2)) for c in (4, 7, -1) for x1, x2 in points]
    samples = [*left, (7, 0.6, 0.7, 2), (7, 0.8, 0.1, 3)]
    kinds = ["point"] * len(rows) + ["sample"] * len(samples)
    names = ("client", "x1", "x2", "label")
    columns = dict(zip(names, map(np.array, zip(*rows, *samples, strict=True)), strict=True))
    columns |= {"kind": np.array(kinds), "round": np.ones(len(kinds))}
    canvas = draw(FIGURES["flexchill-3"], {"T=1": columns})
    titles = [axes.get_title() for axes in canvas.axes]
    assert titles == ["T=1\nclient 4", "T=1\nclient 7", "T=1\naggregated model"]
    colours = matplotlib.colormaps["tab10"]
    for axes, client in zip(canvas.axes, (4, 7, -1), strict=True):
        shown = axes.images[0].get_array()
        for x1, x2 in ((0, 0), (0, 1), (1, 0), (1, 1)):  # rows of the image are x2, from below
            label = int(10 * client + 2 * x1 + x2) % 10
            assert tuple(shown[x2, x1]) == pytest.approx(colours(label))
        own = [s for s in samples if client in (s[0], -1)]
        drawn = axes.collections[0]
        assert drawn.get_offsets().tolist() == [[x1, x2] for _, x1, x2, _ in own]
        assert drawn.get_facecolors() == pytest.approx(np.array([colours(s[3]) for s in own]))


def test_curves_are_the_means_of_the_rounds():
    columns = {
        "round": np.array([1, 1, 2, 2, 3]),
        "kl_mean_client": np.array([1.0, 3.0, 5.0, np.nan, 2.0]),
        "kl_client_mean": np.array([2.0, 4.0, 6.0, 8.0, 1.0]),
    }
    canvas = draw(FIGURES["fedmax-2"], {"FedMAX, gamma 0": columns})
    found = {a.get_title(): [line.get_xydata().tolist() for line in a.lines] for a in canvas.axes}
    assert found == {
        "KL(mean || client)": [[[1, 2], [2, 5], [3, 2]]],
        "KL(client || mean)": [[[1, 3], [2, 7], [3, 1]]],
    }


def test_curves_have_a_panel_for_each_column_and_the_colour_of_their_row():
    """A run that is missing shifts no colour and no panel."""
    columns = {"round": np.array([1, 2]), "test_accuracy": np.array([0.1, 0.2])}
    figure, tables = FIGURES["flexchill-9"], {}
    for number, run in enumerate(figure.runs):
        tables[run.name] = {**columns, "test_loss_at_temperature": np.array([number, number])}
    del tables["T=4, FedProx"]
    canvas = draw(figure, tables)
    panels = [(axes.get_title(), axes.get_ylabel()) for axes in canvas.axes]
    assert panels == [
        ("FedProx", "test accuracy"),
        ("SCAFFOLD", "test accuracy"),
        ("FedProx", "test loss at T"),
        ("SCAFFOLD", "test loss at T"),
    ]
    lines = [{each.get_label(): each for each in axes.lines} for axes in canvas.axes]
    temperatures = [label for label in lines[0] if "control" not in label]
    assert temperatures == ["T=2", "T=1", "T=0.5", "T=0.25", "T=0.05"]
    rates = {"4": "0.08", "2": "0.04", "1": "0.02", "0.5": "0.01", "0.25": "0.005"}
    controls = {f"control of {value} at lr={rate}" for value, rate in rates.items()}
    assert {*lines[0]} - {*temperatures} == controls
    assert [*lines[0]] == [*lines[2]]
    assert [*lines[1]] == [*lines[3]] == ["T=4", *lines[0]]
    for label, line in lines[0].items():
        assert {each[label].get_color() for each in lines} == {line.get_color()}
    looks = {(line.get_color(), line.get_linestyle()) for line in lines[1].values()}
    assert len(looks) == 11  # more than there are colours
    assert {line.get_ydata()[0] for line in lines[0].values()} == {0.1}
    found = [lines[place]["T=2"].get_ydata()[0] for place in (2, 3)]
    order = [run.name for run in figure.runs]
    assert found == [order.index("T=2, FedProx"), order.index("T=2, SCAFFOLD")]


@pytest.mark.parametrize("number", [1, 2, "4b", 5, 6, 7, 9, 13, 16, 17, 18, 19])
def test_a_control_takes_the_first_steps_of_the_lowest_temperature(number):
    """Its lr / T is that of T=0.05 in its figure's preset; its name says T, and lr if it fits."""
    figure, controls = FIGURES[f"flexchill-{number}"], 0
    for run in (run for run in figure.runs if run.drawn):
        name = run.preset or figure.preset
        own, preset = (raysim.load_config(name, each) for each in (figure.overrides(run), {}))
        value, lr = own.local.temperature, own.local.lr
        if run.name.startswith("control"):
            controls += 1
            name = f"control of {value:g}"
            assert run.name.split(",")[0] in (name, f"{name} at lr={lr:g}")
            assert lr / value == pytest.approx(preset.local.lr / 0.05)
        else:
            assert run.name.startswith(f"T={value:g}") and lr == preset.local.lr
    assert controls


def test_panels_of_curves_are_wrapped_and_each_part_begins_a_row():
    figure = FIGURES["flexchill-10"]
    columns = {name: np.array([1.0]) for name in ("round", *figure.values)}
    canvas = draw(figure, dict.fromkeys((run.name for run in figure.runs), columns))
    shown = [axes.get_title() if axes.axison else "" for axes in canvas.axes]
    batches = [f"B={size}" for size in (8, 16, 32, 64, 128)]
    assert shown == [*batches, "", *batches, ""]
    assert canvas.axes[6].get_ylabel() == "test loss at T"


def test_the_axis_of_one_value_names_it_and_the_title_of_its_parts_each_of_several():
    names = ("round", "train_set_accuracy", "test_accuracy", "test", "train")
    columns = {name: np.array([1.0]) for name in names}
    found = {}
    for name in ("dnc-8", "mifl-6a"):
        run = FIGURES[name].runs[0]
        axes = draw(FIGURES[name], {run.name: columns}).axes
        found[name] = [(each.get_title(), each.get_ylabel()) for each in axes]
    dnc = "cifar10 skew 95-5"
    panel, axis = "2nn iid E=1 B=inf C=0.0", "mutual information [nats]"
    assert found == {
        "dnc-8": [(dnc, "training accuracy"), (dnc, "test accuracy")],
        "mifl-6a": [(f"{panel}\ntest samples", axis), (f"{panel}\ntraining samples", axis)],
    }


def test_accuracies_over_a_setting_are_lines_beside_the_levels_of_runs_without_it():
    """By the runs' last rounds; a run that is missing leaves its point out."""
    figure, tables = FIGURES["fedmax-3"], {}
    for number, run in enumerate(figure.runs):
        accuracy = np.array([np.nan, 0.9, number / 100])
        tables[run.name] = {"round": np.array([1, 2, 3]), "test_accuracy": accuracy}
    del tables["600 rounds, L2 norm, 0.001"]
    canvas = draw(figure, tables)
    found = {
        (axes.get_title(), line.get_label()): [*map(list, line.get_data())]
        for axes in canvas.axes
        for line in axes.lines
    }
    entropy, norm = [1, 10, 100, 1e3, 1e4], [1e-4, 1e-3, 1e-2, 1e-1]
    levels = {
        "FedAvg, 3000 rounds": [[0, 1], [0.18] * 2],
        "FedAvg, 600 rounds": [[0, 1], [0.19] * 2],
    }
    assert found == {
        ("maximum entropy", "3000 rounds"): [entropy, [0.0, 0.01, 0.02, 0.03, 0.04]],
        ("L2 norm", "3000 rounds"): [norm, [0.05, 0.06, 0.07, 0.08]],
        ("maximum entropy", "600 rounds"): [entropy, [0.09, 0.1, 0.11, 0.12, 0.13]],
        ("L2 norm", "600 rounds"): [[1e-4, 1e-2, 1e-1], [0.14, 0.16, 0.17]],
        **{
            (panel, name): at
            for panel in ("maximum entropy", "L2 norm")
            for name, at in levels.items()
        },
    }
    assert {axes.get_xscale() for axes in canvas.axes} == {"log"}
    assert [axes.get_xlabel() for axes in canvas.axes] == ["beta", "beta"]


def test_a_t_sne_does_not_depend_on_the_number_of_threads():
    """BLAS adds 512 activations in another order with two threads, and points move far."""
    draws, activations = np.random.default_rng(0), np.empty(200, dtype=object)
    client = np.repeat(np.arange(10), 20)
    values = np.maximum(draws.normal(size=(200, 512)), 0) + draws.normal(size=(10, 512))[client]
    activations[:] = [*values.astype(np.float32)]
    ones = np.ones(200, dtype=int)
    columns = {"round": ones, "client": client, "label": client, "activations": activations}
    drawn = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            canvas = draw(FIGURES["fedmax-7"], {"FedAvg": columns})
        drawn.append([each.get_offsets().tolist() for each in canvas.axes[0].collections])
    assert len(drawn[0][0]) == 20
    assert drawn[0] == drawn[1]


def test_differences_are_drawn_apart_for_participants_and_others():
    columns = {
        "round": np.array([1, 1, 1]),
        "participant": np.array([True, False, False]),
        "accuracy_before": np.array([0.75, 0.25, 0.5]),
        "accuracy_after": np.array([0.5, 0.75, 0.5]),
    }
    canvas = draw(FIGURES["flexchill-7"], {"T=1": columns})
    assert [axes.get_title() for axes in canvas.axes] == ["clients of the round", "other clients"]
    assert [axes.lines[0].get_ydata().tolist() for axes in canvas.axes] == [[-0.25], [0.25]]


def test_divergence_of_rounds_up_to_the_reference_is_left_out():
    columns = {
        "round": np.repeat([1, 2, 3, 4], 2),
        "layer": np.tile([1, 2], 4),
        "divergence": np.array([1.0, 1.0, 1e-17, 0.0, 2e-12, 3e-12, 4.0, 5.0]),
    }
    canvas = draw(FIGURES["dnc-5"], {"FedAvg": columns})
    assert [line.get_label() for line in canvas.axes[0].lines] == ["round 3", "round 4"]
    assert canvas.axes[0].lines[0].get_ydata().tolist() == [2e-12, 3e-12]
