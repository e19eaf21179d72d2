"""Settings that exclude each other are refused before anything starts or is written."""

from __future__ import annotations

import pytest
from torch import nn

import raysim
from raysim.driver.start.checks.preflight import check_space, initial_checkpoint
from raysim.federation.task import from_task
from raysim.numbers.tensors import nbytes
from tests.tasks import make_settings, make_task


def test_a_model_that_does_not_take_the_data(tmp_path):
    task = make_task((5, 7), lambda: nn.Linear(11, 3))
    with pytest.raises(raysim.SettingsError, match=r"^the model does not take samples of 12: .*11"):
        raysim.run(make_settings(tmp_path / "run"), task)
    assert not (tmp_path / "run").exists()


def test_a_model_with_an_embedding_says_that_it_needs_whole_numbers(tmp_path):
    task = make_task((5, 7), lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)))
    said = "samples of 12: its embedding needs whole numbers, and these are torch.float32; "
    with pytest.raises(raysim.SettingsError, match=said):
        raysim.run(make_settings(tmp_path / "run"), task)


class SpaceLog:
    """Client states that note how much space is asked for."""

    def check_space(self, needed):
        self.needed = needed


@pytest.mark.parametrize("update", [True, False])
def test_space_is_checked_for_what_clients_keep_in_a_round(tmp_path, update):
    """MIFL's clients keep a model from round to round, or for one round only."""
    overrides = {"method.name": "mifl", "method.update": update, "rounds": 1, "fraction": 0.5}
    settings = make_settings(tmp_path, **overrides, clients=4)
    federation = from_task(make_task((8,) * 4))
    _, initial = initial_checkpoint(settings, federation)
    states = SpaceLog()
    check_space(settings, states, initial.state)
    copies = (2 + 2) if update else 2  # two clients take part; a version more for a checkpoint
    assert states.needed == copies * nbytes({"model": initial.state.groups["model"]})


def test_space_is_checked_for_kept_optimizers(tmp_path):
    """Adam keeps two numbers for each parameter; two of four clients take part in a round."""
    overrides = {"local.optimizer": "adam", "local.keep": True, "rounds": 1, "fraction": 0.5}
    settings = make_settings(tmp_path, **overrides, clients=4)
    _, initial = initial_checkpoint(settings, from_task(make_task((8,) * 4)))
    states = SpaceLog()
    check_space(settings, states, initial.state)
    assert states.needed == (2 + 2) * 2 * nbytes({"model": initial.state.groups["model"]})
