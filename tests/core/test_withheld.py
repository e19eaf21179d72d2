"""What a run hides is read by nobody, and may be passed on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from raysim.core.errors import SettingsError
from raysim.core.withheld import Withheld

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
}


@pytest.mark.parametrize("read", READS)
def test_every_use_is_refused_with_its_line(read):
    with pytest.raises(SettingsError, match="does not go"):
        READS[read](Withheld("does not go"))


def test_it_may_be_passed_on():
    given = Withheld("does not go")
    assert vars(copy.deepcopy(given)) == vars(given)
    assert given is not None and repr(given) == "<withheld>"
