"""Where the tests' time goes: by file and by function, from pytest's own record.

    python -m pytest -n 2 --dist worksteal --junitxml durations.xml
    python -m tests.durations durations.xml

Seconds are those of set-up, call and tear-down. Session fixtures count for the test that needs
them first.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

MOST = 60


def durations(record: Path) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return the seconds by file and by function, and the cases of each."""
    files, functions, cases = Counter[str](), Counter[str](), Counter[str]()
    for case in ElementTree.parse(record).iter("testcase"):  # noqa: S314 - pytest wrote it
        file = case.attrib["classname"].partition(".Test")[0]
        name = case.attrib["name"].partition("[")[0]
        function, seconds = f"{file}.{name}", float(case.attrib["time"])
        for key, table in ((file, files), (function, functions)):
            table[key] += seconds
            cases[key] += 1
    return files, functions, cases


def main() -> None:
    """Print the slowest files and functions of a record."""
    files, functions, cases = durations(Path(sys.argv[1]))
    print(f"{files.total():.0f} s in {sum(cases[file] for file in files)} tests")
    for table in (files, functions):
        print()
        for key, seconds in table.most_common(MOST):
            print(f"{seconds:8.1f} s  {cases[key]:5}  {key.removeprefix('tests.')}")


if __name__ == "__main__":
    main()
