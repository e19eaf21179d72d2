"""Digests of code: other code has another one; the same code has the same, in any process."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import raysim
from raysim.driver.start.code_digests import NoDigestError, digest_of, digest_of_modules

CELL = """
import math, torch, functools
from torch import nn
import torch.nn.functional as F

SCALE = 2.0
TABLE = {"a": 1, "b": [2, 3]}
WORDS = {"one", "two", "three", "four"}

def helper(x):
    "Help."
    return x * SCALE

class Base(nn.Module):
    rate = 0.5

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def scaled(self, x):
        return helper(x) * self.rate

    @property
    def bias(self):
        return 1.0

    @staticmethod
    def fixed(x):
        return x - 1

    @functools.cached_property
    def late(self):
        return 4.0

class Net(Base):
    def forward(self, x):
        return self.fixed(self.scaled(self.layer(x))) + self.bias + self.late

def metric(predicted, targets, power=1, *, root=2):
    names = [name for name in TABLE if name in WORDS]
    return float(abs(predicted - targets).mean()) ** power + len(names) + root

def outer(limit):
    def inner(predicted, targets):
        return limit if 0 < SCALE < 3 else helper(limit)
    return inner

made = outer(3)
short = lambda predicted, targets: math.exp(1) + TABLE["a"]
kept = functools.lru_cache(helper)
part = functools.partial(metric, power=2)
"""
"""A notebook's cell: its classes and functions are in no file."""
NAMES = ("Net", "metric", "made", "short", "kept", "part")


def cell(before: str = "", after: str = "") -> dict[str, Any]:
    """Return what a cell defines, with a part of its text replaced."""
    assert before in CELL
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL.replace(before, after, 1) if before else CELL, space)  # noqa: S102
    return space


def digests(space: dict[str, Any]) -> dict[str, str]:
    found = {name: digest_of(space[name], name) for name in NAMES[1:]}
    return {**found, "Net": digest_of_modules(space["Net"](), "the model")}


