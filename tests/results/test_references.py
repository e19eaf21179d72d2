"""Runs whose metrics compare with a reference: grouped by the settings of the reference."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.results.compare import RunGroup, group_runs
from raysim.results.metrics import Metric, parse_metric
from raysim.results.references import reference_settings
from raysim.results.runs import read_run
from tests.cli.test_app import raysim_command  # noqa: F401 - a fixture
from tests.tasks import make_settings, make_task

CKA = parse_metric("analysis(cka, layer_1)")
TEMPERATURES = {0: 1.0, 1: 1.0, 2: 0.5}
"""Per seed, that of its reference."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder of runs `0`, `1`, `2` of equal settings, and their references `of-0`, ..."""
    task, chosen = make_task((12, 9)), {"rounds": 1, "local.epochs": 1}
    for seed, temperature in TEMPERATURES.items():
        reference = tmp_path / f"of-{seed}"
        warm = {"seed": seed, "local.temperature": temperature}
        raysim.run(make_settings(reference, **chosen, **warm), task)
        compared = {"seed": seed, "analysis": "cka", "reference": str(reference)}
        raysim.run(make_settings(tmp_path / str(seed), **chosen, **compared), task)
    return tmp_path


def groups_of(runs: Path, metrics: Sequence[Metric] = (CKA,)) -> list[RunGroup]:
    return group_runs([read_run(runs / str(seed)) for seed in TEMPERATURES], metrics)


def names(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Return the names of the runs by label."""
    return {group.label: [record.path.name for record in group.records] for group in groups}


def value_of(run: Path) -> float:
    """Return the CKA of the first layer with the reference, as the analysis wrote it."""
    rows = pq.read_table(run / "analysis/cka.parquet").to_pylist()
    (found,) = (
        row["cka"]
        for row in rows
        if (row["layer"], row["first"], row["second"]) == (1, "after", "reference")
    )
    return float(found)


def test_runs_are_one_group_where_the_references_differ_in_the_seed_alone(runs):
    groups = groups_of(runs)
    assert names(groups) == {
        "reference.local.temperature=1.0": ["0", "1"],
        "reference.local.temperature=0.5": ["2"],
    }
    values = [value_of(runs / str(seed)) for seed in TEMPERATURES]
    assert len(set(values)) == 3
    means = [group.cell(CKA).mean for group in groups]
    assert means == pytest.approx([math.fsum(values[:2]) / 2, values[2]], abs=1e-12)


def test_references_tell_no_runs_apart_where_no_metric_compares(runs):
    for metrics in ((), [parse_metric("final(test_loss)")]):
        assert names(groups_of(runs, metrics)) == {"fedavg": ["0", "1", "2"]}


def test_a_reference_that_has_another_model_by_now_is_known_by_its_digest(runs):
    digest = read_run(runs / "1").sealed("model of the reference")
    shutil.rmtree(runs / "of-1")
    shutil.copytree(runs / "of-2", runs / "of-1")
    for _ in range(2):  # the second time, it is not there
        assert names(groups_of(runs)) == {
            "reference.local.temperature=1.0": ["0"],
            f"reference.model={digest[:12]}": ["1"],
            "reference.local.temperature=0.5": ["2"],
        }
        shutil.rmtree(runs / "of-1", ignore_errors=True)
    shutil.rmtree(runs / "of-2")  # a group with a known reference is told from one without
    assert next(iter(names(groups_of(runs)))) == "fedavg"
    assert reference_settings(read_run(runs / "of-0")) == {}


def test_the_command_groups_by_reference(runs, raysim_command):  # noqa: F811
    paths = [str(runs / str(seed)) for seed in TEMPERATURES]
    for options, counts in ((("--metric", str(CKA)), {"n=1", "n=2"}), ((), {"n=3"})):
        code, out, _ = raysim_command("compare", *paths, *options)
        assert code == 0 and {*re.findall(r"n=\d", out)} == counts
