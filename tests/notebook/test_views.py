"""Views of runs and sweeps: what they show while these go on, and in the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest

import raysim
from raysim.display import notebook
from raysim.notebook import view
from raysim.notebook.lines import shown_lines
from raysim.notebook.runs import RunView, shown
from tests.notebook.cell import pretended
from tests.tasks import make_settings, make_task


@pytest.fixture
def cell(monkeypatch):
    return pretended(monkeypatch)


def test_a_terminal_is_no_notebook(monkeypatch):
    assert not notebook.in_notebook()
    monkeypatch.setattr(IPython, "get_ipython", SimpleNamespace)
    assert not notebook.in_notebook()


def test_a_run_has_one_output_with_a_bar_and_in_the_end_a_curve(cell, tmp_path):
    settings = make_settings(tmp_path / "run", **{"rounds": 3, "fraction": 1.0})
    raysim.run(settings, make_task((8, 8)))
    assert cell.displays == 1
    bars = [re.findall(r'<progress value="([\d.]+)"', each["text/html"]) for each in cell.bundles]
    done = [float(value) for bar in bars for value in bar]
    assert done == sorted(done) and {0.0, 0.1667, 0.3333, 1.0} <= {*done}
    assert bars[0] == [] and cell.bundles[0]["text/plain"] == "starting"
    assert bars[-1] == [] and cell.html.count("<svg") == 1
    first, score, *_, last = cell.lines
    assert first == "fedavg: 2 clients, 2 a round, 3 rounds"
    assert re.match(r"accuracy \d+\.\d\d% \(best .*\) after 3 rounds", score)
    assert last == f"everything is in {tmp_path / 'run'}"


def test_a_run_that_stops_says_where_and_a_resumed_one_has_its_whole_curve(
    cell, tmp_path, monkeypatch
):
    settings, task = make_settings(tmp_path / "run", rounds=4), make_task((8, 8))
    done = RunView.round_done

    def interrupting(self: RunView, row: Mapping[str, Any]) -> None:
        done(self, row)
        if row["round"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stop:
        patch.setattr(RunView, "round_done", interrupting)
        raysim.run(settings, task)
    assert cell.lines[1] == "stopped after 2 of 4 rounds" and "<progress" not in cell.html
    hint = f"interrupted after 2 of 4 rounds; resume with: raysim.resume({str(tmp_path / 'run')!r}"
    assert stop.value._render_traceback_() == [f"{hint}, task=task)"]
    raysim.resume(tmp_path / "run", task)
    (points,) = re.findall(r'id="curve-line">\s*<path d="([^"]+)"', cell.html)
    assert len(points.split("\n")) >= 4
    assert cell.lines[0].endswith("4 rounds, from round 3")


def test_a_finished_run_is_shown_in_one_call(cell, tmp_path):
    settings, task = make_settings(tmp_path / "run", rounds=1), make_task((8, 8))
    raysim.run(settings, task, raysim.Listener())
    assert cell.bundles == []
    raysim.resume(tmp_path / "run", task)
    assert cell.lines[0].startswith("accuracy ") and "<progress" not in cell.html


def test_an_error_leaves_nothing_of_a_run_that_has_not_started(cell, tmp_path):
    with pytest.raises(raysim.RunError), shown(None, "starting") as listener:
        listener.preparing("prepare mnist", 1, 4)
        assert cell.lines == ["prepare mnist: 25%"]
        raise raysim.RunError("no such file")
    assert cell.lines == []


def test_updates_are_apart(cell, monkeypatch):
    moments = iter([5.0, *(5.0 + number / 1000 for number in range(1, 1001)), 7.0])
    monkeypatch.setattr(view, "SECONDS", 0.25)
    monkeypatch.setattr(view, "perf_counter", lambda: next(moments, 7.0))
    with shown(None) as listener:
        for number in range(600):
            listener.preparing("fetch", number, 600)
    assert 3 <= len(cell.bundles) <= 6


def test_of_many_notes_the_last_are_shown_and_all_is_escaped(cell):
    with shown(None) as listener:
        for number in range(20):
            listener.note(f"client {number} <was> dropped")
    assert cell.lines == [
        "15 earlier lines",
        *(f"note: client {n} <was> dropped" for n in range(15, 20)),
    ]
    assert "<was>" not in cell.html and "client 19 &lt;was&gt; dropped" in cell.html


def test_a_sweep_shows_its_last_lines_and_how_to_go_on(cell):
    with pytest.raises(KeyboardInterrupt) as stop, shown_lines("sweep") as lines:
        lines.line("1/4 fedavg, seed 0: 97.1 %")
        lines.progress(1, 4)
        assert 'value="0.2500"' in cell.html
        raise KeyboardInterrupt
    assert (
        cell.lines == ["1 of 4 done", "1/4 fedavg, seed 0: 97.1 %"] and "<progress" not in cell.html
    )
    assert stop.value._render_traceback_() == ["interrupted; the same call resumes the sweep"]


def test_without_a_notebook_nothing_is_shown(cell, monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    with shown(None) as listener, shown_lines("study") as lines:
        listener.note("a note")
        lines.line("a line")
        assert type(listener) is raysim.Listener
    assert cell.bundles == []


def test_errors_are_one_line_in_ipython(tmp_path: Path):
    with pytest.raises(raysim.SettingsError) as wrong:
        raysim.load_config("mnist-fedavg", {"method.nam": 3})
    line = "SettingsError: method.nam: no such setting; did you mean 'method.name'?"
    assert wrong.value._render_traceback_() == [line]
