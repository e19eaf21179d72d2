"""Table of rules in `docs/combinations.md`: `python -m tests.docs.rules` writes it anew."""

from __future__ import annotations

from pathlib import Path

from raysim.cli.rules import HEADER, rows_of

PAGE = Path(__file__).parents[2] / "docs/combinations.md"


def markdown() -> str:
    """Return the table in Markdown."""
    rows = [HEADER, ["---"] * len(HEADER), *rows_of()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the page anew, up to its table."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n| {HEADER[0]} |")[0].rstrip()
    PAGE.write_text(f"{text}\n\n{markdown()}", encoding="utf-8")


if __name__ == "__main__":
    main()
