"""A notebook that is executed in a kernel: what is left in its cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import raysim
from tests.notebook.test_curve import drawn

pytestmark = pytest.mark.ci

METHOD = """
import os, signal
from pathlib import Path
from raysim.methods.fedavg import FedAvg

class Interrupted(FedAvg):
    def server_update(self, now, state, reduced):
        if now.number == 2 and not Path("interrupted").exists():
            Path("interrupted").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return super().server_update(now, state, reduced)
"""
SETUP = """
from raysim.testing.tasks import SmallNet, samples

clients = [samples(40, key) for key in range(4)]
task = raysim.Task(model=SmallNet, clients=clients, test=samples(300, 9))
settings = raysim.load_config("mnist-fedavg", {
    "rounds": 4, "fraction": 1.0, "target_accuracy": None, "local.epochs": 1,
    "local.batch_size": 8, "engine.backend": BACKEND, "out": "first",
})
other = settings.override({"method.name": "own:Interrupted", "out": "other"})
"""
CELLS = (
    "result = raysim.run(settings, task)",
    "result",
    "result.metrics.to_pandas().shape",
    "raysim.run(other, task=task)",
    "result = raysim.resume('other', task=task)",
    "raysim.run(settings, task, raysim.Listener()).run_dir.name",
    'raysim.load_config("mnist-fedavg", {"method.nam": 3})',
)


class Output:
    """One output of a cell: of a display, a value, an error, or a stream."""

    def __init__(self, output: Any) -> None:
        data = output.get("data", {})
        self.html = data.get("text/html", "")
        traceback = "\n".join(output.get("traceback", ()))
        self.text = data.get("text/plain") or output.get("text") or traceback


class Client(NotebookClient):
    """Client that keeps all that a cell has shown, also what was updated since."""

    def __init__(self, cells: tuple[str, ...], folder: Path) -> None:
        notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
        super().__init__(notebook, timeout=300, allow_errors=True)
        self.resources = {"metadata": {"path": str(folder)}}
        self.shown: list[str] = []

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


@pytest.mark.parametrize(
    ("backend", "first"),
    [("inline", "raysim.run"), pytest.param("ray", "raysim.tune", marks=pytest.mark.full)],
)
def test_cells_of_an_executed_notebook(backend, first, tmp_path, monkeypatch):
    """What is asked for `first` imports Ray, which says nothing then."""
    monkeypatch.setenv("PYTHONPATH", str(Path(raysim.__file__).parents[1]))
    (tmp_path / "own.py").write_text(METHOD, encoding="utf-8")
    setup = f"import raysim\n{first}\n{SETUP.replace('BACKEND', repr(backend))}"
    client = Client((setup, *CELLS), tmp_path)
    client.execute()
    setup, run, shown, frame, interrupted, resumed, silent, wrong = (
        [*map(Output, cell.outputs)] for cell in client.nb.cells
    )
    assert setup == []
    (view,) = run
    assert view.text.startswith("fedavg: 4 clients, 4 a round, 4 rounds\naccuracy ")
    assert view.html.count("<svg") == 1 and "<progress" not in view.html
    assert any("<progress" in html for html in client.shown)
    (table,) = shown
    assert table.text.startswith("Result('first': accuracy ") and table.html.count("<tr>") > 5
    assert [each.text.partition(",")[0] for each in frame] == ["(4"]
    view, error = interrupted
    hint = "interrupted after 2 of 4 rounds; resume with: raysim.resume('other', task=task)"
    assert "stopped after 2 of 4 rounds" in view.text and error.text == hint
    (view,) = resumed
    (svg,) = re.findall(r"<svg.*?</svg>", view.html, re.DOTALL)
    assert len(drawn(svg)[0]) == 4
    assert [each.text for each in silent] == ["'first'"]
    line = "SettingsError: method.nam: no such setting; did you mean 'method.name'?"
    assert [each.text for each in wrong] == [line]