EDITS = {
    "a constant of the module": ("SCALE = 2.0", "SCALE = 2.5", {"Net", "made", "kept"}),
    "a value in a container": ("[2, 3]", "[2, 4]", {"metric", "short", "part"}),
    "a set": ('"three"', '"trois"', {"metric", "part"}),
    "a helper": ("x * SCALE", "x / SCALE", {"Net", "made", "kept"}),
    "an attribute of a base class": ("rate = 0.5", "rate = 0.4", {"Net"}),
    "a method of a base class": ("(x) * self.rate", "(x) + self.rate", {"Net"}),
    "a property": ("return 1.0", "return 1.5", {"Net"}),
    "a cached property": ("return 4.0", "return 4.5", {"Net"}),
    "a static method": ("x - 1", "x - 2", {"Net"}),
    "forward": ("+ self.bias", "- self.bias", {"Net"}),
    "a default": ("power=1", "power=3", {"metric", "part"}),
    "a default of a name": ("root=2", "root=3", {"metric", "part"}),
    "a closure": ("outer(3)", "outer(4)", {"made"}),
    "a lambda": ("math.exp(1)", "math.exp(2)", {"short"}),
    "an argument of a partial": ("power=2", "power=4", {"part"}),
    "a comment": ("\ndef helper", "\n# It helps.\n\ndef helper", set()),
    "a docstring": ("Help.", "Helps.", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_cell_changes_the_digests_of_what_uses_it(edit):
    before, after, changed = EDITS[edit]
    first, second = digests(cell()), digests(cell(before, after))
    assert {name for name in NAMES if first[name] != second[name]} == changed


def test_another_process_with_other_hashes_finds_the_same():
    line = f"from {__name__} import *; print(sorted(digests(cell()).items()))"
    seed = {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", line]
    found = subprocess.run(
        command, env=os.environ | seed, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == str(sorted(digests(cell()).items())), found.stderr


class Quiet(nn.Module):
    """A module with an argument that no `repr` shows."""

    def __init__(self, power: float = 1.0, act: Any = F.relu, options: Any = None) -> None:
        super().__init__()
        self.power, self.act, self.options = power, act, options
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.act(self.layer(x)) ** self.power


class Masked(Quiet):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor(values), persistent=False)


def tied(share: bool) -> nn.Module:
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layers[1].load_state_dict(layers[0].state_dict())
    if share:
        layers[1].weight = layers[0].weight
    return layers


def frozen(name: str) -> nn.Module:
    network = Quiet()
    network.layer.get_parameter(name).requires_grad_(False)
    return network


def hooked(factor: float) -> nn.Module:
    network = Quiet()
    network.layer.register_forward_hook(lambda module, given, output: output * factor)
    return network


def patched(sign: int) -> nn.Module:
    network = Quiet()
    network.forward = lambda x: sign * network.layer(x)
    return network


def scripted(rate: float) -> nn.Module:
    with pytest.warns(FutureWarning, match="deprecated"):
        return torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Dropout(rate)))


MODULES: dict[str, tuple[Callable[[Any], nn.Module], Any, Any]] = {
    "type": (lambda act: nn.Sequential(nn.Linear(3, 3), act()), nn.ReLU, nn.Tanh),
    "argument": (nn.Dropout, 0.0, 0.9),
    "argument that no repr shows": (Quiet, 1.0, 2.0),
    "function": (lambda act: Quiet(act=act), F.relu, F.gelu),
    "lambda": (lambda act: Quiet(act=act), lambda x: x, lambda x: -x),
    "tuple": (nn.Upsample, (2, 3), (3, 2)),
    "mapping": (lambda options: Quiet(options=options), {"a": [1]}, {"a": [2]}),
    "array": (lambda options: Quiet(options=options), np.ones(2), np.zeros(2)),
    "order": (lambda acts: nn.Sequential(*acts), [nn.ReLU(), nn.Tanh()], [nn.Tanh(), nn.ReLU()]),
    "tensors that are shared": (tied, True, False),
    "parameters that are frozen": (frozen, "weight", "bias"),
    "hook": (hooked, 1.0, 2.0),
    "forward of an object": (patched, 1, -1),
    "buffer that is not persistent": (Masked, [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]),
    "script": (scripted, 0.1, 0.2),
}


@pytest.mark.parametrize("part", MODULES)
def test_another_model_of_the_same_shapes_has_another_digest(part):
    build, first, second = MODULES[part]
    found = [digest_of_modules(build(given), "the model") for given in (first, first, second)]
    assert found[0] == found[1] != found[2]


def test_values_of_parameters_and_the_mode_do_not_count():
    network, other = nn.LSTM(3, 4), nn.LSTM(3, 4).eval()
    with torch.no_grad():
        other(torch.ones(2, 1, 3))
    assert digest_of_modules(network, "the model") == digest_of_modules(other, "the model")


def test_a_network_that_a_function_uses_has_its_values_in_the_digest():
    def scored_by(network: nn.Module) -> str:
        return digest_of(lambda outputs, targets: network(outputs), "metric")

    torch.manual_seed(0)
    first, second = Quiet(), Quiet()
    assert scored_by(first) != scored_by(second)
    second.load_state_dict(first.state_dict())
    assert scored_by(first) == scored_by(second)


CALLS, SEEN, COUNTS = 0, [], {}


def counting(predicted: Any, targets: Any) -> float:
    global CALLS  # noqa: PLW0603
    CALLS += 1
    SEEN.append(predicted)
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    COUNTS["again"] = 1
    COUNTS["again"] += 1
    return float(CALLS)


COUNTING = """
from torch import nn

class Base(nn.Module):
    built = passed = called = inherited = 0
    seen, times = [], {"forward": 0}
    width, rate, words = 4, 0.5, ["a"]

    def __init__(self, rate=None):
        super().__init__()
        Base.built += 1
        if rate:
            self.rate = rate

    @classmethod
    def count(cls):
        cls.called += 1

    def forward(self, x):
        type(self).passed += self.width
        self.__class__.inherited += len(self.words)
        self.seen.append(1)
        self.times["forward"] += 1
        self.count()
        return x

class Net(Base):
    pass
"""


def test_what_a_class_counts_and_logs_is_not_its_code():
    """A constant is, also one that a user sets between two runs, or a default of an instance."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(COUNTING, space)  # noqa: S102
    made = space["Net"]
    before = digest_of_modules(made(), "the model")
    made()(1)
    kinds = space["Base"], made
    assert [vars(kinds[0])["built"], vars(kinds[1])["passed"], *made.seen] == [2, 4, 1]
    assert digest_of_modules(made(), "the model") == before
    found = {before}
    for name, value in {"width": 8, "rate": 0.25, "words": ["b"]}.items():
        setattr(space["Base"], name, value)
        found.add(digest_of_modules(made(), "the model"))
    assert len(found) == 4


CONFIGURED = """
from torch import nn

class Net(nn.Module):
    act, width, options, acts = "relu", 4, {"act": "relu"}, {}

    def __init__(self, **more):
        super().__init__()
        self.options.update(more)

    @classmethod
    def configure(cls, act):
        cls.act = act

    @classmethod
    def build(cls, width):
        type(cls()).width = width
        return cls()

    @classmethod
    def register(cls, function):
        cls.acts["act"] = function

    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.configure("tanh"),
        lambda net: net.build(8),
        lambda net: net(act="tanh"),
        lambda net: net.register(len),
    ],
    ids=["set", "built", "updated", "registered"],
)
def test_what_a_class_configures_is_its_code(change):
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(CONFIGURED, space)  # noqa: S102
    made = space["Net"]
    before = digest_of_modules(made(), "the model")
    change(made)
    assert digest_of_modules(made(), "the model") != before


