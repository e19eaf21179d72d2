"""Studies: their settings and ranges are checked before anything starts."""

from __future__ import annotations

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import raysim
from raysim.tuning.studies import STUDIES, find
from raysim.tuning.studies.ranges import grid_points
from raysim.tuning.studies.study import Study
from tests.tuning.common import make_study


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_resolves(name):
    resolved = STUDIES[name].resolve({"rounds": 3})
    assert resolved.settings.rounds == 3
    assert resolved.settings.evaluation.holdout == 0.1
    assert resolved.settings.target_accuracy is None
    (first,) = resolved.first
    assert [*first] == [*resolved.space]
    assert resolved.settings.override(first)


def test_the_ranges_that_were_asked_for():
    def space(name):
        return STUDIES[name].resolve({}).space

    assert space("fedmax-beta") == {"method.beta": FloatDistribution(1.0, 1e4, log=True)}
    assert space("activation-l2-beta") == {"method.beta": FloatDistribution(1e-4, 0.1, log=True)}
    assert space("temperature") == {"local.temperature": FloatDistribution(0.05, 4.0, log=True)}
    assert space("fedavg-schedule") == {
        "local.lr": FloatDistribution(1e-3, 0.5, log=True),
        "local.epochs": IntDistribution(1, 20),
        "local.batch_size": CategoricalDistribution((10, 20, 50, 100)),
        "fraction": CategoricalDistribution((0.1, 0.2, 0.5)),
    }


def test_an_override_fixes_what_was_tried(tmp_path):
    resolved = make_study(tmp_path).resolve({"method.mu": 0.3})
    assert set(resolved.space) == {"local.lr"}
    assert resolved.settings.to_dict()["method"]["mu"] == 0.3
    first = [{"method.mu": 0.1}, {"method.mu": 1.0, "local.lr": 0.1}]
    assert make_study(tmp_path, first=first).resolve({"method.mu": 0.3}).first == (
        {"local.lr": 0.1},
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"method.mu": 0.1, "local.lr": 0.1},
            "local.lr, method.mu: leave at least one to search; all are fixed",
        ),
        ({"evaluation.holdout": 0.0}, "evaluation.holdout=0.0: must be above 0; a study selects"),
        ({"out": "here"}, "out=here: use the option --out for a study"),
        ({"local.lr": -1.0}, "local.lr=-1.0: must be greater than 0"),
        ({"method.name": "fedavg"}, "method.mu: no such setting"),
    ],
)
def test_refusals(tmp_path, overrides, message):
    with pytest.raises(raysim.SettingsError, match=message):
        make_study(tmp_path).resolve(overrides)


