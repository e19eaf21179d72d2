"""The site on a phone and on a desk, in light and in dark: no script error, nothing cut, AA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import DESK, PHONE, problems

pytestmark = pytest.mark.ci

FEW = ("index", "coming-from", "api")
"""Pages that are looked at in every test run: the first one, one of wide tables, one of code."""


def test_pages_on_a_phone(site: Path):
    assert problems([(site / f"docs/{name}.html").as_uri() for name in FEW], PHONE) == {}


@pytest.mark.full
def test_all_pages(site: Path):
    pages = [path for path in site.rglob("*.html") if path != site / "index.html"]  # leads on
    assert len(pages) > 30
    assert problems([path.as_uri() for path in pages], (*PHONE, *DESK)) == {}
