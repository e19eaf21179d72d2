"""Overrides as they are typed, and the settings on which results depend."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.config import parse_override
from raysim.core.given import decides_result, dotted, may_change, override_text
from raysim.core.given.run_folders import run_directory_of

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
    assert dotted(nested) == {"a": 1, "b.c": None, "b.d.e": "x"}


def test_settings_that_decide_no_result():
    settings = dotted(raysim.load_config("mnist-fedavg").to_dict())
    free = {"on_client_error", "out", "reference", "trace", "tracker"} | {
        f"engine.{name}"
        for name in (
            *("accelerator_type", "actors", "backend", "client_timeout", "cpus_per_actor"),
            "gpus_per_actor",
        )
    }
    assert {key for key in settings if may_change(key)} == free
    others = {key for key in settings if not decides_result(key)}
    assert others == free - {"on_client_error"} | {"analysis", "checkpoint_every"}


def test_a_run_directory_whose_settings_have_a_key_twice_is_one_all_the_same(tmp_path):
    """Code in it is anyone's."""
    (tmp_path / "config.json").write_text('{"own_task": false, "rounds": 1, "rounds": 2}')
    assert run_directory_of(tmp_path / "plugin.py") == tmp_path
