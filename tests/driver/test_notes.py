"""Notes on settings before a run, and a number of actors that has no clients."""

from __future__ import annotations

import pytest
from torch import nn

import raysim
from raysim.driver.start.checks.preflight import check_actors, initial_checkpoint
from raysim.driver.start.parts import RunParts
from raysim.federation.task import from_task
from tests.tasks import EQUAL, UNEQUAL, Notes, make_settings, make_task

TWICE = "clients are drawn by their samples, and weighting=examples weighs those drawn by them once"
WEIGHTED = {"selection.name": "weighted", "fraction": 0.5}
CHOICE = {"selection.name": "power_of_choice", "fraction": 0.34}


def normed(norm=nn.BatchNorm1d, **options):
    """Return a maker of a network with a norm between two layers."""

    def make():
        layers = nn.Linear(12, 4), norm(4, **options), nn.Linear(4, 3)
        return nn.Sequential(nn.Flatten(), *layers)

    return make


def frozen():
    """Return a network whose BatchNorm has frozen parameters, and no statistics."""
    network = normed(track_running_stats=False)()
    network[2].requires_grad_(False)
    return network


def notes_of(path, sizes, model=None, **overrides):
    notes = Notes()
    raysim.run(
        make_settings(path, rounds=1, **overrides),
        make_task(sizes, model or normed(nn.LayerNorm)),
        notes,
    )
    return notes.notes


@pytest.mark.parametrize(
    ("model", "method", "noted"),
    [
        (normed(), {"method.name": "fedbn"}, False),
        (normed(nn.LayerNorm), {"method.name": "fedbn"}, True),
        (normed(affine=False, track_running_stats=False), {"method.name": "fedbn"}, True),
        (frozen, {"method.name": "fedbn"}, True),
        (normed(nn.LayerNorm), {"method.name": "chain", "method.methods": {"fedbn": {}}}, True),
        (normed(nn.LayerNorm), {"method.name": "fedavg"}, False),
    ],
)
def test_fedbn_without_batchnorm_is_noted(tmp_path, model, method, noted):
    notes = notes_of(tmp_path / "run", EQUAL, model, **method)
    said = [note for note in notes if note.startswith("method.name=")]
    line = "the model has no BatchNorm layers to keep on clients, so that fedbn is FedAvg"
    assert said == [f"method.name={method['method.name']}: {line}"] * noted


@pytest.mark.parametrize(
    ("sizes", "more", "noted"),
    [
        (UNEQUAL, WEIGHTED, True),
        (UNEQUAL, CHOICE, True),
        (EQUAL, WEIGHTED, False),
        (UNEQUAL, {**WEIGHTED, "weighting": "uniform"}, False),
        (UNEQUAL, {**WEIGHTED, "fraction": 0.2}, False),  # one client has the whole weight
        (UNEQUAL, {**WEIGHTED, "fraction": 1.0}, False),  # there is no draw
        (UNEQUAL, {**CHOICE, "fraction": 0.5}, False),  # of all, those with the largest losses
        (UNEQUAL, {**CHOICE, "fraction": 0.5, "selection.d": 4}, True),
        (UNEQUAL, {**WEIGHTED, "method.name": "qffl", "local.lr": 0.01}, False),  # weighs alike
        (UNEQUAL, {**WEIGHTED, "aggregation.weighting": "fixed"}, False),
        (UNEQUAL, {**WEIGHTED, "aggregation.name": "median"}, False),
        (UNEQUAL, {"fraction": 0.5}, False),
    ],
)
def test_samples_that_count_twice_are_noted(tmp_path, sizes, more, noted):
    said = [note for note in notes_of(tmp_path / "run", sizes, **more) if "selection" in note]
    begin = f"selection.name={more.get('selection.name')}: {TWICE}"
    assert [note.startswith(begin) for note in said] == [True] * noted


class Wordy(raysim.Selection):
    """Says what is no line."""

    def notes(self, samples, size, weighting):
        return "abc"

    def select(self, now):
        return range(now.wanted)


def test_notes_of_a_component_that_are_no_lines_are_refused(tmp_path):
    own = f"{__name__}:Wordy"
    said = rf"selection.name={own}: notes returned 'abc'; must return a sequence of lines"
    with pytest.raises(raysim.SettingsError, match=said):
        notes_of(tmp_path / "run", EQUAL, **{"selection.name": own})


DEVICES = {"clock.name": "devices", "clock.policy": "over_selection", "clock.extra": 1}


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({"fraction": 0.34}, 2),
        ({"fraction": 0.34, **DEVICES}, 3),
        ({"fraction": 0.34, "selection.name": "poisson"}, 6),
        ({"fraction": 0.34, "evaluation.clients": True}, 6),
        ({"fraction": 0.34, "evaluation.local_test": 0.2}, 6),
        ({"fraction": 0.34, "method.name": "fsvrg"}, 6),
        ({"fraction": 0.34, "method.name": "fedbuff", "method.concurrency": 4}, 4),
    ],
)
def test_more_actors_than_clients_of_a_round_are_refused(tmp_path, more, most):
    federation = from_task(make_task(EQUAL))
    for actors in (most, most + 1):
        asked = {"engine.backend": "ray", "engine.actors": actors, "clients": 6, **more}
        settings = make_settings(tmp_path / "run", **asked)
        built = initial_checkpoint(settings, federation)
        parts = RunParts(settings, *built, federation.training_sizes)
        if actors == most:
            check_actors(parts, print)
            continue
        said = f"^engine.actors={actors}: must be at most {most}, the clients of a round; "
        with pytest.raises(raysim.SettingsError, match=said):
            check_actors(parts, print)


def test_they_are_refused_before_ray_starts(tmp_path):
    settings = make_settings(tmp_path / "run", **{"engine.backend": "ray", "engine.actors": 7})
    with pytest.raises(raysim.SettingsError, match=r"^engine.actors=7: must be at most 4, the "):
        raysim.run(settings, make_task(EQUAL))
    assert not (tmp_path / "run").exists()
