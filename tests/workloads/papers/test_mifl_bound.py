"""MIFL's bound: its constants and values by hand, and a run below and one above it."""

from __future__ import annotations

import numpy as np
import pytest

import raysim
from raysim.numbers.seeds import stream
from raysim.workloads.papers.mifl import bound as module
from raysim.workloads.papers.mifl.bound import METHODS, PROBLEM, Regression, bound, measured

# |x|^2 is 4 and 1, so H = diag(2, 1/2), E |x|^2 x x^T = diag(8, 1/2), and R^2 = max(8/2, 1).
UNEQUAL = Regression(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([1.0, 3.0]), 0.5)


def test_constants_by_hand():
    assert UNEQUAL.radius == pytest.approx(4)
    assert UNEQUAL.least_curvature == pytest.approx(0.5)
    assert UNEQUAL.lr == pytest.approx(1 / 8)
    assert UNEQUAL.least_steps == pytest.approx(8 * np.log(2) * 8 * np.log(8))
    assert UNEQUAL.excess(np.zeros(2)) == pytest.approx((2 * 1 + 0.5 * 9) / 2)
    # Points that are not along the axes of H: one direction, seen by both coordinates.
    turned = Regression(UNEQUAL.points @ np.array([[0.6, 0.8], [-0.8, 0.6]]), np.zeros(2), 0.5)
    assert (turned.radius, turned.least_curvature) == (pytest.approx(4), pytest.approx(0.5))


@pytest.mark.parametrize("doubled", [False, True])
def test_the_bound_is_that_of_the_recursion(doubled):
    """Eq. 17, round after round; eq. 12 is above it by what is missing to the whole series."""
    noise, at, expected = 8 * 2 * 0.5**2, 5.0, []
    for t in range(6):
        at = at / 2 + noise / (200 * 2**t if doubled else 200)
        expected.append(at + (0 if doubled else 2 * noise / 200 / 2 ** (t + 1)))
    assert bound(UNEQUAL, 5.0, 200, 6, doubled) == pytest.approx(expected)


def test_what_its_assumptions_refuse():
    with pytest.raises(raysim.SettingsError, match=r"^steps=92: must be above 92\.25 for"):
        bound(UNEQUAL, 1.0, 92, 3, doubled=False)
    flat = Regression(np.array([[1.0, 0.0]]), np.zeros(2), 1.0)
    with pytest.raises(raysim.SettingsError, match="full rank"):
        bound(flat, 1.0, 10**6, 3, doubled=False)


def test_the_test_loss_is_the_excess_and_each_client_takes_part_once(tmp_path):
    schedule = (5, 10)
    clients = UNEQUAL.clients(schedule, 2, seed=3)
    assert [len(y) for _, y in clients] == [5, 5, 10, 10]
    settings = {**UNEQUAL.settings(2, 2), "out": str(tmp_path / "run")}
    config = raysim.load_config("mnist-fedavg", settings)
    result = raysim.run(config, UNEQUAL.task(clients))
    weights = result.params["weight"][0].numpy()
    assert result.metrics["test_loss"].to_pylist()[-1] == pytest.approx(UNEQUAL.excess(weights))
    rates = {*result.metrics["lr"].to_pylist()}
    assert rates == {UNEQUAL.lr}
    # Two rounds by hand: w <- w - eta (x.w - y) x, and the mean of the last half of the models.
    w = np.zeros(2)
    for number, steps in enumerate(schedule):
        ends = []
        for client in (2 * number, 2 * number + 1):
            own, path = w, []
            order = stream(0, "batches", number, 0, client).permutation(steps)
            for i in order:
                x, y = clients[client][0][i], clients[client][1][i]
                own = own - UNEQUAL.lr * (x @ own - y) * x
                path.append(own)
            ends.append(np.mean(path[steps // 2 :], axis=0))  # 3 of 5, 5 of 10
        w = np.mean(ends, axis=0)
    assert weights == pytest.approx(w, rel=1e-6)


def test_tail_averages_stay_below_the_bound_and_last_steps_do_not():
    steps, rounds = 400, 5
    limit = np.array(bound(PROBLEM, 1.0, steps, rounds, doubled=False))
    found = {
        name: measured(PROBLEM, [steps] * rounds, 1, range(3), METHODS[name]).mean(0)
        for name in ("FedAvg, last half", "FedAvg, last step")
    }
    assert (found["FedAvg, last half"] < limit).all()
    assert (found["FedAvg, last step"][-3:] > limit[-3:]).all()


def test_its_command_prints_and_draws_both_schedules(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "SCHEDULES", {"equal": (8, 8), "doubled": (8, 16)})
    path = tmp_path / "bound.svg"
    monkeypatch.setattr(
        "sys.argv", ["bound", "--seeds", "1", "--cohort", "3", "--figure", str(path)]
    )
    module.main()
    printed = capsys.readouterr().out.splitlines()
    first = [f"{1 / 2 + 32 / 8:8.4f}", f"{1 / 4 + 32 / 8:8.4f}"]
    assert printed[2] == f"{'bound':20} {' '.join(first)}"
    assert [line[:20].strip() for line in printed[2:6]] == ["bound", *METHODS]
    drawn = path.read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("equal local steps", "bound"))
