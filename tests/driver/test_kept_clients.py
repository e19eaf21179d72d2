"""`keep_clients=true` keeps what the clients of the last round have trained."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task, model_of

OPTIONS = {"rounds": 3, "keep_clients": True, "fraction": 0.5, "local.lr": 0.05}


def run(path, **options):
    return raysim.run(make_settings(path, **OPTIONS | options), make_task(UNEQUAL))


def kept(path):
    """Return the round, and the networks by client."""
    (folder,) = (path / "client_models").iterdir()
    found = {int(file.stem): load_file(file) for file in folder.iterdir()}
    return int(folder.name.removeprefix("round_")), found


def clients_of(result, number):
    table = result.run_dir / "clients.parquet"
    return {row["client"] for row in pq.read_table(table).to_pylist() if row["round"] == number}


WAYS = {
    "plain": {},
    "stacked": {"engine.vectorize": 3},
    "actors": {"engine.backend": "ray", "engine.actors": 2},
    "clipped": {"channel": {"clip": {"norm": 0.01}}},
    "median": {"aggregation.name": "median"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("resident_actors")
def test_their_mean_by_samples_is_the_model(tmp_path, way):
    """Without what stands between them and the model; with it they are the same as without."""
    result = run(tmp_path / "run", **WAYS[way])
    number, networks = kept(tmp_path / "run")
    assert number == 3 and {*networks} == clients_of(result, 3)
    if way in ("plain", "stacked", "actors"):
        samples = {client: UNEQUAL[client] for client in networks}
        for name, tensor in result.params.items():
            total = sum(n * networks[c][name].double() for c, n in samples.items())
            mean = (total / sum(samples.values())).float()
            torch.testing.assert_close(tensor, mean, rtol=1e-5, atol=1e-6)
    else:
        first = run(tmp_path / "one", rounds=1, **WAYS[way])
        plain = run(tmp_path / "plain", rounds=1)
        assert model_of(first.run_dir) != model_of(plain.run_dir)
        one, other = kept(first.run_dir)[1], kept(plain.run_dir)[1]
        assert one.keys() == other.keys()
        assert all(t.equal(other[c][n]) for c, of in one.items() for n, t in of.items())


def test_they_change_nothing_and_survive_an_interruption(tmp_path):
    whole = run(tmp_path / "whole")
    without = run(tmp_path / "without", keep_clients=False)
    assert model_of(whole.run_dir) == model_of(without.run_dir)
    assert not (tmp_path / "without/client_models").exists()
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(tmp_path / "cut", **OPTIONS, checkpoint_every=2)
        raysim.run(settings, make_task(UNEQUAL), StopAfter(2))
    raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    (one, networks), (other, others) = kept(tmp_path / "cut"), kept(tmp_path / "whole")
    assert one == other and networks.keys() == others.keys()
    assert all(t.equal(others[c][n]) for c, of in networks.items() for n, t in of.items())


def test_a_client_that_is_dropped_after_its_training_has_none(tmp_path):
    task = make_task(UNEQUAL)
    task.clients[2] = (1e30 * task.clients[2][0], task.clients[2][1])
    options = {"fraction": 1.0, "on_client_error": "drop", "rounds": 1}
    raysim.run(make_settings(tmp_path, **OPTIONS | options), task)
    assert {*kept(tmp_path)[1]} == {0, 1, 3, 4, 5}
