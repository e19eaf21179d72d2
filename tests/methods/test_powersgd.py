"""PowerSGD against NumPy: half of unequal clients, both residuals, a term in the objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.methods.fedprox import FedProx
from raysim.methods.powersgd import PowerSgd
from raysim.numbers.seeds import torch_generator
from raysim.storage.client_states import ClientStates
from tests.methods.test_oracle import LR, NAMES, assert_close
from tests.methods.test_transforms import MOMENTUM, local_training, run_half

MU = 0.7


class ProximalPowerSgd(PowerSgd):
    """PowerSGD with a proximal term in the local objective."""

    def rules(self):
        return FedProx(mu=MU).rules()


def first_right(w, rank):
    """Return the first Q of each matrix that P and Q shrink."""
    draws = torch_generator(0, "server/q", 0)
    found: dict[int, np.ndarray] = {}
    for place in sorted(range(len(w)), key=lambda place: NAMES[place]):
        p = w[place]
        if p.ndim == 2 and rank * sum(p.shape) < p.size:
            shape = (p.shape[1], min(rank, *p.shape))
            found[place] = torch.randn(shape, generator=draws).double().numpy()
    return found


def powersgd(w, clients, cohorts, *, rank, own, mu, local):
    """Return the last model, and the errors of clients by number and matrix."""
    right = first_right(w, rank)
    errors: dict[tuple[int, int], np.ndarray] = {}
    for cohort in cohorts:
        sizes = np.array([float(len(clients[k][1])) for k in cohort])
        shares = dict(zip(cohort, sizes / sizes.sum(), strict=True))
        nothing = [np.zeros_like(p) for p in w]
        after = {k: local_training(w, clients[k], LR, nothing, local, mu) for k in cohort}
        moved = [sum(shares[k] * after[k][n] for k in cohort) for n in range(len(w))]
        for n, q in right.items():
            whole = {k: after[k][n] - w[n] + errors.get((k, n), 0) for k in cohort}
            left = np.linalg.qr(sum(shares[k] * whole[k] @ q for k in cohort))[0]
            parts = {k: whole[k].T @ left for k in cohort}
            mean = sum(shares[k] * parts[k] for k in cohort)
            for k in cohort:
                errors[k, n] = whole[k] - left @ (parts[k] if own else mean).T
            right[n] = mean
            moved[n] = w[n] + left @ mean.T
        w = moved
    return w, errors


@pytest.mark.parametrize(
    ("name", "rank", "residual", "more"),
    [
        ("powersgd", 1, "own", {}),
        ("powersgd", 2, "mean", MOMENTUM),
        (f"{__name__}:ProximalPowerSgd", 1, "own", {"engine.vectorize": 2}),
        ("powersgd", 12, "own", {}),
    ],
)
def test_model_and_errors_are_numpy_s(tmp_path, name, rank, residual, more):
    """At rank 12 P and Q would hold no fewer values: it is FedAvg."""
    settings = {"method.name": name, "method.rank": rank, "method.residual": residual, **more}
    result, w, clients, cohorts = run_half(tmp_path, settings)
    mu = MU if "Proximal" in name else 0.0
    own = residual == "own"
    expected, errors = powersgd(w, clients, cohorts, rank=rank, own=own, mu=mu, local=more)
    assert_close(result.params, expected)
    states = ClientStates(result.run_dir / "clients")
    assert bool(errors) == (rank < 12)
    for k, n in errors:
        kept = states.read(k, max(states.versions(k)), torch.device("cpu"))["error"]
        np.testing.assert_allclose(kept[NAMES[n]].numpy(), errors[k, n], atol=1e-5)


@pytest.mark.parametrize(("residual", "trips"), [("own", 2), ("mean", 3)])
def test_bytes_are_those_of_the_factors(tmp_path, residual, trips):
    """Of the first matrix [16, 12], at rank 1; the second is [5, 16]."""
    settings = {"method.name": "powersgd", "method.rank": 1, "method.residual": residual}
    result, w, _, _ = run_half(tmp_path, settings)
    shapes = [p.shape for p in w if p.ndim == 2]
    rows, columns = (4 * sum(shape[side] for shape in shapes) for side in (0, 1))
    model = 4 * sum(p.size for p in w)
    biases = model - 4 * sum(r * c for r, c in shapes)
    row = result.metrics.to_pylist()[-1]
    assert row["bytes_up"] == 2 * (rows + biases + columns)
    assert row["bytes_down"] == 2 * (model + columns + rows + (columns if trips == 3 else 0))
