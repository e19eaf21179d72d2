"""Folders that are no run, and runs with files that no run writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from raysim.storage.rows.metrics import declared_in
from raysim.storage.summary import summarise
from tests.inputs.case import Case
from tests.inputs.settings import DEEP, DIGITS, LONG, NESTED


def _config(run: Path, **changes: object) -> None:
    values = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**values, **changes}))


def _write(name: str, content: bytes = b"x") -> Callable[[Path], object]:
    def write(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)

    return write


def _folder(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name / "inner").mkdir(parents=True)


def _empty(run: Path) -> None:
    for path in sorted(run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _whole(run: Path) -> None:
    table = pq.read_table(run / "metrics.parquet")
    summary = summarise(table.to_pylist(), declared_in(table.schema), None)
    (run / "summary.json").write_text(json.dumps(summary))


def _replaced(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Return what replaces a folder by a file, or a file by a folder."""

    def replace(run: Path) -> None:
        target = run / name
        if target.is_dir():
            _empty(target)
            target.rmdir()
        else:
            target.unlink()
        target.mkdir() if content is None else target.write_bytes(content)

    return replace


def _unsealed(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a damage after which no checkpoint holds the settings either."""

    def do(run: Path) -> None:
        damage(run)
        _empty(run / "checkpoints")

    return do


REFUSED: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "empty": (_empty, "holds no run"),
    "config folder": (_unsealed(_replaced("config.json", None)), "config.json"),
    "config empty": (_unsealed(_write("config.json", b"")), "config.json"),
    "config binary": (_unsealed(_write("config.json", bytes(range(256)))), "config.json"),
    "config list": (_unsealed(_write("config.json", b"[]")), "config.json"),
    "config table": (_unsealed(_write("config.json", b"{}")), "config.json"),
    "config nested": (_unsealed(_write("config.json", NESTED.encode())), "config.json"),
    "config deep": (_unsealed(_write("config.json", f'{{"own_task":{DEEP}}}'.encode())), "run"),
    "config digits": (_unsealed(_write("config.json", DIGITS.encode())), "config.json"),
    "config newer": (lambda run: _config(run, schema=99), "schema=99"),
    "config schema": (lambda run: _config(run, schema="x"), "schema='x'"),
    "config own task": (lambda run: _config(run, own_task=True), "own task"),
    "config setting": (_unsealed(lambda run: _config(run, nothing=1)), "nothing: no such setting"),
    "config value": (_unsealed(lambda run: _config(run, rounds=0)), "rounds=0"),
    "config twice": (
        _unsealed(_write("config.json", b'{"own_task": true, "own_task": false}')),
        "config.json: the key 'own_task' is given twice",
    ),
    "config big": (_unsealed(lambda run: _config(run, rounds=10**30)), "rounds=1000"),
    "config plugin": (
        _unsealed(lambda run: _config(run, method={"name": "x:Y"})),
        "x: there is no such module",
    ),
    "checkpoints file": (_replaced("checkpoints", b"x"), "checkpoints"),
}
REFUSED_CASES = [Case(("resume", "run"), (said,), run=name) for name, (_, said) in REFUSED.items()]

STRAY: Mapping[str, Callable[[Path], object]] = {
    "checkpoints/notes.txt": _write("checkpoints/notes.txt"),
    "checkpoints/round_x": _folder("checkpoints/round_x"),
    "checkpoints/.round_000009.host.1 file": _write("checkpoints/.round_000009.host.1"),
    "checkpoints/round_000099 file": _write("checkpoints/round_000099"),
    "checkpoints/round_000098 folder": _folder("checkpoints/round_000098"),
    "clients/notes.txt": _write("clients/notes.txt"),
    "clients/00000/notes.txt": _write("clients/00000/notes.txt"),
    "clients/00000/00000000 file": _write("clients/00000/00000009"),
    "clients/00000/00000001x": _folder("clients/00000/00000001x"),
    "clients/00000/99999999": _folder("clients/00000/99999999"),
    "clients/00000/00000001 stray": _write("clients/00000/00000001/notes.txt"),
    "clients/00000/00000001 folder": _folder("clients/00000/00000001/9_0.safetensors"),
    "clients/00000/00000001 aside": _folder("clients/00000/00000001/.9_0.host.1"),
    "clients file": _replaced("clients", b"x"),
    "events folder": _folder("events.out.tfevents.0000000001.host.1"),
    "clients.parquet/notes.txt": _write("clients.parquet/notes.txt"),
    "clients.parquet/part-x.parquet": _write("clients.parquet/part-x.parquet"),
    "metrics aside": _folder(".metrics.parquet.host.1"),
    "a file": _write("notes.txt"),
    "a folder": _folder("notes"),
    LONG[:200]: _write(LONG[:200]),
}
"""Damage after which a run goes on, or says in one line what stands in its way."""
DAMAGE = {name: damage for name, (damage, _) in REFUSED.items()} | {**STRAY, "finished": _whole}

PATH_CASES = [
    Case(("resume", path), says)
    for path, says in {
        "nowhere": ("nowhere: holds no run",),
        "": ("at least one character",),
        "a\x00b": ("control character",),
        "a\nb": ("control character",),
        LONG: ("255",),
        "~nobody-at-all/x": ("~nobody-at-all/x",),
        "KIT/small.toml": ("small.toml: holds no run",),
        "KIT": ("holds no run",),
        "/dev/null": ("/dev/null: holds no run",),
        "KIT/loop": ("Symlink loop",),
        "\udcff": ("\\udcff: holds no run",),
        "[/red]": ("[/red]: holds no run",),
    }.items()
]
AGAIN = ("run", "KIT/small.toml", "out=run", "method.name=scaffold", "checkpoint_every=1")
RUN_CASES = [
    Case((*AGAIN, "rounds=3"), (said,), run=name)
    for name, said in {
        "config empty": "config.json",
        "config nested": "config.json",
        "config deep": "run",
        "config value": "out=run",
        "config plugin": "x: there is no such module",
        "config own task": "another task",
    }.items()
] + [Case(AGAIN, ("out=run: holds a run with rounds=3 (here 1)",), run="a file")]
COMPARED_CASES = [
    Case(("compare", "run", "./run"), ("run: is given twice",), run="a file"),
    Case(
        ("compare", "run", "--metric", "final(test_los)"),
        ("no column 'test_los'; did you mean 'test_loss'",),
        run="a file",
    ),
    *(
        Case(("compare", "run"), (says,), run=name)
        for name, says in {
            "empty": "run: holds no run",
            "config newer": "schema=99",
            "config digits": "run: holds no run",
            "config schema": "schema='x'",
        }.items()
    ),
    Case(("resume", "run"), code=0, run="finished"),
    Case((*AGAIN, "rounds=3"), code=0, run="finished"),
    *(
        Case(("compare", "run"), code=0, run=name)
        for name in ("finished", "config setting", "config plugin", "checkpoints file")
    ),
]
USES = {
    "predict": ("predict", "run", "KIT/small.toml"),
    "replay": ("replay", "run", "--round", "2", "--client", "0"),
    "export": ("export", "run", "--to", "torch"),
}
"""Commands that use a run's model."""
OF_NO_RUN = ("empty", "config binary", "config deep", "config plugin", "config value")
USED_CASES = [
    *(Case(words, (REFUSED[name][1],), run=name) for words in USES.values() for name in OF_NO_RUN),
    *(Case(words, ("schema=99",), run="config newer") for words in USES.values()),
    *(Case(words, ("own task",), run="config own task") for words in USES.values()),
    *(Case(words, ("checkpoints",), run="checkpoints file") for words in USES.values()),
    Case(USES["predict"], ("small.toml: no known format",), run="finished"),
    Case(
        ("export", "run", "--to", "peft"), ("model.name=huggingface", "--to=torch"), run="finished"
    ),
    Case(("predict", "run", "nowhere.csv"), ("nowhere.csv: not there",), run="finished"),
]
CASES = [*USED_CASES, *COMPARED_CASES, *REFUSED_CASES, *PATH_CASES, *RUN_CASES]
STRAY_CASES = [Case(("resume", "run"), run=name) for name in STRAY]
