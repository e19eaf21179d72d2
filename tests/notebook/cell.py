"""Output of a cell, in a process that looks like the kernel of a notebook."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import IPython
import IPython.display
import pytest

import raysim.driver.start.start  # noqa: F401 - imports Ray, which asks for IPython's shell, too
from raysim.notebook import view


class Cell:
    """Output of a cell: the bundles that were shown in it, one after another."""

    def __init__(self) -> None:
        self.bundles: list[dict[str, str]] = []
        self.displays = 0

    def display(self, bundle: dict[str, str], **options: Any) -> Any:
        assert options == {"raw": True, "display_id": True}
        self.displays += 1
        self.bundles.append(bundle)
        return SimpleNamespace(update=lambda bundle, raw: self.bundles.append(bundle))

    @property
    def html(self) -> str:
        return self.bundles[-1]["text/html"]

    @property
    def lines(self) -> list[str]:
        return self.bundles[-1]["text/plain"].splitlines()


class ZMQInteractiveShell:
    """Shell of a kernel, by its name."""


class OtherKernelsShell(ZMQInteractiveShell):
    """Shell derived from it, as that of Colab."""


def pretended(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Pretend that this is the kernel of a notebook; nothing is too early for an update."""
    cell = Cell()
    monkeypatch.setattr(IPython, "get_ipython", OtherKernelsShell)
    monkeypatch.setattr(IPython.display, "display", cell.display)
    monkeypatch.setattr(view, "SECONDS", 0.0)
    monkeypatch.setattr(view, "SHARE", 1e9)
    return cell
