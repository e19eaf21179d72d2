"""Footprint of a concern: the files of the product that name its classes, settings or columns.

    python -m tests.footprint masks gaussian attack temperature downlink

A concern that many files name is dear to change. Counted are identifiers and strings of the code,
not docstrings and comments. Left out are the files of the concern's own components, and presets,
which only choose settings.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("raysim", "workloads", "tuning", "cluster")
BUDGET = 15
"""Most files of a concern besides its components."""


@dataclass(frozen=True)
class Concern:
    """A concern of the product.

    Attributes:
        words: Pattern of its names.
        own: Files and folders of its components.
        homonyms: Patterns of names that are no part of it.
        over: Files by which it exceeds the budget today; a smaller number is to be entered here.
    """

    words: str
    own: tuple[str, ...]
    homonyms: str = r"(?!)"
    over: int = 0


CONCERNS: Mapping[str, Concern] = {
    "masks": Concern(
        "(?i:mask)|(?i:secure_?sum)|shares_places|sums_numbers|is_shared|key_stream",
        ("raysim/channel/masks.py",),
        r"masked_fill|MaskedArray|_Masking|^masked?$|attention.mask|MASKED_LM",
    ),
    "gaussian": Concern(
        "(?i:gaussian)", ("raysim/channel/gaussian.py",), r"attack\.gaussian|_gaussian|gaussian_inf"
    ),
    "attack": Concern("(?i:attack)|bad_client|^BAD(_|$)", ("raysim/attack",)),
    "temperature": Concern(
        *("(?i:temperature)", ("raysim/temperature", "raysim/analysis/temperature.py")),
        "of the contrast",  # MOON's own, of its similarities
    ),
    "downlink": Concern("(?i:down_?link)", ("raysim/driver/uploads/downlink.py",)),
}


def docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes of a source's docstrings."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, nodes)]
    statements = [each for body in bodies for each in body if isinstance(each, ast.Expr)]
    return {id(each.value) for each in statements}


def names(source: str) -> Iterator[str]:
    """Yield the identifiers and strings of a source, without its docstrings."""
    tree = ast.parse(source)
    left_out = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in left_out:
                yield node.value
            continue
        for name in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, name, None), str):
                yield value


@cache
def named_in(path: Path) -> frozenset[str]:
    """Return the names in a file."""
    return frozenset(names(path.read_text(encoding="utf-8")))


def footprint(concern: Concern) -> dict[str, list[str]]:
    """Return the names of a concern by file, without those of its components and of presets."""
    found = {}
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith(concern.own) or place.endswith("/presets.py"):
                continue
            own = {n for n in named_in(path) if re.search(concern.words, n)}
            if own := {n for n in own if not re.search(concern.homonyms, n)}:
                found[place] = sorted(own)
    return found


def main(chosen: list[str]) -> int:
    """Print the files of some concerns; return 1 if one exceeds its budget."""
    wrong = 0
    for name in chosen or CONCERNS:
        concern = CONCERNS[name]
        found = footprint(concern)
        allowed = BUDGET + concern.over
        print(f"{name}: {len(found)} files, allowed {allowed}, aim {BUDGET}")
        for place, named in found.items():
            shown = ", ".join(each for each in named if len(each) < 40)
            print(f"  {place}: {shown[:100]}")
        wrong |= len(found) > allowed
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
