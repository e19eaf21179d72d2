"""`raysim compare` and `raysim report` as a user types them."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser

from raysim.cli import results
from tests.cli.test_app import QUICK, raysim_command  # noqa: F401 - a fixture


class Figures(HTMLParser):
    """Captions of charts."""

    def __init__(self):
        super().__init__()
        self.captions = []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "figcaption"

    def handle_data(self, data):
        if self.inside:
            self.captions.append(data)


def test_runs_are_compared_and_reported(raysim_command, monkeypatch, tmp_path):  # noqa: F811
    """A run of a preset, of which the report draws the partition as well.

    Another process, with another order of sets, gives the same bytes.
    """
    monkeypatch.setattr(results.console, "width", 200)
    for seed in (0, 1):
        words = ("run", "mnist-fedavg", *QUICK, f"seed={seed}", f"out=run {seed}")
        assert raysim_command(*words)[0] == 0
    code, out, _ = raysim_command("compare", "run 0", "run 1", "--metric", "best(test_loss)")
    assert code == 0
    for part in ("2 runs, grouped", "fedavg", "(n=2)*", "rounds to 0.97", "best(test_loss)"):
        assert part in out
    code, out, _ = raysim_command("report", "run 0", "run 1", "-o", "page.html")
    assert (code, out) == (0, "report: page.html\n")
    text = (tmp_path / "page.html").read_text()
    figures = Figures()
    figures.feed(text)
    assert "mnist, iid, seed 0 (run 0)" in figures.captions
    assert "raysim run &#x27;run 0/config.json&#x27; out=none" in text
    command = [sys.executable, "-m", "raysim", "report", "run 0", "run 1", "-o", "other.html"]
    other = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    subprocess.run(command, check=True, env=other)
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    code, out, _ = raysim_command("run", "run 0/config.json", "out=again")  # as the page says
    assert code == 0
    again = (tmp_path / "again/model.safetensors").read_bytes()
    assert again == (tmp_path / "run 0/model.safetensors").read_bytes()
