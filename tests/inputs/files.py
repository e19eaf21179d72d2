"""Settings files that hold no settings, and paths that are none."""

from __future__ import annotations

import json
import tomllib

from tests.inputs.case import Case, run
from tests.inputs.settings import DEEP, DIGITS, LONG, NESTED

SMALL = """\
clients = 4
rounds = 1
fraction = 0.5
model.name = "2nn"
method.name = "fedavg"
partition.name = "iid"
dataset.name = "pieces:Tiny"
engine.backend = "inline"
"""
BAD_FILES: dict[str, tuple[bytes | None, tuple[str, ...]]] = {
    "folder.toml": (None, ("folder.toml: ", "directory")),
    "empty.json": (b"", ("empty.json: ",)),
    "empty.toml": (b"", ("dataset.name: must be given; raysim list",)),
    "list.json": (b"[1]", ("list.json: ", "array must be an object")),
    "number.json": (b"3", ("number.json: ", "table of settings")),
    "null.json": (b"null", ("null.json: ", "table of settings")),
    "broken.toml": (b"rounds = \n", ("broken.toml: ",)),
    "broken.json": (b'{"rounds": ', ("broken.json: ",)),
    "twice.toml": (b"rounds = 1\nrounds = 2\n", ("twice.toml: ",)),
    "twice.json": (b'{"rounds": 1, "rounds": 2}', ("twice.json: ", "'rounds' is given twice")),
    "twice-inside.json": (
        b'{"local": {"lr": 1.0, "epochs": 1, "lr": 0.1}}',
        ("twice-inside.json: ", "'lr' is given twice"),
    ),
    "binary.toml": (bytes(range(256)), ("binary.toml: ",)),
    "binary.json": (bytes(range(256)), ("binary.json: ",)),
    "nul.toml": (b"rounds = 1\x00\n", ("nul.toml: ",)),
    "nul.json": (b"\x00" * 100, ("nul.json: ",)),
    "utf16.toml": (SMALL.encode("utf-16"), ("utf16.toml: ",)),
    "mark.json": (b"\xef\xbb\xbf{}", ("dataset.name: must be given; raysim list",)),
    "nested.json": (f'{{"rounds": {NESTED}'.encode(), ("nested.json: ",)),
    "nested.toml": (f"rounds = {NESTED}".encode(), ("nested.toml: ",)),
    "deep.json": (f'{{"rounds": {DEEP}}}'.encode(), ("rounds", "nested")),
    "deep.toml": (f"rounds = {DEEP}".encode(), ("rounds", "nested")),
    "dotted.toml": (f"{'a.' * 900}a = 1".encode(), ("a", "nested")),
    "dots.toml": (f"{'a.' * 200_000}a = 1".encode(), ("dots.toml: ", "20 levels")),
    "dots-table.toml": (f"[{'a . ' * 200_000}a]".encode(), ("dots-table.toml: ", "20 levels")),
    "dots-quoted.toml": (
        ("x={" + '"a".' * 200_000 + "a = 1}").encode(),
        ("dots-quoted.toml: ", "20 levels"),
    ),
    "dots-quotes.toml": (
        f"x = {{y = \"\"\"q\"\"\"\", z = '''q''''', {'a.' * 200_000}a = 1}}".encode(),
        ("dots-quotes.toml: ", "20 levels"),
    ),
    "brackets.toml": (f"rounds = {'[' * 400_000}".encode(), ("brackets.toml: ", "nested")),
    "brackets.json": (f'{{"rounds": {"[" * 400_000}'.encode(), ("brackets.json: ", "nested")),
    "braces.json": (('{"a":' * 150_000).encode(), ("braces.json: ", "nested")),
    "digits.json": (f'{{"rounds": {DIGITS}}}'.encode(), ("digits.json: ",)),
    "digits.toml": (f"rounds = {DIGITS}".encode(), ("digits.toml: ",)),
    "huge.toml": (b"# " + b"x" * 3_000_000, ("huge.toml: ", "1 MB")),
    "huge.json": (b'{"a": "' + b"x" * 3_000_000 + b'"}', ("huge.json: ", "1 MB")),
    "long.toml": (f'{SMALL}out = "{LONG}"'.encode(), ("out=", "255")),
    "date.toml": (f"{SMALL}seed = 2024-01-01".encode(), ("seed=",)),
    "nan.toml": (f"{SMALL}local.lr = nan".encode(), ("local.lr=NaN",)),
    "big.toml": (f"{SMALL}seed = {2**70}".encode(), (f"seed={2**70}",)),
    "name.toml": (f"{SMALL}dataset.names = 1".encode(), ("dataset.names",)),
    "schema.json": (b'{"schema": 99}', ("schema=99", "another version")),
    "words.json": (b'{"schema": "x"}', ("schema='x'",)),
    "nested-schema.json": (f'{{"schema": {DEEP}}}'.encode(), ("schema=",)),
    "own.json": (b'{"schema": 1, "own_task": true}', ("own.json: ", "own task")),
    "kind.json": (b'{"dataset": 3}', ("dataset=",)),
    "names.json": (b'{"dataset": {"name": ["mnist"]}}', ("dataset.name=",)),
    "surrogate.json": (b'{"out": "\\ud800", "dataset": "mnist"}', ("out=", "UTF-8")),
    "rounds.json": (
        b'{"dataset": {"name": "mnist"}}',
        ("partition.name: must be given; raysim list partitions",),
    ),
}
"""Content of each file of the kit, None for a folder, and the parts of its message."""

