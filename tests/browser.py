"""A headless browser for tests: Qt's Chromium, from the package pyqt6-webengine.

It runs in a process of its own: `python tests/browser.py ADDRESS [TEXT WIDTH SCHEME SCRIPT]` prints
the document that the page's scripts have made, as soon as TEXT is in it, or the value of a script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 120.0
"""Seconds after which the browser has taken too long."""
ABSENT = 77
"""Exit code where the package, or a system library that it needs, is absent."""
PHONE, SCREEN = 390, 1200
"""Widths of windows in CSS pixels."""
SCHEMES = {"dark": 0, "light": 1}
"""Colour schemes that a user prefers, as Blink numbers them."""
AUDIT = Path(__file__).with_name("audit.js")
ROOT = Path(__file__).parents[1]


def document(address: str, awaited: str = "", *, width: int = SCREEN) -> str:
    """Return the document at an address after its scripts, once a text is in it."""
    return _browse(address, awaited, width, "light", "")


def audit(address: str, *, width: int = SCREEN, scheme: str = "light") -> dict[str, Any]:
    """Return what is wrong with the page at an address, as `audit.js` finds it.

    Returns:
        `errors` of scripts, `overflow` in pixels beside the window, texts of too little `contrast`
        (WCAG 2.1, AA), words of tables that are `broken` into lines, and controls without a name.
    """
    text = _browse(address, "", width, scheme, AUDIT.read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads(text)
    return found


def _browse(address: str, awaited: str, width: int, scheme: str, script: str) -> str:
    arguments = [address, awaited, str(width), scheme, script]
    return run([sys.executable, "-P", __file__, *arguments], PATIENCE)


def open_window(width: int, height: int, scheme: str) -> tuple[Any, Any, list[tuple[int, str]]]:
    """Open a window that is drawn nowhere, in a process of its own, which ends if there is none.

    Returns:
        The application, the view, and the errors of the page's scripts: line and message.
    """
    flags = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = flags
    try:
        from PyQt6.QtWebEngineCore import QWebEnginePage
        from PyQt6.QtWebEngineWidgets import QWebEngineView
        from PyQt6.QtWidgets import QApplication
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(ABSENT)
    application, errors = QApplication(["browser"]), list[tuple[int, str]]()

    class Page(QWebEnginePage):
        """Page that keeps the errors of its scripts."""

        def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802
            if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                errors.append((line, message))

    view = QWebEngineView()
    view.setPage(Page(view))
    view.resize(width, height)
    view.show()
    return application, view, errors


def run(command: list[str], seconds: float) -> str:
    """Return the output of a command with a browser; skip the test where there is none."""
    import pytest

    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=seconds, cwd=ROOT
    )
    if done.returncode == ABSENT:
        pytest.skip(
            f"no headless browser ({done.stderr.strip()}): pip install pyqt6-webengine; on Debian"
            " also apt-get install libnss3 libegl1 libxkbcommon0 libxcomposite1 libxdamage1"
            " libxrandr2 libxtst6 libasound2"
        )
    done.check_returncode()
    return done.stdout


def show(
    address: str,
    awaited: str = "",
    width: str = str(SCREEN),
    scheme: str = "light",
    script: str = "",
) -> int:
    """Load a page in a window that is drawn nowhere; print its document once it has a text.

    With a script, print its value instead, with the errors of the page's own scripts.
    """
    application, view, errors = open_window(int(width), 800, scheme)
    from PyQt6.QtCore import QTimer, QUrl

    page = view.page()

    def take(text: str) -> None:
        if awaited in text:
            sys.stdout.write(text)
            application.quit()
        else:
            QTimer.singleShot(100, look)

    def told(found: str) -> None:
        said = [f"{line}: {message}" for line, message in errors]
        sys.stdout.write(json.dumps({"errors": said, **json.loads(found)}))
        application.quit()

    def look() -> None:
        if script:
            page.runJavaScript(script, told)
        else:
            page.toHtml(take)

    view.loadFinished.connect(look)
    view.load(QUrl(address))
    return application.exec()


if __name__ == "__main__":
    sys.exit(show(*sys.argv[1:]))
