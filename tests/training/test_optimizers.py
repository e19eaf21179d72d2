"""Local training equals torch.optim: one client at a time, as recorded steps, and stacked."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import raysim
from raysim.core.errors import SettingsError
from raysim.training import recorded_steps
from tests.tasks import make_settings
from tests.training.torch_reference import BATCH, Reference, cohorts, task

ROUNDS, LR = 4, 0.02
OPTIMIZERS = {
    "sgd": ({"local.momentum": 0.8, "local.nesterov": True}, torch.optim.SGD),
    "adam": ({"local.betas": [0.8, 0.95], "local.eps": 1e-6}, torch.optim.Adam),
    "adamw": ({"local.weight_decay": 0.1}, torch.optim.AdamW),
    "adagrad": ({"local.weight_decay": 0.03}, torch.optim.Adagrad),
    "rmsprop": ({"local.alpha": 0.9, "local.momentum": 0.5}, torch.optim.RMSprop),
}
MODES = {
    "one at a time": {},
    "recorded": {},
    "stacked": {"engine.vectorize": 3},
}


def reference(name, **options):
    overrides, make = OPTIMIZERS[name]
    own = {key.removeprefix("local."): value for key, value in overrides.items()}
    decay = own.pop("weight_decay", 0.0)
    return partial(make, weight_decay=decay, **own), overrides


def run(folder, rounds=ROUNDS, **overrides):
    settings = {"rounds": rounds, "fraction": 0.75, "local.batch_size": BATCH, "local.lr": LR}
    return raysim.run(make_settings(folder, **settings | overrides), task())


def assert_equal(params, expected):
    assert params.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (params[name] - tensor).abs().max() < 1e-6, name


@pytest.fixture
def mode(request, monkeypatch):
    """Settings of a way to train; recorded steps are scripts from the third step on."""
    counted = [0]
    if request.param == "recorded":
        find = recorded_steps.StepsOfKind.find

        def counting(*given):
            script = find(*given)
            counted[0] += script is not None
            return script

        monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 2)
        monkeypatch.setattr(recorded_steps.StepsOfKind, "find", counting)
    yield MODES[request.param]
    assert (counted[0] > 50) == (request.param == "recorded")


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_that_of_torch(tmp_path, name, mode):
    make, overrides = reference(name)
    given = {"local.optimizer": name, "local.clip_norm": 0.5, **overrides, **mode}
    result = run(tmp_path / "run", **given)
    expected = Reference(make, [LR] * ROUNDS, clip_norm=0.5).run(cohorts(result))
    assert_equal(result.params, expected)


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("name", ["sgd", "adamw", "rmsprop"])
def test_a_kept_optimizer_goes_on_in_the_next_round_and_when_resumed(tmp_path, name, mode):
    make, overrides = reference(name)
    given = {"local.optimizer": name, "local.keep": True, **overrides, **mode}
    run(tmp_path / "run", rounds=2, **given)
    resumed = raysim.resume(tmp_path / "run", task(), overrides={"rounds": ROUNDS})
    expected = Reference(make, [LR] * ROUNDS, keep=True).run(cohorts(resumed))
    assert_equal(resumed.params, expected)


REFUSED = {
    "no such": ({"local.optimizer": "adm"}, "local.optimizer=adm: no such optimizer", "'adam'"),
    "another's": (
        {"local.optimizer": "adam", "local.momentum": 0.9},
        "local.momentum=0.9: local.optimizer=adam has no momentum",
    ),
    "betas of sgd": ({"local.betas": [0.9, 0.99]}, "local.betas=[0.9, 0.99]: local.optimizer=sgd"),
    "range": ({"local.optimizer": "adam", "local.betas": [0.9, 1.0]}, "less than 1"),
    "nothing to keep": ({"local.keep": True}, "local.keep=true", "keeps nothing"),
    "variates": (
        {"method.name": "scaffold", "local.optimizer": "adam"},
        "local.optimizer=adam: must be sgd with method.name=scaffold",
    ),
    "a chain's": (
        {"method.name": "chain", "method.methods.fednova": {}, "local.optimizer": "adam"},
        "local.optimizer=adam: must be sgd with method.name=chain",
    ),
    "clipped": (
        {"method.name": "fsvrg", "local.clip_norm": 1.0},
        "local.clip_norm=1.0: must be none with method.name=fsvrg",
    ),
    "layers in turns": (
        {"method.name": "divide_and_conquer", "local.optimizer": "adam", "local.keep": True},
        "local.keep=true: must be false with method.name=divide_and_conquer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_together_are_refused(case):
    overrides, *parts = REFUSED[case]
    with pytest.raises(SettingsError) as caught:
        raysim.load_config("mnist-fedavg", overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert all(part in text for part in parts), text


def test_rounds_that_overlap_keep_no_optimizer(tmp_path):
    overlapping = {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 2}
    with pytest.raises(SettingsError, match=r"local\.keep=true"):
        run(tmp_path, **overlapping, **{"local.optimizer": "adam", "local.keep": True})


class Signs(raysim.Optimizer):
    """signSGD: steps along the signs of the gradient."""

    def direction(self, gradient, slots, step):
        return gradient.sign()


def test_an_optimizer_of_ones_own(tmp_path):
    class TorchSigns(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad.sign_()
            super().step()

    given = {"local.optimizer": f"{__name__}:Signs"}
    result = run(tmp_path / "run", **given)
    assert_equal(result.params, Reference(TorchSigns, [LR] * ROUNDS).run(cohorts(result)))
