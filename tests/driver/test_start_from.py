"""Runs that start from the tensors of a trained model."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import raysim
from raysim.testing.tasks import SmallNet
from tests.tasks import UNEQUAL, Notes, StopAfter, make_settings, make_task, model_of


class HalfFrozen(SmallNet):
    """With a frozen layer, whose weights each worker has from its own build."""

    def __init__(self):
        super().__init__()
        for parameter in self.hidden.parameters():
            parameter.requires_grad_(False)


def first(tmp_path, model=SmallNet):
    raysim.run(make_settings(tmp_path / "first", rounds=2), make_task(UNEQUAL, model))
    return str(tmp_path / "first")


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize("model", [SmallNet, HalfFrozen])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_training_starts_with_the_tensors_of_a_run(tmp_path, method, model):
    """As with a module that has them; inline, on actors, from the file, and resumed."""
    run = first(tmp_path)
    options = {"method.name": method, "rounds": 3, "seed": 5, "fraction": 0.5}
    given = model()
    given.load_state_dict(load_file(f"{run}/model.safetensors"))
    torch.save(given.state_dict(), tmp_path / "w.pth")
    task = make_task(UNEQUAL, model)
    expected = raysim.run(make_settings(tmp_path / "given", **options), make_task(UNEQUAL, given))
    ways = {
        "inline": {"start_from": run},
        "file": {"start_from": f"{run}/model.safetensors"},
        "torch": {"start_from": str(tmp_path / "w.pth")},
        "actors": {"start_from": run, "engine.backend": "ray", "engine.actors": 2},
    }
    for way, more in ways.items():
        found = raysim.run(make_settings(tmp_path / way, **options, **more), task)
        assert model_of(tmp_path / way) == model_of(tmp_path / "given")
        assert found.metrics["test_loss"].equals(expected.metrics["test_loss"])
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(tmp_path / "cut", **options, start_from=run)
        raysim.run(settings, task, StopAfter(1))
    shutil.move(run, tmp_path / "moved")
    with pytest.raises(
        raysim.SettingsError, match=r"^start_from=.*/first: must be a run directory"
    ):
        raysim.resume(tmp_path / "cut", task)
    shutil.move(tmp_path / "moved", run)
    raysim.resume(tmp_path / "cut", task)
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "given")


def test_another_model_is_refused_when_a_run_is_resumed(tmp_path):
    run = first(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        settings = make_settings(tmp_path / "cut", start_from=run)
        raysim.run(settings, make_task(UNEQUAL), StopAfter(1))
    raysim.resume(run, make_task(UNEQUAL), overrides={"rounds": 3})
    with pytest.raises(raysim.RunError, match="model of start_from"):
        raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    with pytest.raises(raysim.RunError, match=r"start_from=.*which cannot change"):
        overrides = {"start_from": f"{run}/model.safetensors"}
        raysim.resume(tmp_path / "cut", make_task(UNEQUAL), overrides=overrides)


def test_a_finished_run_stays_whatever_its_start_holds_now(tmp_path):
    """It is noted; more rounds, or another model of the task, are refused as ever."""
    first(tmp_path)
    start = tmp_path / "start.safetensors"
    shutil.copy(tmp_path / "first/model.safetensors", start)
    settings = make_settings(tmp_path / "next", rounds=1, start_from=str(start))
    done = raysim.run(settings, make_task(UNEQUAL))
    same, again, resumed = Notes(), Notes(), Notes()
    assert raysim.run(settings, make_task(UNEQUAL), same).summary == done.summary
    save_file({name: t + 1 for name, t in done.params.items()}, start)
    assert raysim.run(settings, make_task(UNEQUAL), again).summary == done.summary
    assert raysim.resume(tmp_path / "next", make_task(UNEQUAL), resumed).summary == done.summary
    line = f"{tmp_path}/next: the finished run began with another content of start_from={start} ("
    for notes, count in ((same, 0), (again, 1), (resumed, 1)):
        assert sum(note.startswith(line) for note in notes.notes) == count
        assert any("the run is finished" in note for note in notes.notes)
    with pytest.raises(raysim.RunError, match="finished run of another task"):
        raysim.run(settings, make_task((*UNEQUAL[:-1], 3)))
    with pytest.raises(raysim.RunError, match="model of start_from was"):
        raysim.resume(tmp_path / "next", make_task(UNEQUAL), overrides={"rounds": 2})


class Masked(SmallNet):
    """With tied weights, and a buffer that no state dictionary has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.again = self.head

    def forward(self, x):
        return super().forward(x) * self.mask


def test_tied_weights_and_buffers_outside_of_state_dictionaries(tmp_path):
    run = first(tmp_path, Masked)
    settings = make_settings(tmp_path / "next", rounds=1, start_from=run)
    raysim.run(settings, make_task(UNEQUAL, Masked))
    trained = load_file(tmp_path / "next/model.safetensors")
    network = raysim.load(tmp_path / "next", Masked)
    assert torch.equal(network.again.weight, trained["head.weight"])
    torch.save(network.state_dict(), tmp_path / "w.pth")
    assert "mask" not in network.state_dict() and "again.weight" in network.state_dict()
    for name in ("next", "w.pth"):
        settings = make_settings(tmp_path / f"of {name}", rounds=1, start_from=str(tmp_path / name))
        raysim.run(settings, make_task(UNEQUAL, Masked))
    assert model_of(tmp_path / "of next") == model_of(tmp_path / "of w.pth")


def test_what_is_no_start_is_one_line_before_anything_starts(tmp_path):
    (tmp_path / "words.safetensors").write_text("words")
    save_file({"w": torch.zeros(3)}, tmp_path / "w.safetensors")
    own = SmallNet().state_dict()
    names = [f"{name} {[*tensor.shape]}" for name, tensor in own.items()]
    torch.save({f"module.{name}": t for name, t in own.items()}, tmp_path / "parallel.pth")
    torch.save(SmallNet(), tmp_path / "whole.pth")
    raysim.run(
        make_settings(tmp_path / "wide", rounds=1), make_task(UNEQUAL, lambda: SmallNet(width=7))
    )
    shutil.copytree(tmp_path / "wide", tmp_path / "damaged")
    save_file({"w": torch.zeros(3)}, tmp_path / "damaged/model.safetensors")
    neither = "must be a run directory, or a file of weights (.safetensors, or saved by torch): "
    save_file({n: t * 1j for n, t in own.items()}, tmp_path / "complex.safetensors")
    refused = {
        "complex.safetensors": "is in complex64, here in float32, which would lose a part of it",
        "nothing": f"{neither}No such file",
        "words.safetensors": "cannot be read as weights (",
        ".": neither,
        "whole.pth": "torch.save(torch.load(",
        "parallel.pth": f"; wanted are {', '.join(names)}",
        "damaged/model.safetensors": "model.safetensors: does not match its checksum",
        "w.safetensors": "start_from: holds another model: tensor ",
        "wide": "start_from: holds another model: tensor ",
    }
    for name, message in refused.items():
        with pytest.raises(raysim.RaysimError) as raised:
            settings = make_settings(tmp_path / "run", start_from=str(tmp_path / name))
            raysim.run(settings, make_task(UNEQUAL))
        assert message in str(raised.value) and "\n" not in str(raised.value)
        assert not (tmp_path / "run").exists()
