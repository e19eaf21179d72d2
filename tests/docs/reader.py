"""A reader who does what a page says, in one folder, with runs cut short."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.app import main
from tests.docs.blocks import COMMANDS, Block, pattern

SHORT: Mapping[str, Any] = {
    "rounds": 2,
    "engine.backend": "inline",
    "local.epochs": 1,
    "fraction": 0.02,
    "partition.limit": 60,
}
"""Settings of all runs, but for those that the page gives; of own clients, all may take part."""
SHORT_WORDS = {
    "sweep": ("rounds=1", "local.epochs=1", "fraction=0.02", "partition.limit=60"),
    "tune": ("rounds=1", "local.epochs=1", "fraction=0.02", "partition.limit=60"),
    "table": ("fraction=0.02", "partition.limit=60"),
}
MOST = 3
"""Most rounds of a run."""
FEW = {"--trials": "2", "--tune-trials": "2", "--rounds": "1"}
"""Values of options of numbers of runs and of rounds."""
WHOLE = ("--explain", "--dry-run")
"""Options that tell of the run that is written down, and start none."""


class Reader:
    """Follows pages in a folder; `said` is what the last command has printed.

    Args:
        folder: The reader's folder.
        monkeypatch: Changes this process while the page is read.
        capsys: Of the test.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.said = ""
        self.folder, self._patch, self._capsys = folder, monkeypatch, capsys
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._load = raysim.load_config
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(raysim, "load_config", self._shortened)

    def follow(self, block: Block, names: Mapping[str, Any] | None = None) -> None:
        """Do what a block says; `names` are those that the reader has given to Python before."""
        self._names |= names or {}
        if block.mark == "file":
            path = self.folder / block.says
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.mark == "printed":
            lines = block.text.splitlines()
            missing = [line for line in lines if not re.search(pattern(line), self.said)]
            assert not missing, f"{block.place}: not printed: {missing}; but {self.said}"
        elif block.language == "python":
            code = compile(block.text, str(self.folder / "script.py"), "exec")
            exec(code, self._names)  # noqa: S102 - a page of this repository
            self.said = self._capsys.readouterr().out
        elif block.language in COMMANDS:
            expected = int(block.says) if block.mark == "exit" else 0
            for line in block.lines:
                assert self._do(line) == expected, f"{block.place}: {line}: {self.said}"
        else:
            assert block.language == "text", f"{block.place}: say what {block.language} is for"

    def _do(self, line: str) -> int:
        """Run a line; return its exit code."""
        line, _, target = line.partition(" > ")
        program, *words = shlex.split(line)
        assert program == "raysim", f"{line}: no test runs {program}"
        code: Any = 0
        self._patch.setattr(sys, "argv", ["raysim", *self._words(words)])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        captured = self._capsys.readouterr()
        self.said = captured.out + captured.err
        if target:
            (self.folder / target).write_text(captured.out, encoding="utf-8")
        return int(code)

    def _words(self, words: list[str]) -> list[str]:
        """Return the words of a command, cut short where it runs many rounds."""
        words = [word for each in words for word in self._found(each)]
        keys = {word.partition("=")[0] for word in words if not word.startswith("rounds=")}
        for option in FEW.keys() & words:
            words[words.index(option) + 1] = FEW[option]
        if words[0] == "resume":
            return [f"rounds={MOST}" if word.startswith("rounds=") else word for word in words]
        short = [w for w in SHORT_WORDS.get(words[0], ()) if w.partition("=")[0] not in keys]
        return [*words, *short]

    def _found(self, word: str) -> list[str]:
        """Return the paths that a pattern of the shell stands for, or the word."""
        paths = sorted(self.folder.glob(word)) if "*" in word and "=" not in word else []
        return [str(path.relative_to(self.folder)) for path in paths] or [word]

    def _shortened(self, source: Any, overrides: Mapping[str, Any] | None = None) -> Any:
        """Return settings as `raysim.load_config` does, of a short run."""
        given = dict(overrides or {})
        if any(option in sys.argv for option in WHOLE):
            return self._load(source, given)
        short = {key: value for key, value in SHORT.items() if key not in given}
        if given.get("clients") or Path(str(source)).suffix:
            short.pop("fraction", None)
        short["rounds"] = min(int(given.get("rounds", SHORT["rounds"])), MOST)
        return self._load(source, {**given, **short})
