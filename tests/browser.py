"""A headless browser for tests: Qt's Chromium, from the package pyqt6-webengine.

It runs in a process of its own, which prints JSON: `python tests/browser.py document ADDRESS TEXT`
the document that the page's scripts have made, as soon as TEXT is in it; `python tests/browser.py
audit LOOKS ADDRESS...` what `audit.js` finds in pages, by look.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 120.0
"""Seconds after which the browser has taken too long for one page."""
POLL = 50
"""Milliseconds between two looks at what is awaited."""
ABSENT = 77
"""Exit code where the package, or a system library that it needs, is absent."""
AUDIT, PRINT = (Path(__file__).with_name(f"{name}.js") for name in ("audit", "print"))
ROOT = Path(__file__).parents[1]


class Look(NamedTuple):
    """How a page is looked at: in a window of a width in CSS pixels, or printed.

    Attributes:
        width: The width.
        scheme: `light` or `dark`, which the user prefers; `print` is on paper.
    """

    width: int
    scheme: str

    def __str__(self) -> str:
        return f"{self.scheme}, {self.width} pixels"


def is_paper(look: Look) -> bool:
    """Return whether a look is of a printed page."""
    return look.scheme == "print"


PHONE = (Look(390, "light"), Look(390, "dark"))
DESK = (Look(1200, "light"), Look(1200, "dark"))
SCHEMES = {"light": 1, "dark": 0}
"""Colour schemes that a user prefers, as Blink numbers them."""
PAPER = Look(688, "print")
"""A sheet of A4 in CSS pixels, without margins of 14 mm."""


def document(address: str, awaited: str = "") -> str:
    """Return the document at an address after its scripts, once a text is in it."""
    text: str = _browse(["document", address, awaited], PATIENCE)
    return text


def problems(
    addresses: Sequence[str], looks: Sequence[Look] = (*PHONE, *DESK, PAPER)
) -> dict[str, dict[str, Any]]:
    """Return what is wrong with pages, by address and look: nothing with those that are right.

    Returns:
        `errors` of scripts, `overflow` in pixels beside the window, texts of too little `contrast`
        (WCAG 2.1, AA), words of tables that are `broken` into lines, texts of charts that
        `overlap` or are `cut`, controls that are `unnamed`, and `empty` pages.
    """
    found = dict[str, dict[str, Any]]()
    for scheme, blink in SCHEMES.items():  # of which a browser has one
        own = [look for look in looks if (look.scheme == "dark") == (scheme == "dark")]
        if own:
            flags = f"--blink-settings=preferredColorScheme={blink}"
            task = ["audit", json.dumps(own), *addresses]
            found |= _browse(task, PATIENCE * len(addresses), flags)
    wrong = {place: {k: v for k, v in each.items() if v} for place, each in found.items()}
    return {place: each for place, each in wrong.items() if each}


def _browse(arguments: Sequence[str], seconds: float, flags: str = "") -> Any:
    """Return the output of this module; skip the test where there is no browser."""
    import pytest

    command = [sys.executable, "-P", __file__, *arguments]
    environment = os.environ | {"QTWEBENGINE_CHROMIUM_FLAGS": flags}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode == ABSENT:
        pytest.skip(
            f"no headless browser ({done.stderr.strip()}): pip install pyqt6-webengine; on Debian"
            " also apt-get install libnss3 libegl1 libxkbcommon0 libxcomposite1 libxdamage1"
            " libxrandr2 libxtst6 libasound2"
        )
    done.check_returncode()
    return json.loads(done.stdout)


class Window:
    """Window that is drawn nowhere, with one page.

    Attributes:
        errors: Errors of the page's scripts: line and message.
    """

    def __init__(self) -> None:
        from PyQt6.QtWebEngineCore import QWebEnginePage
        from PyQt6.QtWebEngineWidgets import QWebEngineView
        from PyQt6.QtWidgets import QApplication

        self.application, self.errors = QApplication(["browser"]), list[str]()
        errors = self.errors

        class Page(QWebEnginePage):
            """Page that keeps the errors of its scripts."""

            def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802
                if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                    errors.append(f"{line}: {message}")

        self.view = QWebEngineView()
        self.view.setPage(Page(self.view))
        self.view.resize(DESK[0].width, 800)
        self.view.show()

    def load(self, address: str) -> None:
        """Load a page; return as soon as it is there."""
        from PyQt6.QtCore import QEventLoop, QUrl

        self.errors.clear()
        loop = QEventLoop()
        loaded = list[bool]()
        self.view.loadFinished.connect(loaded.append)
        self.view.loadFinished.connect(loop.quit)
        self.view.load(QUrl(address))
        loop.exec()
        assert loaded[-1:] == [True], f"{address} could not be loaded"

    def value(self, script: str) -> Any:
        """Return the value of a script."""
        from PyQt6.QtCore import QEventLoop

        loop, values = QEventLoop(), list[Any]()

        def take(value: Any) -> None:
            values.append(value)
            loop.quit()

        self.view.page().runJavaScript(script, take)
        if not values:
            loop.exec()
        return values[0]

    def wait_for(self, script: str) -> None:
        """Wait until the value of a script is true."""
        from PyQt6.QtCore import QEventLoop, QTimer

        while not self.value(script):
            loop = QEventLoop()
            QTimer.singleShot(POLL, loop.quit)
            loop.exec()

    def show(self, look: Look) -> None:
        """Show the page in a look; after that on paper, it is to be loaded again."""
        self.view.resize(look.width, 800)
        if is_paper(look):
            self.value(PRINT.read_text(encoding="utf-8"))
        self.wait_for(f"innerWidth === {look.width}")


def show_document(address: str, awaited: str) -> str:
    """Return the document at an address once a text is in it."""
    window = Window()
    window.load(address)
    html = "document.documentElement.outerHTML"
    window.wait_for(f"{html}.includes({json.dumps(awaited)})")
    text: str = window.value(html)
    return text


def audit(looks: str, *addresses: str) -> dict[str, dict[str, Any]]:
    """Return what is found in each page by look, paper last."""
    window, found = Window(), dict[str, dict[str, Any]]()
    for address in addresses:
        window.load(address)
        for look in sorted((Look(*each) for each in json.loads(looks)), key=is_paper):
            window.show(look)
            measured = json.loads(window.value(AUDIT.read_text(encoding="utf-8")))
            found[f"{address}: {look}"] = {"errors": [*window.errors], **measured}
    return found


def main(task: str, *arguments: str) -> int:
    """Print the result of a task as JSON."""
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    try:
        import PyQt6.QtWebEngineWidgets  # noqa: F401
    except ImportError as error:
        print(error, file=sys.stderr)
        return ABSENT
    tasks: dict[str, Any] = {"document": show_document, "audit": audit}
    sys.stdout.write(json.dumps(tasks[task](*arguments)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
