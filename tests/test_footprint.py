"""How many files name a concern: no more than its budget."""

from __future__ import annotations

import pytest

from tests.footprint import BUDGET, CONCERNS, footprint, names


@pytest.mark.parametrize("name", CONCERNS)
def test_a_concern_touches_few_files(name):
    """One that is over the budget has the number by which it is, so that it can only shrink."""
    concern = CONCERNS[name]
    found = footprint(concern)
    assert len(found) <= BUDGET + concern.over, [*found]
    assert not concern.over or len(found) == BUDGET + concern.over, "enter the smaller number"
    if not concern.over:
        assert not [place for place in found if place.startswith("raysim/methods/")]


def test_names_are_those_of_the_code():
    source = '''"""Masks in a docstring."""
import raysim.masks as m  # masks in a comment
def masked(mask: int, *, of="an unmasked text"): return m.mask_of(mask, with_mask=f"{of} remask")
'''
    found = {name for name in names(source) if "mask" in name}
    texts = {"an unmasked text", " remask"}
    assert found == {"raysim.masks", "masked", "mask", "mask_of", "with_mask", *texts}
