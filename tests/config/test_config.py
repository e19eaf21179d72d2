"""Settings: what is refused and how it is said, round trips, overrides, files, own components."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.config import parse, parse_override
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedprox import FedProx
from raysim.workloads.partitions.dirichlet import Dirichlet
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.partitions.shards import Shards
from raysim.workloads.presets import PRESETS


def refusal(overrides, source="mnist-fedavg"):
    """Return the message with which settings are refused, which must be one line."""
    with pytest.raises(SettingsError) as caught:
        raysim.load_config(source, overrides)
    text = str(caught.value)
    assert text and len(text.splitlines()) == 1
    return text


UNKNOWN = {
    "top": ({"rouns": 5}, "rouns", "'rounds'"),
    "group": ({"local.epoch": 3}, "local.epoch", "'local.epochs'"),
    "no such group": ({"locl.epochs": 3}, "locl", "'local'"),
    "component's field": ({"method.name": "fedprox", "method.mus": 1}, "method.mus", "'method.mu'"),
    "nothing near": ({"partition.qqq": 1}, "partition.qqq", "name"),
    "method": ({"method.name": "fedproxx"}, "method.name=fedproxx", "'fedprox'"),
    "dataset": ({"dataset.name": "minst"}, "dataset.name=minst", "'mnist'"),
    "method, far": (
        {"method.name": "qqqqqq"},
        "method.name=qqqqqq",
        "pfedme, powersgd, qffl, rolora, scaffold",
    ),
    "module": ({"model.name": "no_such:Net"}, "model.name=no_such:Net", "No module named"),
    "class": ({"model.name": "json:Net"}, "model.name=json:Net", "'Net'"),
    "kind": ({"model.name": "json:JSONEncoder"}, "model.name=json:JSONEncoder", "raysim.Model"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_key_or_name_is_refused_with_the_nearest(case):
    overrides, key, hint = UNKNOWN[case]
    text = refusal(overrides)
    assert text.startswith(f"{key}: ")
    assert hint in text.removeprefix(key)


def test_unknown_preset():
    assert "mnist-fedavh" in refusal({}, "mnist-fedavh")
    assert "'mnist-fedavg'" in refusal({}, "mnist-fedavh")


NAN = float("nan")
BAD_VALUES = [
    ({"rounds": "five"}, 'rounds="five"', "integer"),
    ({"rounds": 2.5}, "rounds=2.5", "integer"),
    ({"rounds": None}, "rounds=null", "integer"),
    ({"rounds": 0}, "rounds=0", "greater than or equal to 1"),
    ({"checkpoint_every": True}, "checkpoint_every=true", "integer"),
    ({"clients": -3}, "clients=-3", "greater than or equal to 1"),
    ({"fraction": 0}, "fraction=0", "greater than 0"),
    ({"fraction": 1.1}, "fraction=1.1", "less than or equal to 1"),
    ({"seed": -1}, "seed=-1", "greater than or equal to 0"),
    ({"target_accuracy": 97}, "target_accuracy=97", "less than or equal to 1"),
    (
        {"weighting": "sizes"},
        'weighting="sizes"',
        ": must be 'examples', 'uniform' or 'tokens' or a .csv or",
    ),
    ({"local.lr_rounds": "1,5"}, 'local.lr_rounds="1,5"', "must be a valid list"),
    ({"local.batch_size": 0}, "local.batch_size=0", "greater than or equal to 1 or 'full'"),
    ({"local.batch_size": "half"}, 'local.batch_size="half"', "integer or 'full'"),
    ({"local.temperature": 0}, "local.temperature=0", "greater than 0"),
    ({"local.lr": NAN}, "local.lr=NaN", "finite"),
    ({"local.lr": float("inf")}, "local.lr=Infinity", "finite"),
    ({"local.lr": "0,1"}, 'local.lr="0,1"', "number"),
    ({"local.momentum": 1}, "local.momentum=1", "less than 1"),
    ({"local.nesterov": True}, "local.nesterov=true", "local.momentum above 0"),
    ({"local": 3}, "local=3", "dictionary"),
    ({"method.name": "fedprox", "method.mu": -1}, "method.mu=-1", "greater than or equal to 0"),
    ({"method.name": "fedprox", "method.mu": NAN}, "method.mu=NaN", "finite"),
    ({"partition.name": "dirichlet", "partition.alpha": 0}, "partition.alpha=0", "greater than 0"),
    ({"engine.backend": "spark"}, 'engine.backend="spark"', "'ray' or 'inline'"),
    ({"engine.actors": "all"}, 'engine.actors="all"', "integer or 'auto'"),
    ({"engine.gpus_per_actor": 2}, "engine.gpus_per_actor=2", "less than or equal to 1"),
    ({"engine.cpus_per_actor": 0}, "engine.cpus_per_actor=0", "equal to 0.0001 or 'auto'"),
]


@pytest.mark.parametrize(("overrides", "setting", "allowed"), BAD_VALUES, ids=str)
def test_bad_value_is_refused_with_key_value_and_what_is_allowed(overrides, setting, allowed):
    text = refusal(overrides)
    assert text.startswith(f"{setting}: ")
    assert allowed in text.removeprefix(setting)


@pytest.mark.parametrize("value", [3, None, ["fedavg"]])
def test_a_component_name_that_is_no_word_is_named(value):
    text = refusal({"method.name": value})
    assert text.startswith(f"method.name={json.dumps(value)}: ") and "name of a method" in text


def test_a_word_where_a_component_belongs_is_named():
    text = refusal({"method": "fedprox"})
    assert "fedprox" in text and "method.name" in text


def test_a_relative_import_path_is_refused():
    assert refusal({"method.name": ".mine:Method"}).startswith("method.name=.mine:Method: ")


def test_a_value_used_as_a_group_is_refused():
    assert refusal({"rounds.most": 3}) == "rounds.most: rounds is a value, not a group of settings"
    assert refusal({"local.lr.first": 3}).startswith("local.lr.first: lr is a value")


@pytest.mark.parametrize("text", ["rounds", "rounds:5", "=5", " =5"])
def test_override_without_key_or_equals_sign_is_refused(text):
    with pytest.raises(SettingsError, match=r"dotted\.key=value") as caught:
        parse_override(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("target_accuracy=none", ("target_accuracy", None)),
        ("target_accuracy=None", ("target_accuracy", None)),
        ("engine.deterministic=true", ("engine.deterministic", True)),
        ("rounds=50", ("rounds", 50)),
        ("local.lr=1e-2", ("local.lr", 0.01)),
        ("local.batch_size=full", ("local.batch_size", "full")),
        ('local.batch_size="full"', ("local.batch_size", "full")),
        ("out=runs/a=b c", ("out", "runs/a=b c")),
        (" rounds = 7 ", ("rounds", 7)),
    ],
)
def test_overrides_are_read_as_none_json_or_words(text, expected):
    key, value = parse_override(text)
    assert (key, value) == expected and type(value) is type(expected[1])


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_json(preset):
    settings = PRESETS[preset].settings
    assert parse(json.loads(json.dumps(settings.to_dict()))) == settings
    assert raysim.load_config(preset) == settings


def test_overrides_reach_their_fields_and_no_other():
    settings = raysim.load_config("mnist-fedavg", {"local.lr": 1, "engine.actors": 3, "seed": 4})
    expected = PRESETS["mnist-fedavg"].settings.to_dict()
    expected["local"]["lr"], expected["engine"]["actors"], expected["seed"] = 1.0, 3, 4
    assert settings.to_dict() == expected
    assert settings.override({"target_accuracy": None}).target_accuracy is None


PAIRS = [
    ("method.name", "fedprox"),
    ("method.mu", 0.3),
    ("local.momentum", 0.5),
    ("local.nesterov", True),
    ("partition.size", 10),
    ("partition.name", "shards"),
]


@given(st.permutations(PAIRS))
def test_order_of_overrides_does_not_matter(pairs):
    settings = raysim.load_config("mnist-fedavg", dict(pairs))
    assert settings.method == FedProx(mu=0.3)
    assert settings.partition == Shards(size=10)
    assert settings.local.nesterov


@pytest.mark.parametrize("keys", [("method", "method.mu"), ("method.mu", "method")])
def test_a_whole_group_is_replaced_before_its_fields_are(keys):
    values = {"method": {"name": "fedprox"}, "method.mu": 0.3}
    settings = raysim.load_config("mnist-fedavg", {key: values[key] for key in keys})
    assert settings.method == FedProx(mu=0.3)


STAGES = [
    ("method.name", "chain"),
    ("method.methods.fedprox.mu", 0.3),
    ("method.methods.momentum", {}),
    ("method.methods.fedmax.beta", 10),
    ("method.methods.fedmax", {"beta": 1}),
]


@given(st.permutations(STAGES))
def test_an_ordered_mapping_has_the_order_in_which_overrides_name_it(pairs):
    named = [key.split(".")[2] for key, _ in pairs if key.count(".") > 1]
    settings = raysim.load_config("mnist-fedavg", dict(pairs))
    assert [*settings.method.methods] == [*dict.fromkeys(named)]
    assert settings.method.methods["fedmax"].beta == 10
    more = {"method.methods.momentum.gamma": 0.1, "method.methods.scaffold": {}}
    assert [*settings.override(more).method.methods] == [*dict.fromkeys(named), "scaffold"]


def test_overrides_are_left_as_they_are():
    group = {"name": "fedprox"}
    raysim.load_config("mnist-fedavg", {"method": group, "method.mu": 0.3})
    assert group == {"name": "fedprox"}


def test_naming_another_component_drops_the_fields_of_the_one_before():
    assert raysim.load_config("mnist-noniid").partition == Shards(size=300, per_client=2)
    for name, partition in {"iid": Iid(), "dirichlet": Dirichlet()}.items():
        settings = raysim.load_config("mnist-noniid", {"partition.name": name})
        assert settings.partition == partition
    same = {"partition.name": "shards", "partition.per_client": 3}
    kept = raysim.load_config("mnist-noniid", same).partition
    assert kept == Shards(size=300, per_client=3)


TOML = """
clients = 30
fraction = 1
target_accuracy = 0.5
[dataset]
name = "mnist"
[partition]
name = "dirichlet"
alpha = 0.1
[model]
name = "2nn"
[method]
name = "fedprox"
mu = 2
[local]
batch_size = "full"
[engine]
actors = 2
"""
JSON = """{
    "dataset": {"name": "mnist"}, "partition": {"name": "dirichlet", "alpha": 0.1},
    "model": {"name": "2nn"}, "method": {"name": "fedprox", "mu": 2},
    "clients": 30, "fraction": 1, "target_accuracy": 0.5,
    "local": {"batch_size": "full"}, "engine": {"actors": 2}
}"""


def test_toml_and_json_files_read_the_same(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "a.json").write_text(JSON)
    first, second = (raysim.load_config(tmp_path / f"a.{kind}") for kind in ("toml", "json"))
    assert first == second
    assert first.method == FedProx(mu=2.0) and first.partition == Dirichlet(alpha=0.1)
    assert (first.cohort_size, first.local.batch_size, first.engine.actors) == (30, "full", 2)
    changed = raysim.load_config(str(tmp_path / "a.toml"), {"method.name": "fedavg"})
    assert changed.method == FedAvg()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("none.toml", None, "not there"),
        ("bad.toml", "rounds = \n", "cannot be read"),
        ("bad.json", '{"rounds": ', "cannot be read"),
        ("one.json", "1", "table of settings"),
        ("few.json", '{"rounds": 3}', "dataset.name: must be given; raysim list datasets"),
        ("date.toml", "rounds = 2024-01-01\n" + TOML, "rounds="),
    ],
)
def test_files_that_hold_no_settings_are_refused(tmp_path, name, text, problem):
    if text is not None:
        (tmp_path / name).write_text(text)
    message = refusal({}, tmp_path / name)
    assert problem in message
    assert name in message or name in ("few.json", "date.toml")


OWN = """
from typing import ClassVar
from pydantic import Field
from torch import nn
from raysim.samples.client_indices import ListedIndices
from raysim.samples.data import Dataset, Model, Partition
from raysim.methods.fedavg import FedAvg

