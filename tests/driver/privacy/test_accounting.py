"""Accounting of privacy: the library's numbers, the least noise, and the end of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raysim
from raysim.api.privacy import PrivacyClaim
from raysim.driver.privacy.accounting import Accounting, Cohorts, accounting_of
from tests.tasks import Notes, make_settings, make_task

SIZES = (2, 3, 160, 17, 40, 80)
BASE = {
    **{"aggregation.weighting": "fixed", "selection.name": "poisson", "fraction": 0.5},
    **{"channel.gaussian.clip": 0.3, "channel.gaussian.noise": 2.0, "local.epochs": 1},
}


def accounting(draw: Any, size: float, noise: float, accountant: Any = "rdp") -> Accounting:
    claim = PrivacyClaim(noise, None, 1e-5, accountant)
    return accounting_of(claim, Cohorts(draw, size, 1000), 1, "channel.gaussian")


@pytest.mark.parametrize(
    ("given", "rounds", "epsilon"),
    [
        (("poisson", 10, 4.0, "rdp"), 10_000, 1.035490),
        (("poisson", 10, 4.0, "pld"), 10_000, 0.946999),
        (("poisson", 100, 2.0, "rdp"), 100, 2.580572),
        (("fixed", 100, 2.0, "rdp"), 100, 14.053750),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_epsilons_are_those_of_the_library(given, rounds, epsilon):
    """The last two have the same noise: replacing a client of a fixed cohort costs five times."""
    assert accounting(*given).epsilon(rounds) == pytest.approx(epsilon, rel=1e-6)


def test_the_least_noise_keeps_to_epsilon():
    """Of pfl-research's preset for CIFAR-10, with Renyi divergences in place of its accountant."""
    claim = PrivacyClaim(None, 2.0, 1e-6, "rdp", 1000, 10**6)
    found = accounting_of(claim, Cohorts("fixed", 50, 1000), 1500, "channel.gaussian")
    assert (
        found.epsilon(1500)
        <= 2
        < Accounting(claim, found.cohorts, found.noise - 2e-4).epsilon(1500)
    )
    assert found.cohorts == Cohorts("poisson", 1000, 10**6) and "hypothetical" in str(found)
    impossible = PrivacyClaim(None, 1e-9, 1e-6, "rdp")
    with pytest.raises(raysim.SettingsError, match="epsilon=1e-09: no noise is enough for rounds"):
        accounting_of(impossible, Cohorts("poisson", 500, 1000), 10_000, "channel.gaussian")


@pytest.mark.parametrize(
    ("share", "noise", "rounds", "printed"),
    [
        (0.01, 4.0, 10_000, 1.26),  # Abadi et al., CCS 2016, figure 2 at 100 epochs
        (256 / 60_000, 1.3, 15 * 60_000 // 256, 1.19),  # TensorFlow Privacy's tutorial on MNIST
        (256 / 60_000, 1.1, 60 * 60_000 // 256, 3.01),
        (256 / 60_000, 0.7, 45 * 60_000 // 256, 7.10),
    ],
)
def test_divergences_give_the_epsilons_that_papers_print(share, noise, rounds, printed):
    """By the conversion of their time, which later ones improve on: log(1/delta) / (order - 1)."""
    spent = accounting("poisson", 1000 * share, noise)._rdp
    orders = np.array(spent.orders)
    epsilons = rounds * np.array(spent.rdp) + np.log(1e5) / (orders - 1)
    assert f"{epsilons.min():.2f}" == f"{printed:.2f}"
    assert accounting("poisson", 1000 * share, noise).epsilon(rounds) < printed


@pytest.mark.parametrize(("accountant", "least"), [("rdp", 0.01), ("pld", 0.1)])
def test_noise_too_small_to_be_accounted_is_refused_and_not_chosen(accountant, least):
    """Of 1e-200 an accountant has no number, and PLD of 0.001 takes terabytes."""
    for noise in (1e-200, 0.9 * least):
        with pytest.raises(raysim.SettingsError, match=r"\.noise=.*must be 0, .* or at least") as e:
            accounting("poisson", 100, noise, accountant)
        assert str(e.value).endswith(f"{least:g} with accountant={accountant}")
    claim, cohorts = PrivacyClaim(None, 1e9, 1e-5, "rdp"), Cohorts("poisson", 100, 1000)
    assert accounting_of(claim, cohorts, 1, "channel.gaussian").noise == 0.01


def test_a_run_ends_before_the_round_that_would_exceed_epsilon(tmp_path):
    """It is evaluated there, says so, is finished, and does not go on with more rounds."""
    spent = Accounting(PrivacyClaim(2.0, None, 1e-5, "rdp"), Cohorts("poisson", 3.0, 6), 2.0)
    limit = (spent.epsilon(3) + spent.epsilon(4)) / 2
    more = {"channel.gaussian.epsilon": limit, "evaluation.every": 2, "rounds": 8}
    notes, task = Notes(), make_task(SIZES)
    result = raysim.run(make_settings(tmp_path, **BASE, **more), task, notes)
    assert result.metrics["epsilon"].to_pylist() == [spent.epsilon(n) for n in (1, 2, 3)]
    accuracies = result.metrics["test_accuracy"].to_pylist()
    assert [value is None for value in accuracies] == [True, False, False]
    assert result.summary["final_accuracy"] == accuracies[-1]
    assert result.summary["stopped_by"] == "epsilon"
    words = f"RDP, add or remove one client, delta=1e-05; {Cohorts('poisson', 3.0, 6)}, noise 2.0"
    assert result.summary["privacy"] == words
    first, last = notes.notes[:2]
    assert first == f"privacy: epsilon {spent.epsilon(3):.4g} after 3 rounds ({words})"
    assert last.startswith("privacy: the run ends after 3 rounds of 8: the next would have epsilon")
    again = Notes()
    assert raysim.resume(tmp_path, task, again).summary == result.summary
    assert any("nothing is left to do" in note for note in again.notes)
    longer = raysim.resume(tmp_path, task, overrides={"rounds": 20})
    assert longer.metrics.num_rows == 3 and longer.summary["stopped_by"] == "epsilon"


def test_noise_that_epsilon_has_chosen_is_for_that_many_rounds(tmp_path):
    chosen = {**BASE, "channel.gaussian.noise": None, "channel.gaussian.epsilon": 8.0, "rounds": 2}
    result = raysim.run(make_settings(tmp_path, **chosen), make_task(SIZES))
    assert 7.9 < result.summary["epsilon"] <= 8 and result.summary["stopped_by"] == "rounds"
    with pytest.raises(raysim.RunError, match=r"must be 2 with channel.gaussian.epsilon without a"):
        raysim.resume(tmp_path, make_task(SIZES), overrides={"rounds": 3})


def test_a_limit_below_the_first_round_is_refused(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"epsilon=0.1: the first round has epsilon"):
        more = {"channel.gaussian.epsilon": 0.1}
        raysim.run(make_settings(tmp_path / "run", **BASE, **more), make_task(SIZES))
    assert not (tmp_path / "run").exists()
