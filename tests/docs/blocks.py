"""Blocks of a page, with the comment above each that says what is to be done with it.

Blocks without a language, or `sh`, are commands; `python` is run as it stands; `text` is shown. In
the pages of `docs/`, a comment on the lines above says more:

    <!-- file: my_method.py -->     the block is this file of the reader's folder
    <!-- not run: REASON -->
    <!-- full: REASON -->           run in the full set alone
    <!-- exit: 2 -->                the command ends with this exit code
    <!-- printed -->                the command before has printed each of these lines, in which
                                    ... stands for any text
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- (file|not run|full|exit|printed)(?:: (.+))? -->\s*")
COMMANDS = ("", "sh", "bash")


@dataclass(frozen=True)
class Block:
    """A block of code: language, text, and the comment above it.

    Attributes:
        place: Its page and line.
        language: Of its fence; of an indented block none.
        text: Its text.
        mark: Kind of the comment above it, or none.
        says: Its rest: a file's name, a reason, an exit code.
    """

    place: str
    language: str
    text: str
    mark: str = ""
    says: str = ""

    @property
    def lines(self) -> list[str]:
        """Commands of it, without comments; those that end in a backslash are joined."""
        whole = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in whole.splitlines())
        return [line for line in lines if line]


def pattern(line: str) -> str:
    """Return the regular expression of a line, in which ... stands for any text of a line."""
    return ".*".join(map(re.escape, line.split("...")))


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in their order; directives of MyST are none."""
    mark: re.Match[str] | None = None
    name = page.relative_to(ROOT).as_posix()
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            mark = MARK.fullmatch(token.content)
        elif token.type in ("fence", "code_block"):
            place = f"{name}:{token.map[0] + 1 if token.map else 0}"
            if not token.info.startswith("{"):
                kind, says = (mark[1], mark[2] or "") if mark else ("", "")
                yield Block(place, token.info.strip(), token.content, kind, says)
            mark = None
        elif token.nesting >= 0:  # a paragraph, a heading: the comment was for something else
            mark = None
