"""The table of all methods has them all, with settings that a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim.methods  # noqa: F401  # registers them
from raysim.api.method import METHODS
from raysim.workloads.sweeps import read_sweep

pytestmark = pytest.mark.ci

LEFT_OUT = {
    *("chain", "fsvrg", "fedasync", "fedat", "fedbuff"),
    *("centralized", "fedbabu", "fedbn", "fedper", "fedrep", "lg_fedavg", "local"),
    *("apfl", "fedala", "fedproto", "per_fedavg", "pfedme"),
    *("afl", "dp_ftrl", "drfa", "powersgd", "qffl", "term"),
    *("feddpa", "fedex_lora", "flexlora", "flora", "hetlora", "rolora"),
}
"""Which the file gives reasons for; a chain is several methods."""


def test_every_method_has_a_row():
    table = read_sweep(str(Path(__file__).with_name("methods.toml")))
    settings = [cell.resolve() for cell in table.cells]
    assert {each.to_dict()["method"]["name"] for each in settings} == {*METHODS} - LEFT_OUT
    assert len(table.seeds) == 5


@pytest.mark.parametrize("name", ["robustness", "privacy", "compression"])
def test_every_cell_of_a_page_s_sweep_has_settings_that_a_run_takes(name):
    table = read_sweep(str(Path(__file__).with_name(f"{name}.toml")))
    settings = {str(cell.resolve().to_dict()) for cell in table.cells}
    metrics = {cell.metric for cell in table.cells}
    assert len(table.seeds) == 5 and len(settings) == len(table.cells) / len(metrics)
