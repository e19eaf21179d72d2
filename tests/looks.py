"""Looks of pages in a headless browser: script errors, width and contrast.

It runs in a process of its own: `python -m tests.looks WIDTH SCHEME ADDRESS...` prints, as JSON,
what is wrong with each page in a window of so many pixels, in the scheme `light` or `dark`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.browser import SCHEMES, open_window, run

__all__ = ["SCHEMES", "problems"]

SCRIPT = Path(__file__).with_suffix(".js")


def problems(addresses: Sequence[str], width: int, scheme: str) -> dict[str, list[str]]:
    """Return what is wrong with each page: nothing, for those that are as they should be."""
    command = [sys.executable, "-m", "tests.looks", str(width), scheme, *addresses]
    found: dict[str, list[str]] = json.loads(run(command, 600))
    return {address: each for address, each in found.items() if each}


def look(width: int, scheme: str, addresses: Sequence[str]) -> int:
    """Load pages one after another in a window that is drawn nowhere; print what is wrong."""
    application, view, errors = open_window(width, 900, scheme)
    from PyQt6.QtCore import QTimer, QUrl

    found, left = dict[str, list[str]](), [*addresses]
    script = SCRIPT.read_text(encoding="utf-8")

    def measure() -> None:
        view.page().runJavaScript(script, take)

    def take(measured: str | None) -> None:
        said = [f"script error: {message}" for _, message in errors]
        found[left.pop(0)] = [*said, *json.loads(measured or '["nothing measured"]')]
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
