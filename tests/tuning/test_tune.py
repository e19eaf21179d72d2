"""Studies from Python, and the study file of the page."""

from __future__ import annotations

import re
from pathlib import Path

import raysim
from tests.test_readme import METHOD
from tests.tuning.common import SPACE, make_study

PAGE = (Path(__file__).parents[2] / "tuning/README.md").read_text(encoding="utf-8")


def test_trials_as_a_table_and_the_best_settings(tmp_path, local_slots):
    make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json")
    table = {"space": SPACE, "sampler": "random", "first": [{"method.mu": 0.1}], "trials": 2}
    result = raysim.tune(settings, table, out=tmp_path / "out")
    rows = result.trials.to_pylist()
    assert [row["trial"] for row in rows] == [0, 1] and rows[0]["method.mu"] == 0.1
    best = max(rows, key=lambda row: row["accuracy"])
    assert [found.local.lr for found in result.best] == [best["local.lr"]]


def test_the_study_of_the_page_searches_a_method_of_ones_own(tmp_path, local_slots, monkeypatch):
    written = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert METHOD and written and written[1].count("\n") <= 12
    (tmp_path / "my_method.py").write_text(METHOD[1])
    (tmp_path / "my_study.toml").write_text(written[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = {"rounds": 1, "local.epochs": 1, "fraction": 0.01, "dataset.name": "mnist"}
    result = raysim.tune("my_study.toml", overrides=quick, trials=1)
    (row,) = result.trials.to_pylist()
    assert row["state"] == "complete" and row["method.beta"] == 0.9
