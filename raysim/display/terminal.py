"""Lines for a terminal, of texts that users and files give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.errors import LONGEST_MESSAGE, visible

if TYPE_CHECKING:
    from rich.console import Console


def print_line(console: Console, text: str) -> None:
    """Print a text as one line, without markup; characters that control a terminal are escaped."""
    shown = visible(text, LONGEST_MESSAGE)
    console.print(shown, highlight=False, markup=False, soft_wrap=True)
