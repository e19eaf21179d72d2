"""Chained rules: everything that each of them sends and keeps, and nothing lost in silence."""

from __future__ import annotations

import pytest
import torch

import raysim
from raysim.api.rules import Batch, Trained, Upload, View, send_model
from raysim.methods.fedavg import FedAvg
from tests.tasks import EQUAL, make_settings, make_task

MODEL = {"w": torch.ones(3), "n": torch.tensor(2)}
VIEW = View(MODEL, ["w"], MODEL, {"model": MODEL}, {}, {}, None, None, None)
TRAINED = Trained(1, 0.1, {}, Batch(torch.ones(1), torch.ones(1)))


def changed(view, trained):
    return Upload(sums={"model": {name: 2 * tensor for name, tensor in view.params.items()}})


def reported(view, trained):
    return Upload(metrics={"norm": 1.0})


def compressed(view, trained):
    return Upload(sums={"model": view.params, "c": {"w": torch.ones(5)}}, bytes_up=7)


def with_c(view, trained):
    return Upload(sums={"model": view.params, "d": {"w": torch.ones(5)}}, scalars={"s": 1.0})


def finish_of(*finishes):
    rules = raysim.chain(*(raysim.Rules(finish=finish) for finish in finishes))
    return rules.finish(VIEW, TRAINED)


def test_a_model_that_one_of_them_changed_is_refused():
    """As by clipping or noise, which would be lost without a word."""
    with pytest.raises(raysim.SettingsError, match="names must differ"):
        finish_of(changed, with_c)


def test_rules_that_report_alone_leave_the_model_to_those_that_send_it():
    for finishes in ((send_model, reported), (reported, send_model)):
        upload = finish_of(*finishes)
        assert upload.sums == {"model": MODEL} and upload.metrics == {"norm": 1.0}


def test_a_rule_that_sends_other_sums_than_the_model_is_left_to_it():
    def deltas(view, trained):
        return Upload(sums={"delta": view.params})

    assert set(finish_of(send_model, deltas).sums) == {"delta"}


def test_bytes_are_those_of_all_and_the_shared_model_counts_once():
    model = 3 * 4 + 8
    assert finish_of(with_c, reported).sent_bytes() == model + 5 * 4 + 4
    one, other = compressed(VIEW, TRAINED), with_c(VIEW, TRAINED)
    merged = finish_of(compressed, with_c)
    assert (one.sent_bytes(), other.sent_bytes()) == (7, model + 5 * 4 + 4)
    assert merged.sent_bytes() == 7 + 5 * 4 + 4


def test_a_generator_is_for_finish_alone(tmp_path):
    settings = make_settings(tmp_path / "run", **{"method.name": "tests.api.test_chain:Drawing"})
    with pytest.raises(raysim.SettingsError, match="is for `finish` alone"):
        raysim.run(settings, make_task(EQUAL))


def drawing(view, outputs, batch):
    return torch.rand((), generator=view.generator("noise"))


class Drawing(FedAvg):
    """Draws where many clients may be trained at once."""

    def rules(self):
        return raysim.Rules(penalties=(drawing,))