FILE_CASES = [run(config=f"KIT/{name}", says=says) for name, (_, says) in BAD_FILES.items()]

NAME_CASES = [
    run(config=name, says=says)
    for name, says in (
        ("mnist-fedvag", ("mnist-fedvag: no such preset", "'mnist-fedavg'")),
        ("", ("no such preset",)),
        (LONG, ("xxx", "no such preset")),
        (f"{LONG}.toml", ("xxx", "255")),
        ("KIT/nothing.toml", ("nothing.toml: ",)),
        ("a\x00b.toml", ("a\\x00b.toml", "control character")),
        ("a\nb.toml", ("a\\nb.toml", "control character")),
        ("~nobody-at-all/a.toml", ("~nobody-at-all/a.toml",)),
        ("KIT/pieces.py", ("pieces.py: no known format",)),
        ("KIT", ("pipe.toml: is neither a file nor a folder",)),
        ("/dev/null", ("/dev/null: ", "copy it to a file")),
        ("nothing.csv", ("nothing.csv: not there",)),
        (f"{LONG}.csv", ("xxx", "255")),
        ("a\nb.csv", ("a\\nb.csv", "control character")),
        ("KIT/files/bomb.csv.gz", ("bomb.csv.gz: has", "at most 100 times as many are read")),
        ("KIT/files/nul.csv", ("nul.csv: has NUL bytes",)),
        ("KIT/files/nothing", ("no known layout",)),
        ("KIT/zeros.toml", ("zeros.toml: ", "is no file")),
        ("KIT/pipe.toml", ("pipe.toml: ",)),
        ("KIT/loop.toml", ("loop.toml: ",)),
        ("KIT/small.toml/x.toml", ("small.toml/x.toml: ",)),
        ("\udcff.toml", ("\\udcff.toml",)),
    )
]

BAD_PATHS: dict[str, tuple[str, ...]] = {
    "": ("at least one character",),
    "a\x00b": ("control character",),
    "a\nb": ("control character",),
    "a\x1b[31mb": ("control character",),
    LONG: ("255",),
    "x/" * 2500: ("path", "bytes"),
    "~nobody-at-all/x": ("~nobody-at-all/x",),
    "\udcff": ("out=",),
    "/dev/null": ("not a folder",),
    "/dev/null/x": ("not a folder",),
    "/proc/x": ("not a folder that can be written",),
    "KIT/small.toml": ("not a folder",),
    "KIT/small.toml/run": ("not a folder",),
    "KIT/folder.toml/../small.toml": ("not a folder",),
    "KIT": ("lies in the run directory",),
    "KIT/loop": ("Symlink loop",),
    "3": ("string",),
    "[]": ("string",),
    "true": ("string",),
}
OUT_CASES = [run(f"out={path}", says=says) for path, says in BAD_PATHS.items()]
WEIGHTS = ("model.name=resnet18", "dataset.name=pieces:Colour")
WEIGHT_CASES = [
    run(*WEIGHTS, f"model.pretrained={path}", says=("model.pretrained=", *says))
    for path, says in {
        "": ("at least one character",),
        "a\x00b": ("control character",),
        "a\nb": ("control character",),
        LONG: ("255",),
        "~nobody-at-all/x": ("~nobody-at-all/x",),
        "3": ("string",),
    }.items()
]
GOOD_FILES = {
    "small.toml": SMALL.encode(),
    "marked.toml": SMALL.encode("utf-8-sig"),
    "marked.json": json.dumps(tomllib.loads(SMALL)).encode("utf-8-sig"),
    "dots.txt.toml": f"{SMALL}# {'a.' * 200_000}\nout = 'run{'.' * 99}'".encode(),
}
"""Content of each file of the kit with the settings of `SMALL`."""
ACCEPTED = [
    *(Case(("run", f"KIT/{name}"), code=0) for name in GOOD_FILES if name != "small.toml"),
    *(
        Case(("run", "KIT/small.toml", f"out={path}"), code=0)
        for path in ("run", "deep/er/run", "~/run", "a=b [/red] c", "ü", "./~/run")
    ),
]
CASES = [*FILE_CASES, *NAME_CASES, *OUT_CASES, *WEIGHT_CASES, *ACCEPTED]
