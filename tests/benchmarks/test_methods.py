"""The table of all methods has them all, with settings that a run takes."""

from __future__ import annotations

from pathlib import Path

import raysim.methods  # noqa: F401  # registers them
from raysim.core.method import METHODS
from raysim.workloads.sweeps import read_sweep

LEFT_OUT = {
    *("chain", "fsvrg", "fedasync", "fedat", "fedbuff"),
    *("centralized", "fedbabu", "fedbn", "fedper", "fedrep", "lg_fedavg", "local"),
    *("apfl", "fedala", "fedproto", "per_fedavg", "pfedme"),
    *("afl", "drfa", "powersgd", "qffl", "term"),
}
"""Which the file gives reasons for; a chain is several methods."""


def test_every_method_has_a_row():
    table = read_sweep(str(Path(__file__).with_name("methods.toml")))
    settings = [cell.resolve() for cell in table.cells]
    assert {each.to_dict()["method"]["name"] for each in settings} == {*METHODS} - LEFT_OUT
    assert len(table.seeds) == 5
