"""Overrides as they are typed, and the settings on which results depend."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.config import parse_override
from raysim.user_input import (
    canonical,
    decides_result,
    dotted,
    key_text,
    may_change,
    override_text,
)
from raysim.user_input.run_folders import run_directory_of

TEXTS = ["", "none", "None", "1e3", "true", "a b", "$HOME", "*", "it's", '["cka"]', "~/x", " x "]
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    *(st.text(), st.sampled_from(TEXTS), st.lists(st.text())),
)


def words(line: str) -> list[str]:
    """Return the words that bash makes of a line."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True, text=True
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("value", [*TEXTS, None, True, 3, 1e-05, ["a", "b c"], {"fedprox": {}}])
def test_an_override_can_be_typed_in_a_shell(value):
    [word] = words(override_text("method.x", value))
    assert parse_override(word) == ("method.x", value)


@given(VALUES)
def test_an_override_is_read_as_the_value_that_it_was(value):
    [word] = shlex.split(override_text("x", value))
    assert parse_override(word) == ("x", value)


def test_dotted():
    nested = {"a": 1, "b": {"c": None, "d": {"e": "x"}}, "f": {}}
    assert dotted(nested) == {"a": 1, "b.c": None, "b.d.e": "x", "f": {}}


CHANNEL = {"clip": {"norm": 1.0, "noise": 0.1}, "topk": {"fraction": 0.01}, "masks": {}}


def test_the_canonical_form_has_order_and_empty_mappings():
    methods = {"fedprox": {"mu": 0.1}, "tests.a:B": {"of": {"layer 1": {}, "layer 2": 2}}}
    values = {
        "clients": 10,
        "channel": CHANNEL,
        "method": {"name": "chain", "methods": methods},
        "engine": {"actors": 2, "node_labels": {}},
        "analysis": ("cka",),
    }
    assert canonical(values) == {
        "clients": 10,
        "channel": "clip, topk, masks",
        "channel.clip.norm": 1.0,
        "channel.clip.noise": 0.1,
        "channel.topk.fraction": 0.01,
        "channel.masks": {},
        "method.name": "chain",
        "method.methods": "fedprox, tests.a:B",
        "method.methods.fedprox.mu": 0.1,
        "method.methods.tests.a:B.of": "layer 1, layer 2",
        "method.methods.tests.a:B.of.layer 1": {},
        "method.methods.tests.a:B.of.layer 2": 2,
        "engine.actors": 2,
        "engine.node_labels": {},
        "analysis": ["cka"],
    }


def test_names_are_told_apart_from_their_separator():
    one, other = (
        canonical({"x": {"name": "x", "of": dict.fromkeys(names, 0)}})
        for names in (["a", "a, a"], ["a, a", "a"])
    )
    assert one["x.of"] != other["x.of"]


SCALARS = st.sampled_from([0, 1, None, "a", ""])


def mappings(kind, values, least=0):
    """Return drawn mappings of a kind, their entries as pairs in order."""
    entries = st.tuples(st.sampled_from("abc"), values)
    unique = st.lists(entries, min_size=least, max_size=3, unique_by=lambda pair: pair[0])
    return st.tuples(st.just(kind), unique)


ORDERED = mappings("ordered", st.one_of(SCALARS, mappings("fields", SCALARS)))
FIELDS = mappings("fields", st.one_of(SCALARS, st.lists(SCALARS, max_size=2), ORDERED))
GROUPS = FIELDS.map(lambda group: ("fields", [("name", 0), *group[1]]))
STAGES = mappings("ordered", FIELDS)
SETTINGS = mappings("fields", st.one_of(SCALARS, GROUPS, STAGES), least=1)


def plain(tree):
    return {name: plain(value) for name, value in tree[1]} if isinstance(tree, tuple) else tree


def meaning(tree):
    """Return what settings mean: entries of fields as a set, those of ordered ones as they are."""
    if not isinstance(tree, tuple):
        return repr(tree)
    entries = [(name, meaning(value)) for name, value in tree[1]]
    if not entries:
        return "empty"
    return frozenset(entries) if tree[0] == "fields" else tuple(entries)


def shuffled(draw, tree):
    """Return settings whose mappings have another order, of both kinds."""
    if not isinstance(tree, tuple):
        return tree
    entries = draw(st.permutations(tree[1]))
    return tree[0], [(name, shuffled(draw, value)) for name, value in entries]


@given(SETTINGS, SETTINGS, st.data())
def test_canonical_forms_are_equal_where_settings_mean_the_same(one, other, data):
    for each in (other, shuffled(data.draw, one)):
        mine, theirs = canonical(plain(one)), canonical(plain(each))
        same = meaning(one) == meaning(each)
        assert (mine == theirs) is same
        assert (key_text(mine) == key_text(theirs)) is same


@given(st.permutations(["clip", "topk", "masks"]))
def test_mappings_in_lists_are_compared_in_order(names):
    one, other = (
        canonical({"x": {"name": "x", "of": [{name: CHANNEL[name] for name in each}]}})
        for each in (CHANNEL, names)
    )
    assert (one == other) is (key_text(one) == key_text(other)) is (names == [*CHANNEL])


def test_settings_that_decide_no_result():
    settings = dotted(raysim.load_config("mnist-fedavg").to_dict())
    free = {"on_client_error", "out", "reference", "trace", "tracker"} | {
        f"engine.{name}"
        for name in (
            *("accelerator_type", "actors", "backend", "client_timeout", "cpus_per_actor"),
            *("gpus_per_actor", "node_labels"),
        )
    }
    assert {key for key in settings if may_change(key)} == free
    others = {key for key in settings if not decides_result(key)}
    assert others == free - {"on_client_error"} | {"analysis", "checkpoint_every", "keep_clients"}


def test_a_run_directory_whose_settings_have_a_key_twice_is_one_all_the_same(tmp_path):
    """Code in it is anyone's."""
    (tmp_path / "config.json").write_text('{"own_task": false, "rounds": 1, "rounds": 2}')
    assert run_directory_of(tmp_path / "plugin.py") == tmp_path