class Mine(FedAvg):
    strength: float = Field(default=0.5, ge=0)
    betas: tuple[float, float] = (0.9, 0.99)

class Net(Model):
    width: int = 4
    def build(self, shape, classes):
        return nn.Linear(shape[0], classes)

class Data(Dataset):
    shape: ClassVar = (3,)
    classes: ClassVar = 2
    def prepare(self, root, progress):
        return {}

class Split(Partition):
    def split(self, data, clients, seed):
        return ListedIndices.of([])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module with one component of each kind, importable as `own_pieces`."""
    (tmp_path / "own_pieces.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_pieces"
    sys.modules.pop("own_pieces", None)


PIECES = {
    "method": ("Mine", {"strength": 2.0}),
    "model": ("Net", {"width": 7}),
    "dataset": ("Data", {}),
    "partition": ("Split", {}),
}


@pytest.mark.parametrize("kind", PIECES)
def test_own_component_by_import_path(own, kind):
    name, fields = PIECES[kind]
    target = f"{own}:{name}"
    overrides = {f"{kind}.name": target} | {f"{kind}.{k}": v for k, v in fields.items()}
    component = getattr(raysim.load_config("mnist-fedavg", overrides), kind)
    assert type(component).__name__ == name and type(component).__module__ == own
    assert component.title == target
    written = component.settings()
    assert written["name"] == target and fields.items() <= written.items()


@pytest.mark.parametrize("kind", PIECES)
def test_own_component_survives_json(own, kind):
    settings = raysim.load_config("mnist-fedavg", {f"{kind}.name": f"{own}:{PIECES[kind][0]}"})
    assert parse(json.loads(json.dumps(settings.to_dict()))) == settings


def test_own_component_is_validated(own):
    text = refusal({"method.name": f"{own}:Mine", "method.strength": -1})
    assert text.startswith("method.strength=-1: ") and "greater than or equal to 0" in text
    assert "must be a subclass of raysim.Model" in refusal({"model.name": f"{own}:Mine"})


@pytest.mark.filterwarnings("ignore:Field name")  # pydantic's, which a user may not see
def test_a_field_in_the_place_of_what_a_class_states_is_refused(tmp_path, monkeypatch):
    """The field would be a setting that nothing reads, and the statement that of the base."""
    lines = ["import raysim", "class Mine(raysim.methods.fedavg.FedAvg):"]
    lines += ["    needs_local: dict = {'optimizer': 'adam'}"]
    (tmp_path / "shadowing.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    text = "a field `needs_local`, which its base has for no setting; write `needs_local: ClassVar["
    assert text in refusal({"method.name": "shadowing:Mine"})


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"),
    [
        (0.1, 100, 10),
        (0.7, 6, 4),
        (0.29, 100, 29),  # 28.999999999999996 in floating point
        (0.126, 100, 13),
        (0.001, 100, 1),
        (1.0, 7, 7),
        (0.5, 5, 2),  # a half goes to the even number
        (0.5, 7, 4),
    ],
)
def test_cohort_size_is_rounded_and_at_least_one(fraction, clients, expected):
    chosen = {"fraction": fraction, "clients": clients}
    assert raysim.load_config("mnist-fedavg", chosen).cohort_size == expected


@pytest.mark.parametrize(
    ("lr_min", "expected"),
    [
        (0.0, [0.1, 0.05, 0.025, 0.0125, 0.00625]),
        (0.02, [0.1, 0.05, 0.025, 0.0125, 0.0125]),
        (0.025, [0.1, 0.05, 0.025, 0.025, 0.025]),
        (0.5, [0.1] * 5),
    ],
)
def test_the_first_learning_rate_at_or_below_the_least_stays(lr_min, expected):
    local = raysim.load_config(
        "mnist-fedavg", {"local.lr": 0.1, "local.lr_decay": 0.5, "local.lr_min": lr_min}
    ).local
    assert [local.rate_at(number, 5, 0.1) for number in range(5)] == expected


@pytest.mark.parametrize(
    "written", ["cka,activations", "[cka, activations]", '["cka","activations","cka"]']
)
def test_analyses_are_written_as_a_list_or_as_names(written):
    settings = raysim.load_config("mnist-fedavg", dict([parse_override(f"analysis={written}")]))
    assert settings.analysis == ("cka", "activations")
    assert parse(settings.to_dict()) == settings
    assert raysim.load_config("mnist-fedavg", {"analysis": []}).analysis == ()