def test_what_a_function_counts_and_logs_is_not_its_code():
    total, log = 0, []

    def logging(predicted: Any, targets: Any) -> float:
        nonlocal total
        total += 1
        log.append(total)
        return counting(predicted, targets)

    before = digest_of(logging, "metric")
    logging(1, 1)
    assert digest_of(logging, "metric") == before


@pytest.mark.parametrize("how", ["attribute", "import"])
def test_a_function_of_a_module_beside_the_script_is_looked_up_there(tmp_path, monkeypatch, how):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for sign in "+-":
        (tmp_path / "beside.py").write_text(f"def act(x):\n    return {sign}x\n")
        module = ModuleType("beside")
        exec((tmp_path / "beside.py").read_text(), vars(module))  # noqa: S102
        if how == "attribute":
            monkeypatch.setitem(sys.modules, "beside", module)
        space = {"__name__": "__main__", "beside": module}
        body = (
            "return beside.act(p)" if how == "attribute" else "from beside import act; return act"
        )
        exec(f"def metric(p, t):\n    {body}", space)  # noqa: S102
        found.append(digest_of(space["metric"], "metric"))
    assert found[0] != found[1]


def test_what_an_import_within_a_function_imports_from_beside_it_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "inner.py").write_text("import beneath\n")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def train(client):\n    from inner import beneath", space)  # noqa: S102
    found = []
    for text in ("RATE = 1\n", "RATE = 2\n"):
        (tmp_path / "beneath.py").write_text(text)
        found.append(digest_of(space["train"], "loop"))
    assert found[0] != found[1]


def test_what_has_no_digest_is_named():
    lock = threading.Lock()

    def metric(predicted: Any, targets: Any) -> float:
        with lock:
            return math.inf

    scoring = raysim.Scoring(F.mse_loss, {"far": metric})
    with pytest.raises(
        NoDigestError, match=r"^the scoring, metrics, far, .*lock is a _thread.lock$"
    ):
        digest_of(scoring, "the scoring")
    with pytest.raises(NoDigestError, match=r"^the model, the module, options is a _thread.lock$"):
        digest_of_modules(Quiet(options=lock), "the model")


def recursive() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


OBJECTS: dict[str, Callable[[], Any]] = {
    "generator": lambda: np.random.default_rng(1),
    "array of objects": lambda: np.array(["a", None], dtype=object),
    "method": lambda: np.random.default_rng(1).normal,
    "cache": lambda: functools.lru_cache(len),
    "ufunc": lambda: np.add,
    "descriptor": lambda: str.upper,
    "scoring": lambda: raysim.REGRESSION,
    "decorated": lambda: torch.no_grad()(cell()["metric"]),
    "recursive": recursive,
    "handle of a hook": lambda: nn.Linear(1, 1).register_forward_hook(print),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_made_again_has_the_same_digest(kind):
    assert digest_of(OBJECTS[kind](), "value") == digest_of(OBJECTS[kind](), "value")
