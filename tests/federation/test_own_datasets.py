"""A user's own dataset: `prepare` writes its files with `raysim.write_split`."""

from __future__ import annotations

import pytest

import raysim
from tests.federation.own_dataset import FORMS
from tests.tasks import make_settings


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))

    def make(form: str, **more: object) -> raysim.Settings:
        own = {
            **{"dataset.name": "tests.federation.own_dataset:Own", "dataset.form": form},
            **{"partition.name": "by_key", "partition.key": "site", "clients": 3},
            **{"model.name": "2nn", "fraction": 1.0, "rounds": 2, **more},
        }
        return make_settings(tmp_path / "run", **own)

    return make


def test_what_write_split_writes_is_trained_on(settings):
    result = raysim.run(settings("split"))
    assert result.metrics["clients"].to_pylist() == [3, 3]


@pytest.mark.parametrize("form", FORMS)
def test_other_files_are_refused_in_a_line_that_says_how_to_write_them(settings, form):
    with pytest.raises(raysim.RaysimError, match=r"own/.*/train\.arrow: cannot be read") as caught:
        raysim.check(settings(form))
    message = str(caught.value)
    assert "raysim.write_split(path, raysim.Split(x, y))" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("vectorize", [0, 2])
@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_a_sample_that_is_not_finite_is_named(settings, vectorize, holdout):
    """Not the learning rate: the files were not read before."""
    more = {"engine.vectorize": vectorize, "evaluation.holdout": holdout}
    with pytest.raises(raysim.RaysimError) as caught:
        raysim.run(settings("infinite", **more))
    message = str(caught.value)
    assert "client 1" in message and "local.lr" not in message
    assert "column 1: the input is not finite (inf in float32)" in message
    assert ("its sample 5," in message) == (not holdout)


def test_a_diverged_update_blames_the_learning_rate_still(settings):
    with pytest.raises(raysim.RaysimError, match=r"client \d.*try a smaller local\.lr"):
        raysim.run(settings("split", **{"local.lr": 1e30}))
