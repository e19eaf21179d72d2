"""Digests of a set of small runs: every method, executor, clock policy, and what rides on passes.

`python -m tests.digests > before` prints one line a run: its name, and the digests of its model and
client states, of its figures, and of its clients' figures. After a change that must keep all bits,
`python -m tests.digests --against before` names the runs that differ, and exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

import raysim
from raysim.api.method import METHODS
from raysim.testing.tasks import samples
from tests.adapters import task_for
from tests.tasks import long_settings, make_task

CLIENTS = (1, 3, 160, 17, 40, 80, 25, 12)
TIMES = ("seconds", "evaluation_seconds", "checkpoint_seconds")
"""Columns that no two runs have alike."""
Settings = dict[str, Any]
ACTORS: Settings = {"engine.backend": "ray", "engine.actors": 2}
DEVICES: Settings = {
    "clock.name": "devices",
    "clock.on_hours": 1.0,
    "clock.off_hours": 0.5,
    "clock.dropout": 0.1,
    "fraction": 0.4,
    "rounds": 6,
}
DEADLINE = 0.06
"""Virtual seconds after which some of the clients are late."""
ASYNCHRONOUS = ("fedasync", "fedat", "fedbuff")
NEEDED: dict[str, Settings] = {
    "afl": {"fraction": 1.0},
    "chain": {"method.methods": {"fedprox": {"mu": 0.1}, "scaffold": {}}, "server.name": "adam"},
    "dp_ftrl": {"aggregation.weighting": "fixed"},
    "fedfusion": {"method.operator": "single"},
}
"""Settings that a method needs here."""
FEEDBACK: Settings = {"error_feedback": {}, "topk": {"fraction": 0.2}}
TEMPERATURES: dict[str, Settings] = {
    "hard_samples": {},
    "plateau": {"patience": 0, "threshold": 0.9},
    "schedule": {"rounds": [1, 3], "values": [1.0, 0.25]},
    "stragglers": {"slowest": 0.5},
}
ROBUST = ("centred_clipping", "fltrust", "geometric_median", "multi_krum", "norm_bound")
ATTACKS = ("alie", "gaussian", "label_flip", "min_max", "mimic", "random_labels", "sign_flip")
OWN_TESTS = "own tests"
"""No setting: whether the task has a test set of each client."""
ALL_ANALYSES = "activations,cka,kl_activations,new_client,temperature,weight_divergence"


def slow_devices(folder: Path) -> str:
    """Write a table of devices for which the small network is much work; return its path."""
    path = folder / "devices.csv"
    lines = [f"{client},{10 ** (5 + client / 4)}" for client in range(len(CLIENTS))]
    path.write_text("\n".join(["client,speed", *lines]))
    return str(path)


def settings_of_runs(folder: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the name and the settings of every run; their files are written into a folder."""
    slow = {"clock.deadline": 10 * DEADLINE, "clock.table": slow_devices(folder)}
    for method in METHODS:
        yield method, {"method.name": method, **NEEDED.get(method, {})}
    for method in ("fedavg", "scaffold", "ditto", "fedma", "mifl", *ASYNCHRONOUS):
        yield f"{method} actors", {"method.name": method, **ACTORS}
    for method in ("fedavg", "scaffold", "divide_and_conquer"):
        yield f"{method} wait", {"method.name": method, **DEVICES}
        yield f"{method} late", _policy("deadline", method, **{"clock.deadline": DEADLINE})
        yield f"{method} partial", _policy("partial", method, **slow)
        yield f"{method} extra", _policy("over_selection", method, **{"clock.extra": 2})
        yield f"{method} oort", {"method.name": method, **DEVICES, "selection.name": "oort"}
    yield "fedavg oort actors", {**DEVICES, "selection.name": "oort", "rounds": 8, **ACTORS}
    for method in ASYNCHRONOUS:
        yield f"{method} devices", {"method.name": method, **DEVICES, "fraction": 0.7}
    for method in ("fedavg", "scaffold", "fednova", "fsvrg", "ditto"):
        analysed = {"analysis": ALL_ANALYSES, "evaluation.clients": True}
        yield f"{method} analyses", {"method.name": method, **analysed}
    yield (
        "fedavg analyses late",
        {
            **_policy("deadline", "fedavg", **{"clock.deadline": DEADLINE}),
            "analysis": "activations,weight_divergence",
        },
    )
    yield "fedavg uniform", {"weighting": "uniform", "evaluation.holdout": 0.2}
    yield "fedavg momentum", {"local.momentum": 0.9, "local.weight_decay": 0.01}
    yield "scaffold stacked", {"method.name": "scaffold", "engine.vectorize": 3}
    yield "fedbuff stacked", {"method.name": "fedbuff", "engine.vectorize": 3}
    yield from settings_of_uploads()
    yield from settings_of_temperatures()


