"""Ray's endpoint for Prometheus has the values of runs, those of slots too."""

from __future__ import annotations

import re
import time
import urllib.request

import pytest
import ray

import raysim
from raysim.driver.listeners import ray_metrics_listener as exporting
from tests.tasks import make_settings, make_task

PATIENCE_SECONDS = 60
PATTERN = r'^ray_raysim_(\w+){.*?method="(\w+)".*?run="(.*?)"} (\S+)$'


def exported(run: str) -> dict[str, float]:
    """Return what the node's endpoint has of a run of FedProx, by metric."""
    (node,) = ray.nodes()
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    text = urllib.request.urlopen(url, timeout=PATIENCE_SECONDS).read().decode()
    found = re.findall(PATTERN, text, re.MULTILINE)
    return {name: float(value) for name, *labels, value in found if labels == ["fedprox", run]}


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize("backend", ["ray", "inline"])  # a slot's runs are inline ones
def test_rounds_clients_and_scores_are_exported(tmp_path, backend):
    engine = {"engine.backend": backend, "engine.actors": 1}
    chosen = {"method.name": "fedprox", "evaluation.every": 2, "rounds": 9, **engine}
    chosen["evaluation.holdout"] = 0.3
    settings = make_settings(tmp_path / f"exported-{backend}", **chosen)
    with raysim.rounds(settings, make_task((8, 7, 6, 9))) as rounds:
        rows = [next(rounds) for _ in range(3)]
        expected = {
            "round": 3,
            "clients_total": sum(row["clients"] for row in rows),
            "train_loss": rows[2]["train_loss"],
            "score": rows[1]["holdout_accuracy"],  # the third round is not evaluated
        }
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := exported(f"exported-{backend}")) != expected:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


@pytest.mark.parametrize(("interval", "rounds"), [(0.0, [1, 1, 1, 2]), (3600.0, [1, 2])])
def test_gauges_are_set_again_during_a_round(tmp_path, monkeypatch, interval, rounds):
    """Ray drops those that are not, and a round may take longer than two of its reports."""
    recorded: dict[str, list[float]] = {}

    class Recorded:
        def __init__(self, name, *_):
            self.set = recorded.setdefault(name, []).append

        def set_default_tags(self, labels):
            return self

    monkeypatch.setattr(exporting, "ray_runs", lambda: True)
    monkeypatch.setattr(exporting, "Gauge", Recorded)
    monkeypatch.setattr(exporting, "REFRESH_SECONDS", interval)
    settings = make_settings(tmp_path / "run", rounds=2, fraction=1.0)
    raysim.run(settings, make_task((8, 7)))
    assert recorded["raysim_round"] == rounds
