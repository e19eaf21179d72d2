"""Jupyter: whether this process is a kernel of it, quiet imports there, and tables for it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from html import escape
from importlib import import_module

KERNEL = "ZMQInteractiveShell"
"""Class of the shell of every kernel with notebooks, or base of it, as of Colab's."""
STYLE = (
    ".raysim th, .raysim td { padding: .2em 1.2em .2em 0; text-align: left !important; }"
    " .raysim caption { text-align: left; }"
)
"""Style of tables, which a site of notebooks need not have."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(base.__name__ == KERNEL for base in type(shell).__mro__)


def import_ray() -> None:
    """Import Ray in a notebook; else it is imported when needed.

    It imports tqdm, and both tell the user of a notebook to install ipywidgets, which raysim does
    not use.
    """
    if not in_notebook():
        return
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        import_module("ray")


def values_table(values: Mapping[str, str]) -> str:
    """Return a table of names and values for a notebook."""
    rows = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return styled(f"<table><tbody>{''.join(rows)}</tbody></table>")


def styled(tables: str) -> str:
    """Return tables with their own style, which surrounding pages do not change."""
    return f'<style>{STYLE}</style><div class="raysim">{tables}</div>'
