"""Runs the tests that CI leaves out, in parts of a few minutes: `python -m tests.full`.

Every part is a pytest of its own with every N-th of the tests that are marked `full`; a line says
what came of it, and the next part runs whatever that was. `--part 3/16` runs one part again, or
goes on elsewhere. Ends with exit code 1 if any test of any part failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

PARTS = 16
"""Of the fault drill's 20 schedules, each takes a minute or two: at most two in a part."""
PYTEST = [sys.executable, "-m", "pytest", "-o", "addopts=--strict-markers", "-q", "-m", "full"]
PROBLEMS = ("failed", "error")


def collected(paths: Sequence[str]) -> list[str]:
    """Return the ids of the tests that are marked `full`."""
    command = [*PYTEST, "--collect-only", *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not ids:
        sys.exit(f"no test was collected:\n{done.stdout}{done.stderr}")
    return ids


def run(tests: Sequence[str]) -> Counter[str]:
    """Run tests in a pytest of their own, whose words are shown; return how many came to what."""
    with subprocess.Popen([*PYTEST, *tests], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    words = re.findall(r"(\d+) (passed|failed|skipped|xfailed|error)", last)
    counts = Counter({word: int(number) for number, word in words})
    if process.returncode and not any(counts[word] for word in PROBLEMS):
        counts["error"] += 1  # pytest itself ended early
    return counts


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))


def chosen(text: str) -> tuple[int, int]:
    """Return K and N of `K/N`."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text}: must be K/N with 1 <= K <= N")
    return int(match[1]), int(match[2])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.full", description=__doc__)
    parser.add_argument("--part", type=chosen, metavar="K/N", help="run this part alone")
    parser.add_argument("paths", nargs="*", default=["tests"], help="files or folders of tests")
    given = parser.parse_args(arguments)
    part, parts = given.part or (None, PARTS)
    tests, total, lines = collected(given.paths), Counter[str](), []
    for number in [part] if part else range(1, parts + 1):
        begun = time.monotonic()
        counts = run(tests[number - 1 :: parts]) if tests[number - 1 :: parts] else Counter[str]()
        total += counts
        lines.append(f"part {number}/{parts}: {said(counts)} in {time.monotonic() - begun:.0f} s")
        print(lines[-1], flush=True)
    print("\n".join(["", *lines, f"of {len(tests)} tests: {said(total)}"]))
    return int(any(total[word] for word in PROBLEMS))


if __name__ == "__main__":
    sys.exit(main())
