"""Wrong command lines and environment variables."""

from __future__ import annotations

from tests.inputs.case import Case
from tests.inputs.settings import BIG, LONG

USAGE = {
    ("nothing",): ("No such command 'nothing'",),
    ("rum",): ("No such command 'rum'",),
    ("run",): ("'config'",),
    ("run", "--nothing"): ("--nothing",),
    ("run", "mnist-fedavg", "--profile"): ("--profile",),
    ("run", "mnist-fedavg", "--profile", "lap"): ("lap: no such profile", "'laptop'"),
    ("run", "mnist-fedavg", "--profile", ""): ("no such profile",),
    ("resume",): ("RUN_DIR",),
    ("resume", "a", "b"): ("b",),
    ("resume", "--force-it", "a"): ("--force-it",),
    ("list", "methds"): ("list methds: no such kind", "'methods'"),
    ("list", "methods", "nothing"): ("method.name=nothing",),
    ("list", "methods", "no_such:Piece"): ("method.name=no_such:Piece",),
    ("list", "datasets", "pieces:Abstract"): ("dataset.name=pieces:Abstract", "prepare"),
    ("list", "models", LONG): ("model.name=xxx",),
    ("list", "presets", "nothing"): ("nothing: no such preset",),
    ("list", "tables", "nothing"): ("nothing: no such table",),
    ("list", "tables", "mifl-6"): ("mifl-6: no such table; did you mean",),
    ("list", "studies", "nothing"): ("nothing: no such study",),
    ("list", "profiles", "nothing"): ("nothing: no such profile",),
    ("list", "manifests", "../../etc/passwd"): ("../../etc/passwd: no such manifest",),
    ("list", "\x00"): ("no such kind",),
    ("list", "[/red]"): ("list [/red]: no such kind",),
    ("list", "a", "b", "c"): ("c",),
    ("data", "nothing"): ("No such command 'nothing'",),
    ("data", "fetch"): ("'name'",),
    ("data", "fetch", "minst"): ("dataset.name=minst", "'mnist'"),
    ("data", "fetch", ""): ("dataset.name=", "no such dataset"),
    ("data", "fetch", LONG): ("dataset.name=xxx",),
    ("data", "fetch", "a\x00:b"): ("cannot be imported",),
    ("data", "fetch", "raising:Piece"): ("dataset.name=raising:Piece",),
    ("data", "fetch", "pieces:Abstract"): ("pieces:Abstract", "prepare"),
    ("data", "fetch", "pieces:Required"): ("dataset.folder: must be given",),
    ("data", "fetch", "pieces:Failing"): ("pieces:Failing", "ZeroDivisionError"),
    ("data", "fetch", "pieces:NonePrepared"): ("pieces:NonePrepared", "prepare"),
    ("data", "fetch", "cifar100"): ("cifar100", "train.bin"),
    ("data", "show"): ("'config'",),
    ("data", "show", "nothing"): ("nothing: no such preset",),
    ("data", "show", "KIT/small.toml", "rounds"): ("dotted.key=value",),
    ("data", "show", "KIT/small.toml", "clients=41"): ("clients=41",),
    ("data", "show", "KIT/small.toml", "--out", "a.pdf"): ("--out=a.pdf",),
    ("data", "show", "KIT/small.toml", "--out", ""): ("--out=",),
    ("data", "show", "KIT/small.toml", "--out", "no/a.png"): ("--out=no/a.png",),
    ("data", "show", "KIT/small.toml", "--out", "a\x00.png"): ("--out=", "control character"),
    ("data", "show", "KIT/small.toml", "--out", f"{LONG}.png"): ("--out=", "255"),
    ("data", "show", "KIT/small.toml", "--out", "~nobody-at-all/a.png"): ("~nobody-at-all",),
    ("data", "show", "KIT/small.toml", "--out", "KIT/folder.png"): ("folder.png",),
    ("data", "show", "KIT/small.toml", "partition.name=pieces:NoneSplit"): ("NoneSplit", "split"),
    ("data", "show", "KIT/small.toml", "dataset.name=pieces:Lost"): ("a.arrow",),
    ("data", "show", "KIT/small.toml", "dataset.name=pieces:RealLabels"): ("class numbers",),
    ("data", "list", "all"): ("all",),
    ("tune",): ("'study'",),
    ("tune", "nothing"): ("nothing: no such study",),
    ("tune", LONG): ("xxx", "no such study"),
    ("tune", "fedprox-mu", "--trials", "0"): ("--trials", "0"),
    ("tune", "fedprox-mu", "--trials", "many"): ("--trials", "many"),
    ("tune", "fedprox-mu", "--trials", BIG): ("--trials", "1000"),
    ("tune", "fedprox-mu", "--trials", "1.5"): ("--trials", "1.5"),
    ("tune", "fedprox-mu", "--jobs", "0"): ("--jobs", "0"),
    ("tune", "fedprox-mu", "--jobs", BIG): ("--jobs", "1000"),
    ("tune", "fedprox-mu", "--sampler", "best"): ("sampler=best: ",),
    ("tune", "fedprox-mu", "--sampler", LONG): ("sampler=xxx",),
    ("tune", "fedprox-mu", "--pruner", "best"): ("pruner=best: ",),
    ("tune", "fedprox-mu", "--objectives", ""): ("objectives=",),
    ("tune", "fedprox-mu", "--objectives", "accuracy,accuracy"): ("objectives=accuracy,accuracy",),
    ("tune", "fedprox-mu", "--objectives", "time"): ("objectives=time",),
    ("tune", "fedprox-mu", "local.lr=-1"): ("local.lr=-1: ",),
    ("tune", "fedprox-mu", f"seed={2**70}"): ("seed=",),
    ("tune", "fedprox-mu", "out=x"): ("--out",),
    ("tune", "fedprox-mu", "method.mu=1"): ("method.mu",),
    ("tune", "fedprox-mu", "--out", "a\x00b"): ("--out=", "control character"),
    ("tune", "fedprox-mu", "--out", "a\nb"): ("--out=", "control character"),
    ("tune", "fedprox-mu", "--out", LONG): ("--out=", "255"),
    ("tune", "fedprox-mu", "--out", ""): ("--out=", "at least one character"),
    ("tune", "fedprox-mu", "--out", "~nobody-at-all/x"): ("--out=", "~nobody-at-all"),
    ("tune", "fedprox-mu", "--out", "/dev/null"): ("out=/dev/null",),
    ("tune", "fedprox-mu", "--name", "a\x00b"): ("--name=", "control character"),
    ("tune", "fedprox-mu", "--name", ""): ("--name=", "at least one character"),
    ("tune", "fedprox-mu", "--name", LONG): ("--name=", "255"),
    ("tune", "fedprox-mu", "--storage", "nonsense"): ("storage=nonsense",),
    ("tune", "fedprox-mu", "--storage", "a://[::1/x"): ("storage=a://[::1/x",),
    ("tune", "fedprox-mu", "--storage", "postgresql://h:x/y"): ("storage=postgresql://h:x/y",),
    ("tune", "fedprox-mu", "--storage", "sqlite:////proc/x.db"): ("storage=sqlite:////proc/x.db",),
    ("tune", "fedprox-mu", "--storage", LONG): ("storage=xxx",),
    ("dashboard",): ("'storage'",),
    ("dashboard", "sqlite:///x.db", "--port", "0"): ("--port", "0"),
    ("dashboard", "sqlite:///x.db", "--port", "99999"): ("--port", "99999"),
    ("submit",): ("COMMAND",),
    ("submit", "--", "list"): ("list: cannot be submitted",),
    ("submit", "--", "run"): ("'config'",),
    ("submit", "--", "run", "nothing", "out=/x"): ("nothing: no such preset",),
    ("submit", "--", "run", "mnist-fedavg"): ("out=none: must be an absolute path",),
    ("submit", "--", "run", "mnist-fedavg", "out=x"): ("out=x: must be an absolute path",),
    ("submit", "--", "run", "mnist-fedavg", "out=/x\x00"): ("out=", "control character"),
    ("submit", "--", "run", "mnist-fedavg", "out=/x", f"rounds={BIG}"): ("rounds=1000",),
    ("submit", "--", "run", "KIT/small.toml", "out=/x"): ("small.toml: must be a path inside",),
    ("submit", "--", "resume", "x"): ("RUN_DIR=x: must be an absolute path",),
    ("submit", "--", "resume"): ("RUN_DIR",),
    ("submit", "--", "tune", "fedprox-mu", "--out", "/x", "--trials", "0"): ("--trials",),
    ("submit", "--env", "X", "--", "run", "mnist-fedavg", "out=/x"): ("--env=X",),
    ("submit", "--requirements", "no.txt", "--", "resume", "/x"): ("no.txt",),
    ("submit", "--address", "a:1", "--", "resume", "/x"): ("--address=a:1",),
    ("submit", "--address", "http://127.0.0.1:1", "--", "resume", "/x"): ("http://127.0.0.1:1",),
    ("job", "nothing"): ("No such command 'nothing'",),
    ("job", "status"): ("ID",),
    ("job", "list", "--address", "nowhere"): ("--address=nowhere",),
    ("job", "list", "--address", "ftp://x"): ("--address=ftp://x",),
    ("job", "list", "--address", "http://"): ("--address=http://",),
    ("job", "list", "--address", "http://x:port"): ("--address=http://x:port",),
    ("job", "list", "--address", "http://127.0.0.1:1"): ("127.0.0.1:1",),
    ("job", "logs", "x", "--address", "http://127.0.0.1:1"): ("127.0.0.1:1",),
    ("job", "stop", "x", "--address", "http://127.0.0.1:99999"): ("99999",),
}
"""Words, and parts of the message."""
USAGE_CASES = [Case(words, says) for words, says in USAGE.items()]