def settings_of_uploads() -> Iterator[tuple[str, Settings]]:
    """Yield the runs in which something is done to uploads, or sent to clients another way."""
    coded = {"topk": {"fraction": 0.3}, "int8": {}}
    noise = {"gaussian": {"noise": 0.5, "clip": 0.5}}
    masks: Settings = {"channel": {"masks": {}}}
    private = {"selection.name": "poisson", "aggregation.weighting": "fixed"}
    two_bad = {"attack.per_round": 2, "fraction": 1.0, "evaluation.clients": True}
    for stage in ("clip", "int8", "low_rank", "qsgd", "randk", "sign", "topk"):
        yield f"fedavg {stage}", {"channel": {stage: {}}}
    yield "scaffold error feedback", {"method.name": "scaffold", "channel": FEEDBACK}
    yield "chain coded", {"method.name": "chain", **NEEDED["chain"], "channel": coded}
    yield "fedavg coded actors", {"channel": coded, **ACTORS}
    yield "fedbuff coded", {"method.name": "fedbuff", "channel": coded}
    yield "fedbuff coded devices", {"method.name": "fedbuff", "channel": {"sign": {}}, **DEVICES}
    yield "fedavg down-link", {"channel": {"clip": {}}, "downlink": coded}
    scaffold = {"method.name": "scaffold"}
    yield "scaffold down-link stacked", {**scaffold, "downlink": coded, "engine.vectorize": 3}
    yield "fedavg masks", masks
    yield "fedprox masks actors", {"method.name": "fedprox", **masks, **ACTORS}
    yield "fedavg masks wait", {**masks, **DEVICES}
    yield "fedavg noise", {"channel": noise, **private}
    masked = noise | masks["channel"]
    yield "fedadam noise masks", {"method.name": "fedadam", "channel": masked, **private}
    for aggregation in ROBUST:
        yield f"fedavg {aggregation}", {"aggregation.name": aggregation, "fraction": 1.0}
    median = {"aggregation.name": "median", **ACTORS}
    yield "fedprox median actors", {"method.name": "fedprox", **median}
    for attack in ATTACKS:
        attacked = {"attack.name": attack, **two_bad}
        yield f"fedavg {attack}", attacked | {"aggregation.name": "trimmed_mean"}
    flips = {"attack.name": "sign_flip", "attack.fraction": 0.3}
    yield "scaffold sign flip coded", {**scaffold, **flips, "channel": coded}


def settings_of_temperatures() -> Iterator[tuple[str, Settings]]:
    """Yield the runs of temperatures, of what clients keep, and of own tests and tail averages."""
    for temperature, more in TEMPERATURES.items():
        named = {f"temperature.{key}": value for key, value in more.items()}
        given = {"temperature.name": temperature, **named, "local.temperature": 0.5}
        yield f"fedavg {temperature}", {**given, **DEVICES}
    kept = {"local.optimizer": "adam", "local.lr": 0.01, "local.keep": True}
    yield "fedavg keep", {**kept, "fraction": 1.0}
    yield "fedavg keep actors", {**kept, **ACTORS}
    yield "fedavg keep coded stacked", {**kept, "channel": FEEDBACK, "engine.vectorize": 3}
    yield "fedavg tail average", {"local.tail_average": 0.5}
    for method in ("ditto", "fedavg"):
        own = {"method.name": method, OWN_TESTS: True}
        yield f"{method} own tests", {**own, "evaluation.clients": True}
    yield "fedprox weighted", {"method.name": "fedprox", "selection.name": "weighted"}


def _policy(policy: str, method: str, **more: Any) -> Settings:
    return {"method.name": method, **DEVICES, "clock.policy": policy, **more}


def run(folder: Path, settings: Settings) -> None:
    """Run settings into a folder."""
    own = settings.get(OWN_TESTS, False)
    given = {key: value for key, value in settings.items() if key != OWN_TESTS}
    task = task_for(str(settings.get("method.name", "fedavg")), make_task(CLIENTS))
    if own:
        tests = [samples(10 + key, 100 + key) for key, _ in enumerate(CLIENTS)]
        task = replace(task, client_tests=tests)
    raysim.run(long_settings(folder, **{"rounds": 4} | given), task)


def digests(folder: Path) -> list[str]:
    """Return the digests of a run's model and client states, its figures, and its clients'."""
    tensors = [folder / "model.safetensors", *sorted((folder / "clients").rglob("*.safetensors"))]
    contents = (path.read_bytes() for path in tensors)
    found = [_digest(*contents), _table(folder / "metrics.parquet")]
    tables = [folder / "clients.parquet", *sorted(folder.glob("analysis/*.parquet"))]
    return [*found, _digest(*(_table(path).encode() for path in tables))]


def _table(path: Path) -> str:
    """Return the digest of a table, whatever the order of its columns, without times."""
    table = pq.read_table(path)
    names = sorted(name for name in table.column_names if name not in TIMES)
    return _digest(*(f"{n}={table[n].to_pylist()!r}".encode() for n in names))


def _digest(*contents: bytes) -> str:
    found = hashlib.sha256()
    for content in contents:
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()[:16]


def print_digests(chosen: Callable[[str], bool]) -> dict[str, list[str]]:
    """Run the chosen runs; print and return their digests."""
    found: dict[str, list[str]] = {}
    with TemporaryDirectory() as out:
        for number, (name, settings) in enumerate(settings_of_runs(Path(out))):
            if chosen(name):
                folder = Path(out) / str(number)
                run(folder, settings)
                found[name] = digests(folder)
                print(json.dumps([name, *found[name]]), flush=True)
    return found


def main() -> int:
    """Print digests; compare them with earlier ones where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="digests to compare with")
    parser.add_argument("--only", default="", help="part of the names of the runs")
    given = parser.parse_args()
    found = print_digests(lambda name: given.only in name)
    if given.against is None:
        return 0
    lines = map(json.loads, given.against.read_text().splitlines())
    expected = {name: values for name, *values in lines if given.only in name}
    names = sorted(found.keys() | expected.keys())
    different = [name for name in names if found.get(name) != expected.get(name)]
    print(f"{len(names) - len(different)} of {len(names)} runs are the same", file=sys.stderr)
    for name in different:
        print(f"differs: {name}: {expected.get(name)}, now {found.get(name)}", file=sys.stderr)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
