"""Updates of clients: losses, norms and cosines by hand, and the report's worst clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.analysis import updates
from raysim.analysis.updates import cosines, sketched
from raysim.results.compare import group_runs
from raysim.results.report.unlike import ORDER, unlike_tables
from raysim.results.runs import read_run
from tests.tasks import make_settings, make_task

GIVEN = {"rounds": 2, "fraction": 1.0, "analysis": ("client_updates",), "keep_clients": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run four clients, of which the last has the labels of other classes."""
    task = make_task((30, 20, 9, 24))
    *others, (x, y) = task.clients
    task = replace(task, clients=[*others, (x, (y + 1) % 3)])
    path = tmp_path_factory.mktemp("run") / "run"
    raysim.run(make_settings(path, **GIVEN), task)
    return path, task


def flat(tensors):
    return torch.cat([tensors[name].double().reshape(-1) for name in sorted(tensors)]).numpy()


def test_figures_by_hand(run):
    """From the clients' networks of the last round, and the model that they started from."""
    path, task = run
    found = pq.read_table(path / "analysis/client_updates.parquet").to_pylist()
    assert [(row["round"], row["client"]) for row in found] == [
        (number, client) for number in (1, 2) for client in range(4)
    ]
    last = found[4:]
    assert [row["samples"] for row in last] == [30, 20, 9, 24]
    mean = flat(load_file(path / "model.safetensors"))
    kept = sorted((path / "client_models").rglob("*.safetensors"))
    trained = np.stack([flat(load_file(file)) for file in kept])
    sizes = np.array([30, 20, 9, 24])
    assert mean == pytest.approx(sizes @ trained / sizes.sum(), abs=1e-5)
    rates = [row["update_norm"] for row in last]
    apart = np.linalg.norm(trained[:, None] - trained[None], axis=2)
    for i in range(4):
        for j in range(4):
            assert apart[i, j] <= rates[i] + rates[j] + 1e-6
    for row, file, (x, y) in zip(last, kept, task.clients, strict=True):
        network = task.model()
        network.load_state_dict(load_file(file))
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(
                network.eval()(torch.as_tensor(x)), torch.as_tensor(y)
            )
        assert row["loss_after"] == pytest.approx(float(loss), rel=1e-4)
        assert row["loss_before"] > row["loss_after"]


def test_the_client_with_other_labels_is_the_first_in_the_report(run):
    path, task = run
    record = read_run(path)
    labels = np.concatenate([np.asarray(y) for _, y in task.clients])
    [grid] = unlike_tables(group_runs([record]), lambda record: labels)
    assert grid.rows[0][0].text == "3" and len(grid.rows) == 4
    assert [row[2].value for row in grid.rows] == sorted(row[2].value for row in grid.rows)
    assert grid.notes[0] == ORDER and grid.title.endswith(": 4 of 4 clients")
    assert [row[7].text for row in grid.rows] == ["2"] * 4


def test_cosines_by_hand():
    """With the mean of the others: (1, 0) with (1, 2), (2, 2) and (0, 0) with their sums."""
    found = cosines(np.array([[1.0, 0.0], [1.0, 2.0], [0.0, 0.0]]))
    assert found == pytest.approx([1 / np.sqrt(5), 1 / np.sqrt(5), 0.0])
    assert cosines(np.array([[1.0, 1.0], [-2.0, -2.0]])) == pytest.approx([-1, -1])


def test_a_sketch_keeps_directions():
    """To about a hundredth, and small updates whole."""
    draws = np.random.default_rng(1)
    common, own = (torch.from_numpy(draws.normal(size=100_000)) for _ in range(2))
    pair = np.stack([sketched(common + own * share).numpy() for share in (0.0, 2.0)])
    assert pair.shape == (2, updates.BUCKETS)
    assert cosines(pair) == pytest.approx([1 / np.sqrt(5)] * 2, abs=0.03)
    assert np.linalg.norm(pair[0]) == pytest.approx(float(common.norm()), rel=0.03)
    assert torch.equal(sketched(common[:5]), common[:5])


def test_one_client_has_none_to_be_compared_with(tmp_path):
    given = {**GIVEN, "fraction": 0.2, "rounds": 1}
    raysim.run(make_settings(tmp_path / "run", **given), make_task((30, 20, 9, 24)))
    assert not (tmp_path / "run/analysis/client_updates.parquet").exists()
    record = read_run(tmp_path / "run")
    assert unlike_tables(group_runs([record]), lambda record: None) == []
