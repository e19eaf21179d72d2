"""Commands and classes of DATA.md, as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.cli.app import main
from raysim.results.runs import read_run

PAGE = (Path(__file__).parents[2] / "workloads" / "DATA.md").read_text(encoding="utf-8")
TABLE = re.findall(r"```\n(domain,.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^raysim (run .*)$", PAGE, re.MULTILINE)
DATASET, PIECES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))

    def run(line: str, *more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["raysim", *line.split(), "engine.backend=inline", *more])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    return run


def test_the_table_as_it_is_printed_can_be_run(command, tmp_path):
    (table,) = TABLE
    (tmp_path / "mails.csv").write_text(table)
    assert "3 clients, 3 a round" in command(COMMANDS[0], "out=run")


def test_a_table_of_three_columns_is_a_federated_logistic_regression(command, tmp_path):
    head = TABLE[0].partition("\n")[0]
    draw = np.random.default_rng(0)
    spam = draw.integers(2, size=300)
    rows = [
        f"{'abc'[i % 3]}.org,{draw.poisson(1 + 6 * s)},{'yes' if s else 'no'}"
        for i, s in enumerate(spam)
    ]
    (tmp_path / "mails.csv").write_text("\n".join([head, *rows]))
    printed = command(COMMANDS[0], "rounds=30", "target_accuracy=0.9", "out=run")
    assert "3 clients, 3 a round" in printed
    reached = re.search(r"rounds to 90.0%: ([\d.]+)", printed)
    assert reached and float(reached[1]) < 30
    assert read_run(tmp_path / "run").settings["partition.name"] == "natural"


def test_a_dataset_a_partition_and_a_model_of_ones_own(command, tmp_path):
    (tmp_path / "my_data.py").write_text(DATASET)
    (tmp_path / "my_pieces.py").write_text(PIECES)
    printed = command(COMMANDS[1], "target_accuracy=0.85", "out=run")
    assert "12 clients, 6 a round" in printed and "rounds to 85.0%: not" not in printed
