"""Runs whose clients Oort selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import StopAfter, make_settings, make_task, model_of

SIZES = (12, 30, 8, 40, 25, 17, 9, 33, 21, 14)
OORT = {
    "clock.name": "devices",
    "selection.name": "oort",
    "selection.decay": 0.5,
    "fraction": 0.3,
    "rounds": 6,
}


def run(path: Path, **overrides: Any) -> raysim.Result:
    return raysim.run(make_settings(path, **{**OORT, **overrides}), make_task(SIZES))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path / "clients.parquet").drop(["seconds"]).to_pylist()


def test_clients_report_their_mean_squared_loss(tmp_path):
    """Steps so short leave the first model, of which the loss is taken sample by sample."""
    network = SmallNet()
    task = make_task(SIZES, lambda: network)
    raysim.run(make_settings(tmp_path, **{**OORT, "rounds": 1, "local.lr": 1e-9}), task)
    found = rows_of(tmp_path)
    assert len(found) == 3
    for row in found:
        x, y = samples(SIZES[row["client"]], row["client"])
        with torch.no_grad():
            logits = network(torch.from_numpy(x)).double().log_softmax(1)
        losses = -logits[np.arange(len(y)), y]
        assert row["squared_loss"] == pytest.approx(float((losses**2).mean()), rel=1e-4)


def test_results_lead_to_the_next_cohort(tmp_path):
    """The utility of a round is that of the exploited clients, n * sqrt(mean squared loss)."""
    result = run(tmp_path)
    rows = rows_of(tmp_path)
    seen: set[int] = set()
    for number, utility in enumerate(result.metrics["exploited_utility"].to_pylist(), start=1):
        of_round = [row for row in rows if row["round"] == number]
        known = [row for row in of_round if row["client"] in seen]
        seen |= {row["client"] for row in of_round}
        worth = [SIZES[row["client"]] * np.sqrt(row["squared_loss"]) for row in known]
        assert utility == pytest.approx(np.mean(worth) if worth else 0.0)
    assert result.metrics["clients"].to_pylist() == [3] * 6
    assert any(utility > 0 for utility in result.metrics["exploited_utility"].to_pylist())


def test_a_stopped_run_selects_the_same_clients(tmp_path):
    more = {"clock.policy": "over_selection", "clock.extra": 2}
    run(tmp_path / "whole", **more)
    settings = make_settings(tmp_path / "part", **OORT, **more)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings, make_task(SIZES), StopAfter(3))
    raysim.resume(tmp_path / "part", make_task(SIZES))
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "part")
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "part")


def test_clients_are_exploited_from_the_second_round_without_new_ones(tmp_path):
    """Four rounds of three hear all of ten clients, the fifth is uniform; resumed after four."""
    chosen = {"selection.epsilon": 1.0, "selection.decay": 1.0, "rounds": 7}
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(tmp_path, **{**OORT, **chosen})
        raysim.run(settings, make_task(SIZES), StopAfter(4))
    result = raysim.resume(tmp_path, make_task(SIZES))
    rows = rows_of(tmp_path)
    assert {row["client"] for row in rows if row["round"] <= 4} == {*range(10)}
    utilities = result.metrics["exploited_utility"].to_pylist()
    assert [utility > 0 for utility in utilities] == [False] * 5 + [True] * 2


def test_oort_is_quicker_than_a_uniform_cohort(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("client,speed\n" + "\n".join(f"{c},{1e5 * 3.0**c}" for c in range(10)))
    table = {"clock.table": str(path), "rounds": 10, "fraction": 0.3}
    chosen = run(tmp_path / "oort", **table, **{"selection.percentile": 30.0})
    settings = make_settings(tmp_path / "uniform", **table, **{"clock.name": "devices"})
    uniform = raysim.run(settings, make_task(SIZES))
    seconds = [sum(r.metrics["virtual_seconds"].to_pylist()) for r in (chosen, uniform)]
    assert seconds[0] < 0.7 * seconds[1]


def test_actors_have_the_bytes_and_times_of_the_inline_run(tmp_path, resident_actors):
    """Under Oort, partial work and drop-outs."""
    chosen = {
        "clock.policy": "partial",
        "clock.deadline": 0.35,
        "clock.kind": "iot",
        "clock.dropout": 0.2,
        "rounds": 3,
    }
    run(tmp_path / "inline", **chosen)
    run(tmp_path / "actors", **chosen, **{"engine.backend": "ray", "engine.actors": 2})
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "actors")
    assert rows_of(tmp_path / "inline") == rows_of(tmp_path / "actors")
