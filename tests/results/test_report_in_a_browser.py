"""The page of a report in a browser: on a phone, in the dark, under a pointer, in print."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.browser import PAPER, PHONE, document, problems
from tests.results.conftest import make_rows, write_run_at
from tests.results.test_report import page_of

pytestmark = pytest.mark.ci
METHODS = ("fedavg", "fedprox", "scaffold")
ACCURACIES = (0.241234, 0.5, 0.61239)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write the page of three methods, two of which have the same results, over five seeds."""
    folder = tmp_path_factory.mktemp("page")
    deciles = {f"client_accuracy_d{d}": [0.1 * d] * 3 for d in range(1, 10)}
    paths = []
    for method in METHODS:
        for seed in range(5):
            gain = 0.1 * (method == "scaffold") + seed / 500
            rows = make_rows([a + gain for a in ACCURACIES], **deciles)
            fields = {"method.name": method, "seed": seed}
            path = write_run_at(folder / f"{method}-by-its-long-name/seed-{seed}", rows, **fields)
            clients = {"client": range(8), "accuracy": [0.1 * k + gain for k in range(8)]}
            table = pa.table({name: pa.array(values) for name, values in clients.items()})
            pq.write_table(table, path / "client_accuracy.parquet")
            paths.append(path)
    page = folder / "page.html"
    page.write_text(page_of(paths), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def clocked(tmp_path_factory):
    """Write the page of one run of a virtual clock, whose loss hardly changes."""
    folder = tmp_path_factory.mktemp("clocked")
    clock = {"virtual_seconds": [0.9, 0.8, 0.7], "virtual_joules": [1e4] * 3}
    rows = make_rows([0.1] * 3, **clock, lost_clients=[0, 1, 0])
    for row, loss in zip(rows, (2.302585, 2.302586, 2.302587), strict=True):
        row["test_loss"] = loss
    path = write_run_at(folder / "run", rows)
    works = {"round": [1, 2, 3], "client": [0, 10, 200], "virtual_start": [0.0, 0.9, 1.7]}
    table = pa.table({**works, "virtual_seconds": clock["virtual_seconds"], "samples": [9] * 3})
    pq.write_table(table, path / "clients.parquet")
    page = folder / "page.html"
    page.write_text(page_of([path]), encoding="utf-8")
    return page


def test_nothing_is_wrong_with_pages(page, clocked):
    assert problems([page.as_uri(), clocked.as_uri()]) == {}


BAD = """<!doctype html><meta name=viewport content="width=device-width"><body style="color: #111">
<style>@media (prefers-color-scheme: dark) { p { color: #666; background: #000 } }
i { color: #767676 } b { color: #8a8a8a; font-size: 24px } @media print { i { color: #777 } }
</style><p style="width: 600px">wide<table style="width: 40px; table-layout: fixed"><tr>
<td style="overflow-wrap: anywhere">methodname</table><button></button><i>plain</i><b>large</b>
<figure><svg width="300" height="50"><text y="20">10</text><text x="9" y="20">20</text>
<text x="290" y="20">cut off</text></svg></figure><script>boom()</script>"""


def test_what_is_wrong_with_a_page_is_found(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(BAD, encoding="utf-8")
    found = problems([path.as_uri()], (*PHONE, PAPER))
    wrong = {
        "errors": ["7: Uncaught ReferenceError: boom is not defined"],
        "broken": ["methodname"],
        "cut": ["cut off"],
        "overlap": ["10 on 20"],
        "unnamed": ["<button></button>"],
    }
    light, paper, dark = found.values()
    assert light == {**wrong, "overflow": 218}
    assert dark == {**wrong, "overflow": 218, "contrast": ["wide: 3.66"]}
    assert paper == {**wrong, "contrast": ["plain: 4.48"]}


def with_script(page, script):
    """Return the document of a page after a script of a test."""
    path = page.with_name("scripted.html")
    text = page.read_text(encoding="utf-8")
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return document(path.as_uri())


HOVERED = {
    ("test_accuracy-round", 0.84, 0.01): "scaffold, seed 4: 72.04% at round 3",
    ("test_accuracy-round", 0.14, 0.84): "fedavg, seed 0: 24.12% at round 1",
    ("test_loss-bytes", 0.13, 0.01): "fedavg, seed 0: 0.7588 at 30 B, round 1",
    ("seeds0", 0.99, 0.9): "scaffold, seed 4: 55.92%",
    ("scatter0-1", 0.9, 0.1): "client 7, seed 4: 70.80% and 70.80%",
}
"""Text below a chart by chart and place of the pointer, in shares of its width and height."""


def test_the_hover_says_a_runs_own_value(page):
    """That of the point nearest to the pointer, in the unit of the table."""
    script = f"""
    const said = {json.dumps([*HOVERED])}.map(([chart, x, y]) => {{
      const svg = document.getElementById(`${{chart}}-figure_1`).closest("svg");
      const box = svg.getBoundingClientRect();
      svg.dispatchEvent(new PointerEvent("pointermove",
        {{ clientX: box.left + x * box.width, clientY: box.top + y * box.height }}));
      return svg.closest("figure").querySelector("output").textContent;
    }});
    document.title = JSON.stringify(said);
    """
    (title,) = re.findall(r"<title>(\[.*?\])</title>", with_script(page, script))
    assert json.loads(title) == [*HOVERED.values()]


def test_a_printed_page_has_all_that_is_collapsed(page):
    script = """
    const open = () => document.querySelectorAll("details[open]").length;
    const all = document.querySelectorAll("details").length;
    const before = open();
    window.dispatchEvent(new Event("beforeprint"));
    const printed = open();
    window.dispatchEvent(new Event("afterprint"));
    document.title = JSON.stringify([all, before, printed, open()]);
    """
    (title,) = re.findall(r"<title>(\[.*?\])</title>", with_script(page, script))
    every, before, printed, after = json.loads(title)
    assert every == printed == 2 and before == after == 0
