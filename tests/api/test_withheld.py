"""What a run withholds is read by nobody, and may be passed on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from operator import attrgetter, delitem
from typing import Any

import numpy as np
import pytest
import torch

from raysim.api.aggregation import ArrivedUpdates
from raysim.api.channel import Received
from raysim.api.components import Refusal
from raysim.api.method import Round
from raysim.api.rules import Reduced
from raysim.api.selection import History, Results, Sampling
from raysim.api.temperature import TemperatureRound
from raysim.api.withheld import COHORT, SINGLE, TIMES, Tells, Withheld, opened, withheld
from raysim.methods.chain import Chain
from raysim.methods.fedavg import FedAvg

READS: dict[str, Callable[[Any], Any]] = {
    "an array": np.asarray,
    "a mean": np.nanmean,
    "a sum of arrays": lambda value: np.ones(2) + value,
    "a tensor": torch.tensor,
    "a list": list,
    "an item": lambda value: value[0],
    "an attribute": lambda value: value.size,
    "its length": len,
    "a number": float,
    "a truth": bool,
    "a text": "{}".format,
    "a comparison": lambda value: value == 1,
    "an order": lambda value: value > 0,
    "the largest": max,
    "a sum": lambda value: 1 + value,
    "a call": lambda value: value([0]),
    "a member": lambda value: 1 in value,
    "a shift": lambda value: value << 1,
    "a rounded number": round,
    "a sorted list": sorted,
    "an unpacking": lambda value: [*value],
    "an index": lambda value: [0][value],
    "a change": lambda value: value.__setitem__(0, 1),
    **{f"its {name}": attrgetter(name) for name in ("value", "by", "reader", "told")},
    "a deletion": lambda value: delitem(value, 0),
    "an attribute of its own": lambda value: setattr(value, "mine", 1),
}


SAID = r"^channel\.masks: does not go with method\.name=chain, which reads sizes$"


def hidden(value: Any = None) -> Any:
    return Withheld("channel.masks", Chain(), "reads sizes", value)


@pytest.mark.parametrize("read", READS)
def test_every_use_is_refused_with_its_line(read):
    with pytest.raises(Refusal, match=SAID):
        READS[read](hidden())


def test_it_may_be_passed_on_and_the_engine_finds_what_it_stands_for():
    given = hidden((1, 2))
    assert opened(copy.deepcopy(given)) == (1, 2) and opened(3) == 3
    alike = {given} == {given}
    assert alike and given is not None and repr(given) == "<withheld by channel.masks>"
    with pytest.raises(Refusal, match=SAID):
        opened(hidden())


class Member(FedAvg):
    """Reads in a function of its own."""

    def broadcast(self, state: Any) -> Any:
        return _length(state)


def _length(value: Any) -> int:
    return len(value)


def test_the_member_of_a_chain_that_reads_is_named():
    with pytest.raises(Refusal, match=r"with method\.name=tests\.api\.test_withheld:Member,"):
        Member().broadcast(hidden())


CLOSED: dict[type, dict[str, Tells]] = {
    Round: {"cohort": COHORT, "steps": SINGLE, "samples": SINGLE},
    Reduced: {"clients": COHORT, "rows": SINGLE, "samples": SINGLE},
    Sampling: {"samples": SINGLE, "seconds": TIMES},
    Results: {"clients": COHORT, "losses": SINGLE, "reports": SINGLE},
    Received: {"cohort": COHORT},
    TemperatureRound: {"samples": SINGLE, "history": COHORT, "seconds": TIMES},
    History: {"losses": SINGLE},
    ArrivedUpdates: {"samples": SINGLE, "shares": SINGLE},
}


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("by", Tells)
def test_a_view_lacks_what_is_closed_and_no_more(kind, by):
    view = kind(**{each.name: each.name for each in dataclasses.fields(kind)})
    seen = withheld(view, {by: "a setting"}, FedAvg())
    lacks = {n for n, value in vars(seen).items() if isinstance(value, Withheld)}
    assert lacks == {name for name, of in CLOSED[kind].items() if of is by}
    assert withheld(view, {}, FedAvg()) is view


def test_a_view_in_a_view_is_seen_alike():
    history = History(*("losses", "last_round", "times"))  # type: ignore[arg-type]
    view = TemperatureRound(*range(3), history, *range(2))  # type: ignore[arg-type]
    seen = withheld(view, {SINGLE: "channel.masks"}, FedAvg()).history
    assert isinstance(seen.losses, Withheld) and seen.times is history.times
