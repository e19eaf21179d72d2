"""The simulated pools of the scale benchmarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.scaling import large_models
from tests.benchmarks.scaling import placement as part
from tests.benchmarks.scaling.costs import MODELS, broadcast_seconds
from tests.benchmarks.scaling.output import Options
from tests.benchmarks.scaling.population import Population
from tests.benchmarks.scaling.simulation import Costs
from tests.benchmarks.scaling.streaming import Fleet

pytestmark = pytest.mark.ci

FREE = Costs(send=0, receive=0, merge=0, node_merge=0, latency=0, call=0, pack=0, node_pack=0)


@pytest.mark.full
@pytest.mark.usefixtures("shared_ray")
def test_all_cases_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "WORKERS", (8,))
    monkeypatch.setattr(part, "COHORTS", (40,))
    lines = list(part.placement(Options(rounds=1, out=None, tiny=True)))
    rows = [each for each in lines if "| 8 | 2 | 40 |" in each]
    assert len(rows) == len(part.CASES)
    assert all(row.count("|") == len(part.NAMES) + 1 for row in rows)


def test_large_models_have_a_line_with_foremen_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CLUSTER": 8, "NODE": 4, "COHORT": 40}.items():
        monkeypatch.setattr(large_models, name, value)
    lines = list(large_models.paper(Options(rounds=1, out=None, tiny=True)))
    assert [row.count("ResNet-18 | 1 | 8 | 2 | 40 |") for row in lines] == [0, 0, 1, 0, 0]
    assert lines[2].endswith("| 0.134 |")  # two sums of 67 MB


@pytest.mark.parametrize("node", [0, 4])
def test_actors_are_busy_where_messages_cost_nothing(node: int) -> None:
    played = Population(workers=8, cohort=2000, mean=1, sigma=0, node=node).rounds(4, FREE)[2:]
    for each in played:
        assert each.bound <= each.round.seconds < 1.05 * each.bound
    assert all(0.95 < share <= 1 for share in part.busy_shares(played, workers=8))


def test_one_sum_a_foreman_reaches_the_driver() -> None:
    population = Population(workers=12, cohort=100, mean=0.1, sigma=0.5, node=4)
    for each in population.rounds(3, Costs()):
        assert each.round.sums == 3


@pytest.mark.parametrize(
    ("case", "busy"),
    [((0.1, 0.0, 0.5), 0.85), pytest.param((1.0, 0.0, 0.5), 0.9, marks=pytest.mark.full)],
)
def test_512_actors_are_busy(case: tuple[float, float, float], busy: float) -> None:
    """89% and 91% in the benchmark; without foremen 56% and 86%."""
    played = Population(512, 5000, *case, node=32).rounds(2, Costs())[1:]
    assert part.busy_shares(played, workers=512)[0] > busy


def test_sums_of_resnet_18_leave_256_actors_busy_for_85_percent_of_the_ideal() -> None:
    """Of the ideal that sends the model too, as the benchmark's column has it: 88%.

    Of one in which the model is everywhere at once it is 82%, in the benchmark.
    """
    parameters = MODELS["ResNet-18"]
    _, costs = large_models.on_paper(parameters)
    out = broadcast_seconds(parameters, nodes=8)
    population = Population(256, 1000, 1.0, 0.5, node=32)
    (played,) = population.rounds(2, replace(costs, broadcast=out))[1:]
    of_the_ideal = part.busy_shares([played], workers=256)[0] / played.ideal
    assert of_the_ideal > 0.8 and of_the_ideal + out / played.round.seconds > 0.85


def test_no_actor_begins_before_the_model_is_there() -> None:
    costs = replace(FREE, broadcast=3.0)
    population = Population(workers=8, cohort=200, mean=1, sigma=0, node=4)
    for late, free in zip(population.rounds(3, costs), population.rounds(3, FREE), strict=True):
        assert late.bound + 3.0 <= late.round.seconds < 1.1 * free.round.seconds + 3.0
        assert late.round.busy == pytest.approx(free.round.busy, rel=0.1)


@pytest.mark.parametrize("node", [0, 4])
@pytest.mark.parametrize("share", [2, 8])
def test_actors_are_busy_in_asynchronous_rounds(node: int, share: int) -> None:
    """Eight clients at work for each of eight actors, with what messages cost: within 5%."""
    fleet = Fleet(8, 64 // share, 64, sigma=0.5, devices=0.5, node=node)
    played, bound = fleet.played(25 * share, Costs())
    assert bound <= played.seconds < 1.05 * bound
    assert 0.95 < played.busy / (8 * played.seconds) <= 1
