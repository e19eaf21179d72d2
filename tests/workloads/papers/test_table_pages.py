"""`raysim list tables`: the list, and pages with figures, doubts and what cells need."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from raysim.workloads.papers.table_pages import page
from raysim.workloads.tables import TABLES

README = (Path(__file__).parents[3] / "workloads/README.md").read_text(encoding="utf-8")


def lines(name: str = "") -> list[str]:
    console = Console(width=500, record=True, file=StringIO())
    console.print(page(name))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


@pytest.fixture(autouse=True)
def empty_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))


def test_all_tables_are_listed():
    listed = lines()
    assert [line.split()[0] for line in listed[2:-1]] == list(TABLES)
    assert (
        "fedmax-1 Test accuracy on FEMNIST*, CIFAR-10 and CIFAR-100 36 final(test_accuracy)"
        " FedMAX, table 1"
    ) in listed
    assert any(
        line.startswith("mifl-6a ")
        and line.endswith(" 36 rounds_to(test_accuracy, 0.97) and 1 more MIFL, table 6a")
        for line in listed
    )
    assert any(line.startswith("flexchill-c ") and " 0 of 44 " in line for line in listed)
    assert listed[-1].startswith("587 published values")


def test_page_of_a_table_with_deviations_and_suspects(tmp_path):
    shown = lines("fedmax-1")
    assert shown[0] == "fedmax-1"
    assert "seeds: 5" in shown
    assert "metric: final(test_accuracy) in %" in shown
    assert "cifar10 noniid T=3000 67.26 ± 1.5 67.46 ± 1.78 73.1 ± 1.2" in shown
    (femnist,) = (line for line in shown if line.startswith("femnist iid T=600"))
    assert "92.09 ± 0.14 [1] 92.09 ± 0.08 [1] 93.78 ± 0.1 [1]" in femnist
    assert any(line.startswith("[1] suspect: no target: ") for line in shown)
    first, second = (line for line in shown if line.startswith("12 cells need files: "))
    assert str(tmp_path / "emnist") in first and str(tmp_path / "cifar100") in second
    assert "printed method.name method.mu" in shown
    assert "inferred method.reduction" in shown
    assert not any(str(tmp_path / "cifar10") + ":" in line for line in shown)


def test_page_of_a_table_with_a_baseline_and_words():
    shown = lines("mifl-2a")
    assert "the paper states ratios of rounds to: FA" in shown
    assert "2nn noniid E=1 B=inf C=1.0 - (86.54% at 1929) 1535" in shown
    assert not any("need files" in line for line in shown)


def test_page_of_a_table_whose_cells_need_an_analysis():
    assert "48 cells need the analysis cka" in lines("flexchill-8")
    assert "4 cells need the analysis new_client" in lines("fedfusion-fig6")


def test_page_of_a_table_names_the_presets_with_deviations():
    shown = lines("fedfusion-2")
    assert "all others, and deviations: raysim list presets fedfusion-mnist-permuted" in shown
    assert any("says what is as in that code, and what is not" in line for line in shown)


def test_page_of_a_table_without_values():
    shown = lines("flexchill-c")
    assert f"FedProx accuracy{' -' * 11}" in shown  # 6 temperatures and 5 controls
    assert f"FedProx loss{' -' * 11} final(test_loss_at_temperature)" in shown


def test_the_readme_of_workloads_lists_all_tables():
    assert [name for name in TABLES if f"`{name}`" not in README] == []
