"""Runs that cannot be measured are refused; a reference is its model, wherever it lies."""

from __future__ import annotations

import shutil

import pytest
import torch

import raysim
from raysim.analysis import ANALYSES
from raysim.api.components import Component
from tests.driver.analyses.common import SIZES, settings, tables
from tests.tasks import StopAfter, make_settings, make_task


class Plain(torch.nn.Module):
    """A network without stages."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


STAGED = ("kl_activations", "activations", "cka", "weight_divergence", "norm_divergence")


@pytest.mark.parametrize("name", STAGED)
def test_a_model_without_stages_is_refused(name, tmp_path):
    with pytest.raises(raysim.SettingsError, match=f"analysis={name}: needs a model with the st"):
        raysim.run(make_settings(tmp_path / "a", analysis=name), make_task((9, 9), Plain))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["aggregation_drop", "new_client"])
def test_client_accuracies_are_needed(name, tmp_path):
    with pytest.raises(raysim.SettingsError, match=f"analysis={name}: needs evaluation.clients=t"):
        raysim.run(make_settings(tmp_path / "a", analysis=name), make_task((9, 9)))


def test_a_reference_must_be_a_run_of_the_same_network(runs, tmp_path):
    cases = {
        ("cka", str(tmp_path / "none")): "has no model that can be read",
        ("cka", str(runs[0])): "is a run of another network",
        ("kl_activations", str(runs[0])): "no analysis of this run compares with it",
    }
    for (name, reference), says in cases.items():
        given = make_settings(tmp_path / "a", analysis=name, reference=reference)
        with pytest.raises(raysim.SettingsError, match=says) as caught:
            raysim.run(given, make_task((9, 9), lambda: raysim.testing.tasks.SmallNet(width=5)))
        assert str(caught.value).startswith(f"reference={reference}: ")


def test_a_reference_is_the_same_however_it_is_spelled(runs, tmp_path, monkeypatch):
    plain = runs[0]
    monkeypatch.chdir(plain.parent)
    monkeypatch.setenv("HOME", str(plain.parent))
    spelled = ("plain", "plain/", "./plain", "~/plain", str(plain))
    found = {make_settings(tmp_path, reference=text).reference for text in spelled}
    assert found == {str(plain)}


def test_a_run_goes_on_with_its_reference_wherever_that_lies(runs, tmp_path):
    task, run = make_task(SIZES), tmp_path / "run"
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(runs[0], before)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(run, before, analysis="cka", fraction=0.5), task, StopAfter(3))
    before.rename(after)
    with pytest.raises(raysim.SettingsError, match=r"has no model that can be read .* new pl"):
        raysim.resume(run, task)
    other = raysim.run(make_settings(tmp_path / "other", rounds=1), task).run_dir
    moved = {"reference": str(other)}
    with pytest.raises(raysim.RunError, match=r"model of the reference was \w+ \(here \w+\)"):
        raysim.resume(run, task, overrides=moved)
    raysim.resume(run, task, overrides={"reference": str(after)})
    assert tables(run)["cka"] == tables(runs[1])["cka"]


def test_every_analysis_is_a_component():
    assert all(issubclass(ANALYSES.get(name), Component) for name in ANALYSES)
