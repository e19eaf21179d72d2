"""The site on a phone and on a desk, in light and in dark: no script error, nothing cut, AA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.looks import SCHEMES, problems

BAD = """<!doctype html><style>
  p { color: #999 } div { width: 600px } b { color: #767676; font-size: 24px }
  @media (prefers-color-scheme: dark) { i { color: #eee } }
</style><p>grey</p><div>wide</div><b>large</b><i>plain</i><script>nowhere()</script>"""
FEW = ("index", "coming-from", "api")
"""Pages that are looked at in every test run: the first one, one of wide tables, one of code."""


def test_what_is_wrong_with_a_page(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(BAD)
    wrong = ["script error: Uncaught ReferenceError: nowhere is not defined"]
    wrong += ["608 pixels wide, of 390", "contrast 2.85 of P: grey"]
    assert problems([page.as_uri()], 390, "light") == {page.as_uri(): wrong}
    dark = [*wrong, "contrast 1.16 of I: plain"]
    assert problems([page.as_uri()], 390, "dark") == {page.as_uri(): dark}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_on_a_phone(site: Path, scheme: str):
    addresses = [(site / f"docs/{name}.html").as_uri() for name in FEW]
    assert problems(addresses, 390, scheme) == {}


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_pages(site: Path, scheme: str, width: int):
    pages = [path for path in site.rglob("*.html") if path != site / "index.html"]  # leads on
    assert len(pages) > 30
    assert problems([path.as_uri() for path in pages], width, scheme) == {}
