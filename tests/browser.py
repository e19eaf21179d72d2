"""A headless browser for tests: Qt's Chromium, from the package pyqt6-webengine.

It runs in a process of its own: `python tests/browser.py ADDRESS [TEXT]` prints the document that
the page's scripts have made, as soon as TEXT is in it.
"""

from __future__ import annotations

import os
import subprocess
import sys

PATIENCE = 120.0
"""Seconds after which the browser has taken too long."""
ABSENT = 77
"""Exit code where the package, or a system library that it needs, is absent."""


def document(address: str, awaited: str = "") -> str:
    """Return the document at an address after its scripts, once a text is in it."""
    import pytest

    command = [sys.executable, "-P", __file__, address, awaited]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode == ABSENT:
        pytest.skip(
            f"no headless browser ({done.stderr.strip()}): pip install pyqt6-webengine; on Debian"
            " also apt-get install libnss3 libegl1 libxkbcommon0 libxcomposite1 libxdamage1"
            " libxrandr2 libxtst6 libasound2"
        )
    done.check_returncode()
    return done.stdout


def show(address: str, awaited: str = "") -> int:
    """Load a page in a window that is drawn nowhere; print its document once it has a text."""
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    try:
        from PyQt6.QtCore import QTimer, QUrl
        from PyQt6.QtWebEngineWidgets import QWebEngineView
        from PyQt6.QtWidgets import QApplication
    except ImportError as error:
        print(error, file=sys.stderr)
        return ABSENT
    application = QApplication(["browser"])
    view = QWebEngineView()
    view.resize(1200, 800)
    view.show()

    def take(text: str) -> None:
        if awaited in text:
            sys.stdout.write(text)
            application.quit()
        else:
            QTimer.singleShot(100, look)

    def look() -> None:
        view.page().toHtml(take)

    view.loadFinished.connect(look)
    view.load(QUrl(address))
    return application.exec()


if __name__ == "__main__":
    sys.exit(show(*sys.argv[1:]))
