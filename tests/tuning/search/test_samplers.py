"""Samplers: the same draws twice, also by a tuner that is killed while it draws."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import CmaEsSampler

from raysim.tuning.search.decisions import copied
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.stateless import CmaEs, QuasiMonteCarlo
from tests.tuning.common import make_search, values
from tests.tuning.copies import Copies
from tests.tuning.search.test_search import finish, play


@pytest.mark.parametrize(
    ("sampler", "trials"),  # the first ten draws of tpe and gp are random
    [
        *(("tpe", 12), ("random", 4), ("grid", 4), ("cma-es", 12), ("qmc", 5), ("nsga2", 5)),
        pytest.param("gp", 12, marks=pytest.mark.full),
    ],
)
def test_the_same_draws_twice_and_after_an_interruption(tmp_path, sampler, trials):
    options = SearchOptions(sampler=sampler)
    for name in ("straight", "interrupted"):
        (tmp_path / name).mkdir()
    straight = make_search(tmp_path / "straight", options)
    play(straight, trials)
    play(make_search(tmp_path / "interrupted", options), 2)
    again = make_search(tmp_path / "interrupted", options)
    play(again, trials - 2)
    assert values(straight) == values(again)
    assert len({tuple(trial[1].values()) for trial in values(straight)}) == trials


LR = {"low": 1e-3, "high": 0.5, "log": True}
OPTIONS = {
    "tpe": {"n_startup_trials": 3, "multivariate": True},
    "cma-es": {"popsize": 4},
    "nsga2": {"population_size": 4},
}
DRAWN = [("random", 1), ("grid", 1), ("qmc", 1), ("tpe", 4), ("cma-es", 5), ("nsga2", 8)]
"""Trials that are drawn from the results of others, where a sampler does so."""


@pytest.mark.parametrize(("sampler", "number"), DRAWN)
def test_a_tuner_killed_while_it_draws_draws_the_same(tmp_path, sampler, number):
    """At each write of the draw of one trial."""
    options = SearchOptions(sampler, sampler_options=OPTIONS.get(sampler, {}))

    def ended(search, trial):
        finish(search, trial)
        play(search, 3)
        attributes = [each.system_attrs for each in search.study.get_trials()]
        found = values(search), attributes
        search.close()
        return found

    copies = Copies(folder := tmp_path / "study")
    folder.mkdir()
    search = make_search(folder, options)
    play(search, number)
    with copies.before_writes(search):
        trial = search.ask()
    straight = ended(search, trial)
    assert len(copies.seen) >= 4
    for write in copies:
        search = make_search(folder, options)
        trial = (*search.take_over(), None)[0] or search.ask()
        assert ended(search, trial) == straight, write


def test_a_copy_for_a_draw_has_the_parents_that_were_selected(tmp_path):
    search = make_search(tmp_path, SearchOptions("nsga2", sampler_options=OPTIONS["nsga2"]))
    play(search, 6)
    copy = copied(search.study, search.study.get_trials())
    kept, found = (each._storage.get_study_system_attrs(0) for each in (search.study, copy))
    assert "NSGAIISampler:parent:1" in kept and found == kept


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_another_seed_draws_otherwise(tmp_path, sampler):
    (tmp_path / "other").mkdir()
    first = make_search(tmp_path, SearchOptions(sampler=sampler))
    other = make_search(tmp_path / "other", SearchOptions(sampler=sampler), seed=1)
    play(first, 3)
    play(other, 3)
    assert [t[1] for t in values(first)] != [t[1] for t in values(other)]


def test_tpe_counts_the_trials_that_run(tmp_path):
    """By a constant liar, which keeps parallel trials apart."""
    drawn = {}
    for name, option in {
        "default": {},
        "on": {"constant_liar": True},
        "off": {"constant_liar": False},
    }.items():
        (tmp_path / name).mkdir()
        search = make_search(
            tmp_path / name, SearchOptions(sampler_options=OPTIONS["tpe"] | option)
        )
        play(search, 4)
        drawn[name] = [search.ask().params for _ in range(3)]
    assert drawn["default"] == drawn["on"] != drawn["off"]


@pytest.mark.full
def test_tpe_learns(tmp_path):
    search = make_search(tmp_path)
    play(search, 30, accuracy=lambda params: -abs(params["local.lr"] - 0.3))
    found = [trial[1]["local.lr"] for trial in values(search)]
    errors = [abs(lr - 0.3) for lr in found]
    first, later = errors[:10], errors[10:]  # the first ten are drawn at random
    assert sum(later) / len(later) < 0.6 * sum(first) / len(first)


def test_qmc_spreads_its_points(tmp_path):
    options = SearchOptions("qmc", sampler_options={"scramble": True})
    search = make_search(tmp_path, options)
    play(search, 8)
    logs = [math.log(trial[1]["local.lr"] / 1e-3) / math.log(500) for trial in values(search)]
    assert sorted(int(8 * share) for share in logs) == [*range(8)]  # a point in each eighth


def test_a_trial_that_is_tried_again_shifts_no_point(tmp_path):
    """Whether the next trial is drawn by its own tuner, or by one that takes it over."""
    drawn = {}
    for name in ("straight", "failed"):
        (tmp_path / name).mkdir()
        search = make_search(tmp_path / name, SearchOptions("qmc"))
        play(search, 2)
        if name == "failed":
            search.fail(search.ask(), "it fails")
            search.retry_failed()
        play(search, 2)
        trial = search.ask()
        drawn[name] = [each for _, each, *_ in values(search)][-2:], trial.params
    assert drawn["straight"] == drawn["failed"]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_whole_numbers_are_not_listed_for_a_point_that_was_not_tried():
    """Of a quadrillion; the first points that were not tried follow."""
    common = {"x": IntDistribution(1, 10**15), "y": CategoricalDistribution(["a", "b"])}
    study = optuna.create_study(sampler=QuasiMonteCarlo(number=1, common=common, coordinates=()))
    trials = [study.ask(common).params for _ in range(4)]
    assert trials[1:] == [{"x": 1, "y": "a"}, {"x": 1, "y": "b"}, {"x": 2, "y": "a"}]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("options", [{}, {"with_margin": True}, {"popsize": 5, "lr_adapt": True}])
def test_cma_es_has_the_distribution_of_optunas_own(options):
    def accuracy(trial):
        x = trial.suggest_float("x", 1e-3, 1, log=True)
        return -((math.log(x) + 3) ** 2) - abs(trial.suggest_int("y", 0, 9) - 7)

    kept = CmaEsSampler(seed=3, **options)
    study = optuna.create_study(direction="maximize", sampler=kept)
    study.optimize(accuracy, 30)
    space, with_steps = study.trials[1].distributions, "with_margin" not in options
    trans = _SearchSpaceTransform(space, transform_step=with_steps, transform_0_1=True)
    sampler = CmaEs(seed=4, **options)
    sampler._restore_optimizer(study.trials)
    found = sampler._init_optimizer(trans, study.direction)
    expected = kept._restore_optimizer(study.trials)  # as pickled when it was last told
    assert found.generation == expected.generation >= 4
    pair = [getattr(optimizer, "_cma", optimizer) for optimizer in (found, expected)]
    for name in ("_mean", "_C", "_sigma"):  # a pickled covariance is rounded to be symmetric
        np.testing.assert_allclose(*(getattr(each, name) for each in pair), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_cma_es_with_a_margin_goes_on_where_fewer_ranges_are_common(tmp_path):
    """Five trials search lr and mu, the sixth has no mu."""
    names = ["fedprox"] * 5 + ["fedavg"]
    mu = {"low": 0.0, "high": 1.0, "step": 0.25, "when": {"method.name": "fedprox"}}
    space = {"local.lr": LR, "method.name": ["fedavg", "fedprox"], "method.mu": mu}
    table = {"space": space, "first": [{"method.name": name} for name in names]}
    margin = {"popsize": 4, "with_margin": True}
    search = make_search(tmp_path, SearchOptions("cma-es", sampler_options=margin), table=table)
    play(search, 12)
    attributes = [trial.system_attrs for trial in search.study.get_trials()]
    sizes = [len(each["x_for_tell"]) for each in attributes[1:]]
    assert sizes == [2] * 5 + [1] * 6
    generations = [each["cmawm:generation"] for each in attributes[1:]]
    assert generations == [0] * 4 + [1] * 4 + [2] * 3


def test_cma_es_learns_and_keeps_no_pickle(tmp_path):
    """With a constraint, of which Optuna's own sampler warns."""
    search = make_search(tmp_path, SearchOptions("cma-es", constraints={"bytes": 1.0}))
    play(search, 25, accuracy=lambda params: -abs(params["local.lr"] - 0.03))
    trials = search.study.get_trials()
    errors = [-trial.value for trial in trials]
    assert sum(errors[15:]) / 10 < 0.3 * sum(errors[:10]) / 10
    kept = {key for trial in trials for key in trial.system_attrs}
    assert {key for key in kept if key.startswith("cma")} == {"cma:generation"}
