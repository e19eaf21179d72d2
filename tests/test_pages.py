"""README pages: the length of the front page, links, and the pages of settings."""

from __future__ import annotations

import re
from pathlib import Path

from raysim import Aggregation, Attack, Method, Selection, Stage, Temperature
from raysim.aggregation import AGGREGATIONS
from raysim.api.columns import Recording
from raysim.api.components import Acting
from raysim.attack import ATTACKS
from raysim.channel import STAGES
from raysim.methods import METHODS
from raysim.methods.fedavg import FedAvg
from raysim.selection import SELECTIONS
from raysim.server import SERVER_RULES
from tests.docs.settings import FOLDER, pages

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "[a-z]*/*.md", "docs/*/*.md", "tests/*/*.md", "workloads/*/*.md")
FOLDERS = (".ci", "cluster", "docs", "examples", "raysim", "tests", "tuning", "workloads")
CONFLICT = re.compile(rb"^(<{7}|>{7})( |$)", re.MULTILINE)


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_what_a_class_may_state_is_on_one_page():
    kinds = (Acting, Recording, Method, FedAvg, Selection, Stage, Aggregation, Attack, Temperature)
    stated = {
        name
        for kind in kinds
        for name, value in vars(kind).items()
        if name[0] != "_" and (isinstance(value, property) or name in kind.__annotations__)
    }
    page = (ROOT / "docs/own-method.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    assert {n for row in rows for n in re.findall(r"`(\w+)`", row)} == stated - {"sending"}


def test_links_lead_somewhere():
    links = []
    for page in (page for place in PAGES for page in ROOT.glob(place)):
        targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        links += [(page, target) for target in targets if not target.startswith("http")]
    assert len(links) > 10
    for page, target in links:
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles]
            assert heading in anchors, f"{page}: {target}"


def test_no_file_has_the_markers_of_a_merge():
    places = [ROOT.glob("*"), *((ROOT / folder).rglob("*") for folder in FOLDERS)]
    files = {path for each in places for path in each if path.is_file() and path.suffix != ".pyc"}
    assert {"README.md", "run", "page.css"} <= {path.name for path in files} and len(files) > 900
    assert not [path for path in files if CONFLICT.search(path.read_bytes())]


def test_the_pages_of_settings_are_those_of_the_code():
    """`python -m tests.docs.settings` writes them."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == dict(
        pages()
    )


def test_every_component_is_in_the_page_of_formulas():
    page = (ROOT / "docs/formulas.md").read_text(encoding="utf-8")
    kinds = (METHODS, AGGREGATIONS, SERVER_RULES, ATTACKS, SELECTIONS, STAGES)
    for table, known in zip(page.split("\n## ")[1:], kinds, strict=True):
        firsts = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        named = [name for first in firsts for name in re.findall(r"`(\w+)`", first)]
        assert sorted(named) == sorted(known)
