"""What clients keep of their own survives: resumed and on actors, they deploy the same models."""

from __future__ import annotations

import pytest

import raysim
from raysim.testing.contract import StopAfter
from tests.methods.personal import DEPLOYED_LOSS, EVALUATED
from tests.tasks import UNEQUAL, make_settings, make_task

STATEFUL = {
    "apfl": {"method.adaptive": True},
    "fedala": {"method.max_epochs": 12},
}
ACTORS = {"engine.backend": "ray", "engine.actors": 2}


def settings_of(folder, method, **overrides):
    short = {"method.name": method, "rounds": 4, "fraction": 0.5, "checkpoint_every": 1}
    return make_settings(folder, **short, **EVALUATED, **STATEFUL[method], **overrides)


def resumed(folder, method, task):
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings_of(folder, method), task, StopAfter(2))
    return raysim.resume(folder, task)


def on_actors(folder, method, task):
    return raysim.run(settings_of(folder, method, **ACTORS), task)


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize("way", [resumed, on_actors])
@pytest.mark.parametrize("method", STATEFUL)
def test_clients_deploy_the_same_models(tmp_path, method, way):
    task = make_task(UNEQUAL)
    whole = raysim.run(settings_of(tmp_path / "whole", method), task)
    found = way(tmp_path / "other", method, task)
    losses = [result.metrics[DEPLOYED_LOSS].to_pylist() for result in (whole, found)]
    assert losses[0] == losses[1] and len({*losses[0]}) == 4
