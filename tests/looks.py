"""Looks of pages in a headless browser: script errors, width and contrast.

It runs in a process of its own: `python tests/looks.py WIDTH SCHEME ADDRESS...` prints, as JSON,
what is wrong with each page in a window of so many pixels, in the scheme `light` or `dark`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ABSENT = 77
"""Exit code where the package, or a system library that it needs, is absent."""
SCHEMES = ("dark", "light")
"""Colour schemes, as Chromium numbers them."""
SCRIPT = Path(__file__).with_suffix(".js")


def problems(addresses: Sequence[str], width: int, scheme: str) -> dict[str, list[str]]:
    """Return what is wrong with each page: nothing, for those that are as they should be."""
    import pytest

    command = [sys.executable, "-P", __file__, str(width), scheme, *addresses]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode == ABSENT:
        pytest.skip(f"no headless browser ({done.stderr.strip()}); see tests/browser.py")
    done.check_returncode()
    found: dict[str, list[str]] = json.loads(done.stdout)
    return {address: each for address, each in found.items() if each}


def look(width: int, scheme: str, addresses: Sequence[str]) -> int:
    """Load pages one after another in a window that is drawn nowhere; print what is wrong."""
    flags = f"--blink-settings=preferredColorScheme={SCHEMES.index(scheme)}"
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = flags
    try:
        from PyQt6.QtCore import QTimer, QUrl
        from PyQt6.QtWebEngineCore import QWebEnginePage
        from PyQt6.QtWebEngineWidgets import QWebEngineView
        from PyQt6.QtWidgets import QApplication
    except ImportError as error:
        print(error, file=sys.stderr)
        return ABSENT
    application, found, left = QApplication(["looks"]), {}, [*addresses]

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802 - Qt's
            if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                errors.append(f"script error: {message}")

    view, errors = QWebEngineView(), []
    view.setPage(Page(view))
    view.resize(width, 900)
    view.show()
    script = SCRIPT.read_text(encoding="utf-8")

    def measure() -> None:
        view.page().runJavaScript(script, take)

    def take(measured: str | None) -> None:
        found[left.pop(0)] = [*errors, *json.loads(measured or '["nothing measured"]')]
        load()

    def load() -> None:
        errors.clear()
        if left:
            view.load(QUrl(left[0]))
        else:
            print(json.dumps(found))
            application.quit()

    view.loadFinished.connect(lambda done: QTimer.singleShot(200, measure))
    load()
    return application.exec()


if __name__ == "__main__":
    sys.exit(look(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
