"""Resource profiles: settings that exist, that fit the machines they are named after, and yield."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import raysim
from raysim.cluster.profiles import PROFILES
from raysim.execution.resources import Node, plan_actors
from raysim.training.stacked.stack_size import stacks_of

MACHINES = {
    "laptop": ([Node(8, 0)], 100, 8, 0),
    "one-gpu": ([Node(16, 1)], 100, 1, 1),
    "8x8-gpus": ([Node(64, 8)] * 8, 1000, 64, 1),
}
"""By profile: the nodes, a cohort, and the actors and GPUs each that come of it."""


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_fills_its_machines(name):
    settings = raysim.load_config("mnist-million", PROFILES[name].overrides)
    nodes, cohort, actors, gpus = MACHINES[name]
    plan = plan_actors(settings.engine, nodes, cohort)
    assert (plan.actors, plan.gpus) == (actors, gpus)
    assert plan.cpus > 0


def test_groups_of_a_large_cohort_keep_the_gpus_busy():
    settings = raysim.load_config("mnist-million", PROFILES["8x8-gpus"].overrides)
    cohort = settings.cohort_size
    assert cohort == 1000
    groups = stacks_of(range(cohort), np.full(cohort, 60), settings.engine.vectorize)
    assert len(groups) == 63


def test_what_is_typed_wins_over_the_profile(
    raysim_command, working_directory, tmp_path, monkeypatch
):
    monkeypatch.chdir(working_directory)
    monkeypatch.setattr(sys, "path", [*sys.path, str(working_directory)])
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    typed = ["engine.backend=inline", "engine.gpus_per_actor=0", "rounds=1", "out=out"]
    code, _, err = raysim_command("run", "my.toml", *typed, "--profile", "8x8-gpus")
    assert (code, err) == (0, "")
    engine = json.loads((working_directory / "out/config.json").read_text())["engine"]
    assert (engine["gpus_per_actor"], engine["vectorize"]) == (0, 16)
    assert engine["actors"] == "auto"  # the file says 1; the profile replaces it


def test_profiles_are_listed(raysim_command):
    code, out, _ = raysim_command("list", "profiles")
    assert code == 0 and all(name in out for name in PROFILES)
    code, out, _ = raysim_command("list", "profiles", "one-gpu")
    assert code == 0 and "engine.gpus_per_actor=1.0\nengine.vectorize=auto\n" in out
    code, _, err = raysim_command("list", "profiles", "one_gpu")
    assert (code, err) == (2, "raysim: one_gpu: no such profile; did you mean 'one-gpu'?\n")
