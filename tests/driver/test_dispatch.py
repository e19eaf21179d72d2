"""The way of an upload: clients take its steps in one order, the server in reverse."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from torch import ones

from raysim import Pass, Reduced, Rules, Upload
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.training.rule_keys import key_of_function


def made(view: Any, trained: Any) -> Upload:
    view.append("method")
    return Upload(metrics={})


def saved(view: Any) -> None:
    view.append("before")


def taken(name: str, view: Any, trained: Any, upload: Upload) -> Upload:
    view.append(name)
    return Upload(metrics={**upload.metrics, name: len(upload.metrics)})


def received(names: list[str], name: str, reduced: Reduced) -> Reduced:
    names.append(name)
    return reduced


def test_clients_take_steps_in_order_and_the_server_in_reverse():
    names, at_server = ["masks", "channel", "attack"], list[str]()
    dispatch = Dispatch.of(Pass((1,), {}, Rules(finish=made), epochs=2))
    for name in names:
        server = partial(received, at_server, name)
        dispatch = dispatch.with_step(UploadStep(after=partial(taken, name), server=server))
    dispatch = dispatch.with_step(UploadStep(before=saved))
    at_clients: Any = list[str]()
    upload = dispatch.of_clients.rules.finish(at_clients, None)
    assert at_clients == ["before", "method", *names]
    assert upload.metrics == {"masks": 0, "channel": 1, "attack": 2}
    dispatch.received(Reduced((), {}, {}, {}))
    assert at_server == names[::-1]
    assert dispatch.rules.finish is made and dispatch.of_clients.epochs == 2


def test_a_way_has_a_key_if_its_steps_have():
    """A virtual clock counts passes with one key once in a run."""
    dispatch = Dispatch((1,), {}).with_step(UploadStep(after=partial(taken, "a")))
    key = key_of_function(dispatch.of_clients.rules.finish)
    assert key and key != key_of_function(Rules().finish)
    other = Dispatch((1,), {}).with_step(UploadStep(after=partial(taken, "b")))
    assert key_of_function(other.of_clients.rules.finish) != key
    closure = dispatch.with_step(UploadStep(after=lambda view, trained, upload: upload))
    assert key_of_function(closure.of_clients.rules.finish) is None


def test_what_travels_has_no_part_of_the_server():
    dispatch = Dispatch((1,), {}).with_step(UploadStep(server=lambda reduced: reduced))
    assert type(dispatch.of_clients) is Pass and dispatch.of_clients.rules == Rules()


@pytest.mark.parametrize("more", [{"personal": {3: {"own": {"w": ones(2)}}}}, {"bytes_down": int}])
def test_bytes_of_clients_are_whole_numbers_of_nobody_too(more):
    """Clients that are sent tensors of their own, or whose bytes the pass states."""
    sent = Pass((3, 5), {"model": {"w": ones(4)}}, **more)
    expected = [24, 16] if "personal" in more else [3, 5]  # float32
    assert sent.received_bytes([3, 5]).tolist() == expected
    assert sent.received_bytes([]).tolist() == []