UNKNOWN = {"method.lam": {"low": 1, "high": 2}}
LR = {"low": 0.001, "high": 0.5, "log": True}
WRONG = {
    "range": ({"space": {"local.momentum": {"low": 0.0, "high": 1.0}}}, "local.momentum=1.0: must"),
    "setting": ({"space": UNKNOWN}, "method.lam: no such setting"),
    "low": ({"space": {"local.lr": {"low": 1, "high": 0.5}}}, "local.lr.low=1: must be below high"),
    "log": ({"space": {"local.lr": {**LR, "low": 0}}}, "low=0: must be above 0 with log = true"),
    "type": ({"space": {"local.epochs": {"low": 1, "high": 2.5}}}, "local.epochs=2.5: must be a"),
    "high": ({"space": {"local.lr": {"low": 1}}}, "study.space.local.lr.high: must be given"),
    "word": (
        {"space": {"local.lr": {"low": "a", "high": 1}}},
        'study.space.local.lr.low="a": must',
    ),
    "key": ({"space": {"local.lr": {**LR, "lg": 1}}}, "space.local.lr.lg: no such setting; did"),
    "step": ({"space": {"local.lr": {"low": 0.1, "high": 0.5, "step": 0.3}}}, "step=0.3: must be"),
    "number": ({"space": {"local.lr": 3}}, r"local.lr=3: must be {low, high} or a list of choices"),
    "choices": ({"space": {"local.lr": []}}, r"local.lr=\[\]: must be a list of numbers"),
    "both": ({"space": {"local.lr": {"low": 1, "choices": [1]}}}, "or choices, not both"),
    "no space": ({"space": {}}, "study.space: must have at least one range"),
    "unknown": ({"sampler": "tpe", "samplers": 1}, "study.samplers: no such setting; did you mean"),
    "sampler": ({"sampler": "best"}, "^study.sampler=best: must be one of tpe, random, grid"),
    "pruner": ({"objectives": ["accuracy", "bytes"], "pruner": "median"}, "^study.pruner=median:"),
    "objective": ({"objectives": ["speed"]}, "^study.objectives=speed: must be distinct ones of"),
    "seeds": ({"space": {"seed": [1, 2]}, "over_seeds": "lower"}, "^study.over_seeds=lower: must"),
    "trials": ({"trials": 0}, "study.trials=0: must be greater than or equal to 1"),
    "first key": ({"first": [{"local.l": 1}]}, "study.first.0.local.l: is not searched; did you"),
    "first": ({"first": [{}, {"local.lr": 2}]}, "first.1.local.lr=2: must be 0.001 to 0.5, log"),
    "choice": ({"first": [{"method.mu": 0.2}]}, "mu=0.2: must be 0.0 | 0.1 | 1.0"),
    "equal": ({"space": {"local.lr": [0.1, 0.2, 0.1]}}, "must not have equal values"),
    "twice": (
        {"space": {"local.lr": [0.1], "local": {"lr": [0.2]}}},
        "study.space.local.lr: is given twice",
    ),
    "far": ({"space": {"seed": {"low": 1, "high": 10**400}}}, "must be from -2"),
    "out": ({"space": {"out": ["a", "b"]}}, "study.space.out: cannot be searched; the study"),
    "attack": ({"space": {"attack.eps": [0.1, 1]}}, "cannot be searched; the best trial would be"),
    "holdout": ({"space": {"evaluation.holdout": [0.0, 0.1]}}, "holdout: cannot be searched"),
    "constraint": (
        {"constraints": {"byte": 1}},
        "constraints.byte: no such setting; did you mean",
    ),
    "limit": ({"constraints": {"bytes": 0}}, "constraints.bytes=0: must be greater than 0"),
    "nan": ({"constraints": {"seconds": math.nan}}, "constraints.seconds=NaN: must be a finite"),
    "text": ({"constraints": {"bytes": "1e9"}}, 'constraints.bytes="1e9": must be a valid number'),
    "objectives": ({"objectives": "accuracy"}, 'objectives="accuracy": must be a valid list'),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables(tmp_path, name):
    table, message = WRONG[name]
    with pytest.raises(raysim.SettingsError, match=message.replace("|", r"\|")) as caught:
        study = make_study(tmp_path, **table)
        study.options()
        study.resolve({})
    assert "\n" not in str(caught.value)


MU = {"method.mu": {"low": 0.1, "high": 1, "when": {"method.name": "fedprox"}}}
NAMES = {"method.name": ["fedavg", "fedprox"]}
CIRCLE = {
    "local.lr": {**LR, "when": {"local.momentum": 0.5}},
    "local.momentum": {"choices": [0.5], "when": {"local.lr": 0.1}},
}
WRONG_CONDITIONS = {
    "circle": (CIRCLE, "study.space.local.lr.when: a circle of local.lr, local.momentum"),
    "unknown": ({"local.lr": {**LR, "when": {"method.nam": 1}}}, "when.method.nam: no such set"),
    "never": ({**NAMES, "local.lr": {**LR, "when": {"method.name": "x"}}}, "name=x: must be fedav"),
    "needed": ({**NAMES, "method.mu": [0.1]}, "method.mu: no such .* `when`, a condition on met"),
    "misspelt": ({"local.lr": {**LR, "when": {"method.name": "fedporx"}}}, "fedporx: no such meth"),
    "empty": ({**NAMES, "local.lr": {**LR, "when": {"method.name": []}}}, "must have at least one"),
    "real": (
        {"local.lr": LR, "local.epochs": {"choices": [1], "when": {"local.lr": 0.1}}},
        "when.local.lr: must be a setting with choices, or of integers",
    ),
    "none holds": ({"local.lr": {**LR, "when": {"method.name": "fedavg"}}}, "local.lr do not hold"),
    "itself": ({"local.lr": {**LR, "when": {"local.lr": 0.1}}}, "local.lr.when: a circle of local"),
}


@pytest.mark.parametrize("name", WRONG_CONDITIONS)
def test_wrong_conditions(tmp_path, name):
    space, message = WRONG_CONDITIONS[name]
    with pytest.raises(raysim.SettingsError, match=message):
        make_study(tmp_path, space=space).resolve({})


def test_a_condition_on_what_is_fixed_holds_always_or_never(tmp_path):
    study = make_study(tmp_path, space={**MU, **NAMES, "local.lr": LR})
    resolved = study.resolve({})
    assert [*resolved.space] == ["method.name", "method.mu", "local.lr"]
    assert resolved.space.conditions == {"method.mu": {"method.name": ("fedprox",)}}
    assert [*study.resolve({"method.name": "fedavg"}).space] == ["local.lr"]
    fixed = study.resolve({"method.name": "fedprox"}).space
    assert [*fixed] == ["method.mu", "local.lr"] and not fixed.conditions
    chain = {**MU, **NAMES, "local.epochs": {"choices": [1, 2], "when": {"method.mu": 0.5}}}
    chain["method.mu"] = {"choices": [0.5, 1.0], "when": {"method.name": "fedprox"}}
    study = make_study(tmp_path, space={**chain, "local.lr": LR})
    assert [*study.resolve({"method.name": "fedavg"}).space] == ["local.lr"]
    with pytest.raises(raysim.SettingsError, match=r"mu=0.5: is searched with method.name ="):
        first = [{"method.name": "fedavg", "method.mu": 0.5}]
        make_study(tmp_path, space={**MU, **NAMES}, first=first).resolve({})


def test_the_grid_has_no_point_twice_under_a_condition(tmp_path):
    mu = {"choices": [0.1, 1.0], "when": {"method.name": "fedprox"}}
    space = make_study(tmp_path, space={"method.mu": mu, **NAMES}).resolve({}).space
    assert space.points() == [
        {"method.name": "fedavg"},
        {"method.name": "fedprox", "method.mu": 0.1},
        {"method.name": "fedprox", "method.mu": 1.0},
    ]


def test_a_file_beats_the_defaults_of_a_study_and_overrides_beat_the_file(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'preset = "mnist-noniid"\nrounds = 7\ntarget_accuracy = 0.5\nlocal.epochs = 2\n'
        '[method]\nname = "fedprox"\n[evaluation]\nholdout = 0.2\n'
        "[study]\nspace.method.mu = { low = 0, high = 1 }\n"
    )
    settings = find(str(path)).resolve({"rounds": 3}).settings
    assert (settings.rounds, settings.target_accuracy) == (3, 0.5)
    assert (settings.evaluation.holdout, settings.method.title) == (0.2, "fedprox")
    assert (settings.local.epochs, settings.local.batch_size) == (2, 10)
    # Limits that are written as integers, of a setting that is a real number.
    assert find(str(path)).resolve({}).space == {"method.mu": FloatDistribution(0.0, 1.0)}
    run = raysim.load_config(path)  # as `raysim run` reads it
    assert run.rounds == 7 and run.evaluation.holdout == 0.2


def test_a_first_trial_has_what_its_values_depend_on(tmp_path):
    first = [{"method.mu": 0.5}, {"method.name": "fedprox", "method.mu": 1.0}]
    study = make_study(tmp_path, space={**MU, **NAMES, "local.lr": LR}, first=first)
    assert study.resolve({}).first == (
        {"method.name": "fedprox", "method.mu": 0.5},
        {"method.name": "fedprox", "method.mu": 1.0},
    )
    assert study.resolve({"method.name": "fedavg"}).first == ()
    several = {"choices": [1, 2], "when": {"method.mu": [0.1, 1.0]}}
    space = {**NAMES, "method.mu": {"choices": [0.1, 1.0], "when": {"method.name": "fedprox"}}}
    study = make_study(
        tmp_path, space={**space, "local.epochs": several}, first=[{"local.epochs": 2}]
    )
    message = r"local.epochs=2: must be given with method.mu = 0.1 \| 1.0"
    with pytest.raises(raysim.SettingsError, match=message):
        study.resolve({})


def test_a_file_is_read_as_load_config_reads_it(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'preset = "fedmax-cifar10-noniid"\ntarget_accuracy = "none"\nmethod.beta = 3.0\n[local]\n'
        "[study]\nspace.local.lr = [0.1, 0.2]\nfirst = [{ local.lr = 0.2 }]\n",
        encoding="utf-8-sig",  # as some editors save it
    )
    preset = raysim.load_config("fedmax-cifar10-noniid")
    settings = find(str(path)).resolve({"method.name": "fedavg"}).settings
    assert settings.method.title == "fedavg" and settings.local == preset.local
    assert find(str(path)).resolve({}).settings.method.beta == 3.0
    assert find(str(path)).resolve({}).first == ({"local.lr": 0.2},)
    path.write_text("preset = 5\n")
    with pytest.raises(raysim.SettingsError, match="preset=5: must be the name of a preset"):
        raysim.load_config(path)


def test_the_holdout_of_given_settings_stays(tmp_path):
    study = make_study(tmp_path)
    settings = raysim.load_config(tmp_path / "blobs.json", {"evaluation.holdout": 0.25})
    resolved = Study(study.table, settings).resolve({})
    assert resolved.settings.evaluation.holdout == 0.25


def test_the_same_sampler_on_the_command_line_keeps_its_options(tmp_path):
    sampler = {"name": "tpe", "n_startup_trials": 5}
    study = make_study(tmp_path, sampler=sampler, pruner="hyperband")
    found = study.options("tpe")
    assert (found.sampler, found.pruner) == ("tpe", "hyperband")
    assert found.sampler_options == study.options().sampler_options == {"n_startup_trials": 5}
    assert study.options("random", "none").sampler_options == {}


def test_a_choice_may_be_none(tmp_path):
    limit = {"partition.limit": ["none", 5]}
    epochs = {"local.epochs": {"choices": [1, 2], "when": {"partition.limit": "none"}}}
    first = [{"partition.limit": "none", "local.epochs": 2}]
    resolved = make_study(tmp_path, space=limit | epochs, first=first).resolve({})
    assert resolved.space["partition.limit"] == CategoricalDistribution((None, 5))
    assert resolved.first == ({"partition.limit": None, "local.epochs": 2},)
    assert [*make_study(tmp_path, space=epochs).resolve({}).space] == ["local.epochs"]


def test_grid():
    assert grid_points(CategoricalDistribution(("a", "b"))) == ["a", "b"]
    assert [*grid_points(IntDistribution(1, 7, step=3))] == [1, 4, 7]
    assert grid_points(FloatDistribution(0.0, 4.0)) == [0.5 * i for i in range(9)]
    powers = [10 ** (i / 2 - 4) for i in range(9)]
    assert grid_points(FloatDistribution(0.0, 0.3, step=0.1))[-1] == 0.3
    points = grid_points(FloatDistribution(1e-4, 1.0, log=True))
    assert points == pytest.approx(powers) and points[0] == 1e-4 and points[-1] == 1.0
