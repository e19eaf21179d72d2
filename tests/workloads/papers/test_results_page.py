"""RESULTS.md: its commands, and its Python as it stands there, on files whose figures are known."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.config import parse_override
from raysim.testing.tasks import SmallNet, samples
from raysim.tuning.figures import plan as figures
from raysim.tuning.tables import plan as tables
from raysim.workloads.sweep_values import parse_axes
from raysim.workloads.sweeps import read_sweep
from raysim.workloads.tables import TABLES
from tests.tasks import make_settings

PAGE = (Path(__file__).parents[3] / "workloads/papers/RESULTS.md").read_text(encoding="utf-8")
ROUNDS, DIVERGENCE, PAIRED, LOGITS, GAINS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [
    shlex.split(" ".join(text.replace("\\\n", " ").split()), comments=True)
    for text in re.findall(r"(?:^    |`)(raysim (?:(?!\n    raysim|\n\n|`).)*)", PAGE, re.M | re.S)
]


def options_of(words: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return options and overrides of a command."""
    options, overrides, rest = {}, {}, iter(words)
    for word in rest:
        if word.startswith("--"):
            options[word[2:]] = next(rest)
        elif "=" in word:
            overrides.update([parse_override(word)])
    return options, overrides


def test_there_are_commands():
    assert {"run", "table", "figure", "sweep", "compare"} == {words[1] for words in COMMANDS}


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[1] == "sweep"], ids=" ".join)
def test_a_sweep_is_accepted(words):
    """Every cell of it has settings that there are."""
    _, _, name, *rest = words
    overrides = [word for word in rest if re.match(r"[a-z_.]+=", word)]
    others = [word for word in rest if word not in overrides]
    options = dict(zip(others[::2], others[1::2], strict=True))
    assert {*options} <= {"--metric", "--jobs", "--out"}
    metrics = filter(None, (options.get("--metric"),))
    table = read_sweep(name, *parse_axes(overrides), metrics=(*metrics,))
    for cell in table.cells:
        assert raysim.load_config(cell.preset, cell.settings)


OTHERS = [words for words in COMMANDS if words[1] not in ("compare", "sweep")]


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_a_command_is_accepted(words):
    """Those of the page name presets, tables, figures, cells and settings that there are."""
    _, kind, name, *rest = words
    options, overrides = options_of(rest)
    assert {*options} <= {"only", "rounds", "seeds", "jobs", "out"}
    only = tuple(filter(None, (options.get("only"),)))
    rounds = int(options["rounds"]) if "rounds" in options else None
    if kind == "run":
        assert not options and raysim.load_config(name, overrides)
    elif kind == "figure":
        assert figures.make_plan(name, overrides, rounds, only).runs
    else:
        seeds = range(int(options["seeds"])) if "seeds" in options else None
        assert tables.make_plan(TABLES[name], only, rounds, seeds, overrides).chosen


def printed(code: str, run: Path, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """Run code on a run directory and return the numbers that it prints."""
    assert '"RUN/' in code
    (run / "snippet.py").write_text(code.replace('"RUN/', f'"{run}/'))
    runpy.run_path(str(run / "snippet.py"))
    text = re.sub(r"float64|tensor", "", capsys.readouterr().out)
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def test_figures_of_rounds(tmp_path, capsys):
    accuracy = [n / 100 for n in range(1, 61)]
    accuracy[50] = 0.2  # 50% in round 50
    pq.write_table(pa.table({"test_accuracy": accuracy}), tmp_path / "metrics.parquet")
    found = printed(ROUNDS, tmp_path, capsys)
    assert found == pytest.approx([5, 10, 40.5, 50 - 20])


def test_paired_tests_against_the_first_row(tmp_path, capsys):
    """Of differences 1 to 5, t is 3 sqrt(2), p 0.0132; of -1, 1, 3, 5, 7, 3 / sqrt(2), 0.1012."""
    first, steps = [3.0, 1.0, 4.0, 1.0, 5.0], {"b": range(1, 6), "c": range(-1, 8, 2)}
    values = {"a": first} | {r: [*map(sum, zip(first, d, strict=True))] for r, d in steps.items()}
    cell = {"column": "x", "metric": "final(train_loss)"}
    rows = [
        {"row": row, **cell, "values": [{"seed": n, "value": v} for n, v in enumerate(each)]}
        for row, each in values.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    found = printed(PAIRED, tmp_path, capsys)
    worse, unlike = [*steps["b"], 0.0132, 2 * 0.0132], [*steps["c"], 0.1012, 0.1012]
    assert found == pytest.approx([*worse, *unlike], abs=1e-4)


def test_medians_of_divergences(tmp_path, capsys):
    """Of rounds 1 to 50, 51 to 100 and so on; files of parts as a run writes them."""
    folder = tmp_path / "analysis/kl_activations.parquet"
    folder.mkdir(parents=True)
    rounds = np.arange(1, 201)
    table = {"round": rounds, "kl_mean_client": 1.0 * rounds, "kl_client_mean": 2.0 * rounds}
    pq.write_table(pa.table(table), folder / "part.parquet")
    medians = [[last, last - 24.5, 2 * last - 49] for last in (50, 100, 150, 200)]
    assert printed(DIVERGENCE, tmp_path, capsys) == pytest.approx(np.ravel(medians))


def test_deviation_of_logits_and_loss_at_the_temperature_of_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    parts = {"dataset.name": "tests.blobs:Blobs", "model.name": "tests.blobs:Linear"}
    run = tmp_path / "run"
    params = raysim.run(
        make_settings(run, rounds=1, fraction=0.02, **parts, **{"local.temperature": 0.25})
    ).params
    network = SmallNet()
    network.load_state_dict(params)
    x, y = map(torch.as_tensor, samples(2500, 2))
    with torch.no_grad():
        logits = network(x / 2).double().numpy()
    scaled = logits / 0.25
    losses = np.log(np.exp(scaled).sum(axis=1)) - scaled[np.arange(2500), y]
    found = printed(LOGITS, run, capsys)
    assert found == pytest.approx([logits.std(), losses.mean()], abs=1e-4)


def test_gains_over_local_training(tmp_path, capsys):
    """Of 10, 0 and 20 points: 10 +- 4.3027 * 10 / sqrt(3); clients are matched by number."""
    for method, clients, column, accuracy in (
        ("local", [0, 1, 2], "personal_local_test_accuracy", [0.5, 0.6, 0.7]),
        ("fedper", [2, 0, 1], "personal_local_test_accuracy", [0.9, 0.6, 0.6]),
    ):
        run = tmp_path / "runs" / method / "seed-0"
        run.mkdir(parents=True)
        settings = {"partition": {"name": "iid"}, "method": {"name": method}}
        (run / "config.json").write_text(json.dumps(settings))
        table = {"client": clients, column: accuracy, "local_test_accuracy": [0.1] * 3}
        pq.write_table(pa.table(table), run / "client_accuracy.parquet")
    assert printed(GAINS, tmp_path, capsys) == pytest.approx([10, -14.841, 34.841], abs=1e-3)