VARIABLES = {
    "~nobody-at-all/data": ("RAYSIM_DATA=~nobody-at-all/data",),
    "a\nb": ("RAYSIM_DATA=", "control character"),
    LONG: ("RAYSIM_DATA=", "255"),
    "/dev/null": ("/dev/null",),
    "/proc/nothing": ("/proc/nothing",),
    "KIT/small.toml": ("small.toml",),
}
VARIABLE_CASES = [
    *(
        Case(
            ("run", "mnist-fedavg", "engine.backend=inline"), says, variables={"RAYSIM_DATA": root}
        )
        for root, says in VARIABLES.items()
    ),
    Case(("data", "list"), ("RAYSIM_DATA=",), variables={"RAYSIM_DATA": "~nobody-at-all/data"}),
    Case(("data", "fetch", "mnist"), ("RAYSIM_DATA=",), variables={"RAYSIM_DATA": "a\nb"}),
    *(
        Case(("job", "list"), (f"{name}={value}",), variables={name: value})
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
        for value in ("nowhere", "http://x:port", "http://127.0.0.1:1")
    ),
    *(
        Case(
            ("run", "KIT/small.toml", "engine.backend=ray"),
            (f"RAY_ADDRESS={address}",),
            variables={"RAY_ADDRESS": address},
        )
        for address in ("127.0.0.1:1", "127.0.0.1:99999", "ray://127.0.0.1:1")
    ),
]
ACCEPTED = [
    Case(words, code=0)
    for words in (
        ("list",),
        ("list", "datasets", "pieces:Tiny"),
        ("data", "list"),
        ("data", "fetch", "pieces:Tiny"),
        ("data", "show", "KIT/small.toml"),
    )
]
CASES = [*USAGE_CASES, *VARIABLE_CASES, *ACCEPTED]
