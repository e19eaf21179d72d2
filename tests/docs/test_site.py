"""The site: built without a warning, no link leads nowhere, and it describes the whole API."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import raysim
from tests.browser import document
from tests.docs.blocks import ROOT
from tests.docs.conftest import SPHINX

pytestmark = pytest.mark.ci

QUESTIONS = {
    "own loop": "own-loop",
    "CSV": "own-data",
    "own data": "own-data",
    "own method": "own-method",
    "own model": "own-model",
    "install without CUDA": "install",
    "docker": "install",
    "resume": "resume",
    "seeds": "statistics",
    "GPU": "clusters",
    "predict": "use-a-model",
    "export": "use-a-model",
    "replay": "debug-a-client",
    "dry run": "before-a-run",
    "explain": "before-a-run",
    "share results": "share-results",
    "compare": "compare",
    "differential privacy": "privacy",
    "learning rate": "schedules",
    "exit code": "scripts",
}
"""Pages that answer what readers search for."""
FIRST = 5
"""Results of a search that a reader looks at."""
SCRIPTS = ("documentation_options", "doctools", "sphinx_highlight", "language_data", "searchtools")
ASK = """<div id="search-progress"></div><pre id="found"></pre><script>
const found = {};
for (const question of QUESTIONS) {
  const results = Search._performSearch(...Search._parseQuery(question));
  found[question] = results.reverse().slice(0, FIRST).map((result) => result[0]);
}
document.getElementById("found").textContent = JSON.stringify(found) + "all " + "asked";
</script>"""


class Page(HTMLParser):
    """Addresses that a page leads to, and the ids in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield the links to a file or a heading that is not there; those elsewhere are left out."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages[target].ids if target in pages else None
            if not target.exists() or (
                known is not None and parts.fragment and parts.fragment not in known
            ):
                yield f"{path.name}: {link}"


def test_no_link_leads_nowhere(pages):
    assert len(pages) > 30
    links = [link for page in pages.values() for link in page.links]
    assert len(links) > 1000
    assert [*broken(pages)] == []


@pytest.mark.full
def test_links_to_elsewhere_lead_somewhere(tmp_path):
    try:
        socket.create_connection(("github.com", 443), timeout=10).close()
    except OSError as error:
        pytest.skip(f"needs the network ({error})")
    command = [*SPHINX, "-b", "linkcheck", "-d", str(tmp_path / "trees"), ".", str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "output.txt").read_text()


def test_what_a_link_that_leads_nowhere_is(tmp_path):
    names = {"a.html": '<a href="b.html#c"><a href="d.html"><a href="#e">', "b.html": "<p id='x'>"}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    found = [*broken({tmp_path / name: Page(tmp_path / name) for name in names})]
    assert found == ["a.html: b.html#c", "a.html: d.html", "a.html: #e"]


def test_the_whole_api_is_described(pages):
    (page,) = [page for path, page in pages.items() if path.name == "api.html"]
    missing = [name for name in raysim.__all__ if f"raysim.{name}" not in page.ids]
    assert missing == []


def test_the_first_page_leads_to_the_site(site):
    assert "Coming from Flower" in document((site / "index.html").as_uri(), "How do I")


def test_search_finds_the_answers(site, tmp_path):
    places = [*(f"_static/{name}.js" for name in SCRIPTS), "searchindex.js"]
    scripts = "".join(f'<script src="{(site / place).as_uri()}"></script>' for place in places)
    asking = ASK.replace("QUESTIONS", json.dumps([*QUESTIONS])).replace("FIRST", str(FIRST))
    (tmp_path / "ask.html").write_text(f"<!doctype html><body>{scripts}{asking}", encoding="utf-8")
    text = document((tmp_path / "ask.html").as_uri(), "all asked")
    found = json.loads(text.partition('id="found">')[2].partition("all asked")[0])
    missing = {q: found[q] for q, page in QUESTIONS.items() if f"docs/{page}" not in found[q]}
    assert missing == {}
