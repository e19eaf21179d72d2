"""Random combinations of settings hold; what does not hold is seen."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from raysim.aggregation import AGGREGATIONS
from raysim.api.components import build_component
from raysim.api.method import METHODS
from raysim.attack import ATTACKS
from raysim.channel import STAGES
from raysim.methods.fedavg import FedAvg
from raysim.selection import SELECTIONS
from raysim.temperature import TEMPERATURES
from tests.combinations.cases import Case, cases
from tests.combinations.checks import differences, failures, not_finite, resumed, saved
from tests.combinations.drawing import component, drawn_settings, value_of

QUICK, WHOLE, PART = (0, 2, 3), 300, 20
REGISTRIES = (METHODS, STAGES, AGGREGATIONS, ATTACKS, SELECTIONS, TEMPERATURES)


def failed(seed: int, numbers: range, folder: Path, actors: bool = False) -> list[tuple[str, str]]:
    """Return the failures of cases, each with the command that runs it again."""
    found = []
    for case in cases(seed, numbers, folder):
        found += [(case.command, text) for text in failures(case, actors)[1]]
    return found


@pytest.mark.parametrize("number", QUICK)
def test_random_combinations_agree(number, tmp_path):
    assert failed(0, range(number, number + 1), tmp_path) == []


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, WHOLE, PART))
def test_random_combinations_agree_on_actors(first, tmp_path):
    assert failed(1, range(first, first + PART), tmp_path, actors=True) == []


def test_each_method_has_its_turn():
    drawn = [drawn_settings(number, Random(number)) for number in range(len(list(METHODS)))]
    assert {settings["method.name"] for settings in drawn} == {*METHODS}


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_drawn_settings_of_each_component_are_valid(registry):
    for name in registry:
        for seed in range(3 * (name != "chain")):  # not all methods can be chained
            fields = component(registry, name, Random(seed))
            assert isinstance(build_component(registry.get(name), fields, ""), registry.base)


def test_values_by_hand():
    numbers = {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0.9}
    assert {value_of(numbers, Random(seed)) for seed in range(50)} == {0.0, 0.225, 0.9}
    whole = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2}, {"type": "null"}]}
    assert {value_of(whole, Random(seed)) for seed in range(50)} == {1, 2, None}


CALLS = count()


class Counting(FedAvg):
    """Keeps a number outside the state, which a resumed run does not count again."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        after = super().server_update(now, state, reduced)
        model = {n: t + next(CALLS) for n, t in after.groups["model"].items()}
        return after.replace(model=model)


class Silent(FedAvg):
    """Reports a number that is none."""

    def metrics(self, state: Any) -> dict[str, float]:
        return {"drift": float("nan")}


class Exploding(FedAvg):
    """Sends a model that is not finite, whatever clients' learning rate."""

    def server_update(self, now: Any, state: Any, reduced: Any) -> Any:
        after = super().server_update(now, state, reduced)
        return after.replace(model={n: t / 0 for n, t in after.groups["model"].items()})


def plain_case(folder: Path, **changes: Any) -> Case:
    """Return a case of six equal clients with settings of its own."""
    case = Case(0, 0, folder / "case")
    case.federation.family, case.federation.sizes = "mlp", (10,) * 6
    needed = {"clients": 6, "engine.backend": "inline", "rounds": 4, "target_accuracy": None}
    case.settings = {**needed, "fraction": 1.0, "checkpoint_every": 1, **changes}
    return case


@pytest.mark.parametrize(
    ("method", "check", "words"),
    [("Counting", resumed, "resumed: "), ("Silent", saved, "round 1: drift not finite")],
)
def test_planted_faults_are_seen(method, check, words, tmp_path):
    case = plain_case(tmp_path, **{"method.name": f"{__name__}:{method}"})
    assert case.settle().error == ""
    assert any(words in text for text in check(case))


def test_a_row_with_other_metrics_than_its_model_is_seen(tmp_path):
    case = plain_case(tmp_path)
    assert [case.settle().error, *saved(case)] == [""]
    path = case.folder / "whole" / "metrics.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("test_loss")
    pq.write_table(
        table.set_column(place, "test_loss", pc.multiply(table["test_loss"], 1.01)), path
    )
    assert "the loss is" in next(saved(case))


def test_what_a_refusal_names_is_left_out(tmp_path):
    refused = {"method.name": "scaffold", "aggregation.name": "mean", "local.warmup_rounds": 9}
    case = plain_case(tmp_path, **refused)
    assert case.settle().error == ""
    assert "local.warmup_rounds=9" in case.refusals[0]
    assert "local.warmup_rounds" not in case.settings
    assert case.settings["method.name"] == "scaffold"


@pytest.mark.parametrize(("method", "fault"), [("fedavg", ""), (f"{__name__}:Exploding", "finite")])
def test_a_case_that_diverges_goes_on_with_a_small_rate(method, fault, tmp_path):
    case = plain_case(tmp_path, **{"method.name": method, "local.lr": 1e30})
    _, found = failures(case, actors=False)
    assert [fault in text for text in found] == [True] * bool(fault)
    assert case.settings["local.lr"] == 1e-4


def test_differences_by_hand():
    first = {"a": "1", "t": [{"x": 1, "y": "NaN"}, {"x": 2}], "u": [{}]}
    second = {"a": "1", "t": [{"x": 1, "y": "NaN"}, {"x": 3}], "u": []}
    assert [*differences(first, second)] == ["t, row 1, x: 2 and 3", "u: 1 and 0 rows"]
    rows = [{"round": 1, "x": float("inf"), "clients": 0}, {"round": 2, "x": float("inf")}]
    assert [*not_finite(rows)] == ["saved: round 2: x not finite"]
