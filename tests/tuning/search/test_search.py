"""The search: what is drawn, what is refused, and what a storage remembers."""

from __future__ import annotations

import logging
import math

import optuna
import pytest

import raysim
from raysim.tuning.search.results import best
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, values


def play(search, trials, accuracy=lambda params: params["local.lr"]):
    """Run trials of an objective that costs nothing."""
    for _ in range(trials):
        finish(search, search.ask(), accuracy)


def finish(search, trial, accuracy=lambda params: params["local.lr"]):
    """Run a trial of such an objective."""
    found = accuracy(trial.params)
    search.decisions.judge(trial, {1: found})
    sent = int(100 * found)
    summary = {"final_holdout_accuracy": found, "bytes_up": sent, "bytes_down": sent}
    search.tell(trial, summary)


def test_the_grid_is_gone_through_once(tmp_path):
    assert make_search(tmp_path, SearchOptions(sampler="grid")).most_trials() == 9 * 3
    (tmp_path / "line").mkdir()
    search = make_search(tmp_path / "line", SearchOptions(sampler="grid"), **{"method.mu": 0.1})
    points = search.resolved.space.points()
    assert len(points) == 9
    play(search, len(points))
    assert [trial[1] for trial in values(search)] == points


def test_a_trial_lost_while_it_was_enqueued_is_drawn_next(tmp_path):
    search = make_search(tmp_path, SearchOptions(sampler="grid"))
    points = search.resolved.space.points()
    search.study.enqueue_trial(points[0])
    play(search, 2)
    assert [trial[1] for trial in values(search)] == points[:2]


def test_the_first_of_equal_trials_is_the_best(tmp_path):
    search = make_search(tmp_path, SearchOptions("random"))
    play(search, 4, accuracy=lambda params: 0.5)
    assert [trial.number for trial in best(search.study)] == [0]


def test_two_objectives_give_the_pareto_front(tmp_path):
    search = make_search(tmp_path, SearchOptions(objectives=("accuracy", "bytes")))
    figures = [(0.5, 10), (0.6, 10), (0.6, 30), (0.9, 50), (0.4, 5), (0.3, 8)]
    for accuracy, sent in figures:
        summary = {"final_holdout_accuracy": accuracy, "bytes_up": sent, "bytes_down": sent}
        search.tell(search.ask(), summary)
    # Worse or equal in both than another: 0, 2 and 5.
    assert [trial.number for trial in best(search.study)] == [1, 3, 4]
    assert best(search.study)[1].values == [0.9, 100]


@pytest.mark.parametrize("objectives", [("bytes",), ("virtual_seconds",), ("accuracy", "bytes")])
def test_accuracies_stop_no_trial_of_other_objectives(tmp_path, objectives):
    """Nor are they its values: half of these trials are far less accurate."""
    options = SearchOptions.of("random", None, objectives)
    options.check()
    search = make_search(tmp_path, options, **{"clock.name": "devices"})
    sent = {"bytes_up": 1, "bytes_down": 1, "virtual_seconds": 1.0}
    for number in range(12):
        trial, accuracy = search.ask(), 0.9 if number % 2 else 0.2
        assert all(search.decisions.judge(trial, {step: accuracy}) for step in range(1, 5))
        search.tell(trial, {"final_holdout_accuracy": accuracy, **sent})
    trial = search.ask()
    search.decisions.judge(trial, {1: 0.5})
    assert search.prune(trial).values is None


def first_stop(search, accuracies=range(6)):
    """Return the trial and the round at which the pruner first stops one; later ones are worse."""
    rounds = search.resolved.settings.rounds
    for number in accuracies:
        trial = search.ask()
        for step in range(1, rounds + 1):
            if not search.decisions.judge(trial, {step: 0.9 - number / 10}):
                return number, step
        search.tell(trial, {"final_holdout_accuracy": 0.1, "bytes_up": 1, "bytes_down": 1})
    return None


WARMUP = {"n_warmup_steps": 1}


@pytest.mark.parametrize(
    ("pruner", "options", "rounds", "stop"),
    [
        ("median", {}, 4, (5, 3)),  # at the third evaluation; five trials are never stopped
        ("median", {}, 30, (5, 4)),  # after the first tenth of the rounds
        ("median", WARMUP, 20, (5, 1)),
        ("median", {"n_startup_trials": 2}, 4, (2, 3)),
        ("median", {}, 2, None),
        ("percentile", {"n_startup_trials": 1}, 4, (1, 3)),
        ("successive-halving", {}, 4, (1, 3)),
        ("successive-halving", {"min_resource": 1}, 4, (1, 1)),
        ("hyperband", {"reduction_factor": 2}, 2, None),
    ],
)
def test_no_pruner_judges_early_unless_an_option_says_so(tmp_path, pruner, options, rounds, stop):
    chosen = SearchOptions("random", pruner, pruner_options=options)
    chosen.check()
    assert first_stop(make_search(tmp_path, chosen, rounds=rounds)) == stop


@pytest.mark.parametrize(
    ("key", "fixed"), [("rounds", {"rounds": 8}), ("evaluation.every", {"evaluation.every": 2})]
)
def test_no_pruner_where_trials_have_other_rounds_or_evaluations(tmp_path, key, fixed):
    table = {"space": {key: [1, 4], "local.lr": [0.1, 0.2]}}
    with pytest.raises(raysim.SettingsError, match=f"^study.pruner=median: must be .* `{key}` is"):
        make_search(tmp_path, SearchOptions("random", "median"), table=table)
    make_search(tmp_path, SearchOptions("random", "none"), table=table)
    assert make_search(tmp_path, SearchOptions("random", "median"), table=table, **fixed)


@pytest.mark.parametrize("most", [{}, {"max_resource": "auto"}, {"max_resource": 30}])
def test_hyperband_needs_a_bracket(tmp_path, most):
    options = {"min_resource": 21 if most.get("max_resource") != 30 else 31, **most}
    chosen = SearchOptions("random", "hyperband", pruner_options=options)
    chosen.check()
    end = r"min_resource=.1: must be at most max_resource=.0$"
    with pytest.raises(raysim.SettingsError, match=f"^study.pruner=hyperband: {end}"):
        make_search(tmp_path, chosen, rounds=20)


def test_hyperband_takes_a_bootstrap_count(tmp_path):
    counted = {"bootstrap_count": 2, "min_resource": 1, "reduction_factor": 2}
    chosen = SearchOptions("random", "hyperband", pruner_options=counted)
    chosen.check()
    assert make_search(tmp_path, chosen, rounds=20)


def test_a_check_of_samplers_prints_nothing(caplog):
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    try:
        SearchOptions("qmc", sampler_options={"scramble": True}).check()
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize(
    ("params", "message"),
    [({"local.lr": 5.0}, "local.lr=5.0: must be 0.001 to 0.5, log"), ({"lr": 1}, "lr: is not se")],
)
def test_a_callback_enqueues_within_the_ranges(tmp_path, params, message):
    search = make_search(tmp_path)
    with pytest.raises(raysim.SettingsError, match=f"^enqueue_trial: {message}"):
        search.study.enqueue_trial(params)
    search.study.enqueue_trial({"local.lr": 0.2})
    assert search.ask().params["local.lr"] == 0.2 and len(search.study.trials) == 1


def test_rounds_without_an_evaluation_do_not_count_as_evaluations(tmp_path):
    every = {"rounds": 40, "evaluation.every": 3}
    search = make_search(tmp_path, SearchOptions("random", "median"), **every)
    for number in range(6):
        trial = search.ask()
        stops = []
        for step in range(3, 41, 3):
            if not search.decisions.judge(trial, {step: 0.9 - number / 10}):
                stops.append(step)
        search.tell(trial, {"final_holdout_accuracy": 0.1, "bytes_up": 1, "bytes_down": 1})
    assert stops[0] == 9


def test_first_trials_come_first_and_once(tmp_path):
    first = [{"local.lr": 0.25, "method.mu": 1.0}, {"local.lr": 0.5}]
    table = {"first": first}
    search = make_search(tmp_path, SearchOptions("random"), table=table)
    search.claim()
    play(search, 1)
    search = make_search(tmp_path, SearchOptions("random"), table=table)
    search.claim()
    play(search, 3)
    found = [trial[1] for trial in values(search)]
    assert found[0] == first[0] and found[1]["local.lr"] == 0.5 and len(found[1]) == 2
    assert found[2]["local.lr"] not in (0.25, 0.5)
    with pytest.raises(raysim.RunError, match=r"differs in first"):
        make_search(tmp_path, SearchOptions("random")).claim()


FOUR = {"local.lr": {"low": 0.25, "high": 0.5, "step": 0.25}, "method.mu": [0.0, 1.0]}


def test_a_grid_leaves_out_the_points_that_were_first(tmp_path):
    first = [{"local.lr": 0.5, "method.mu": 1.0}, {"local.lr": 0.25, "method.mu": 1.0}]
    search = make_search(tmp_path, SearchOptions("grid"), table={"space": FOUR, "first": first})
    search.claim()
    assert search.most_trials() == 4
    play(search, 4)
    found = [tuple(trial[1].values()) for trial in values(search)]
    assert found == [(0.5, 1.0), (0.25, 1.0), (0.25, 0.0), (0.5, 0.0)]


def test_a_grid_completes_a_first_trial(tmp_path):
    between = {**FOUR, "local.lr": {"low": 0.1, "high": 0.9}}
    first = [{"method.mu": 1.0}, {"local.lr": 0.15}]
    search = make_search(tmp_path, SearchOptions("grid"), table={"space": between, "first": first})
    assert search.most_trials() == 2 * 9 + 1
    play(search, 4)
    found = [tuple(trial[1].values()) for trial in values(search)]
    assert found == [(0.1, 1.0), (0.15, 0.0), (0.1, 0.0), (0.2, 0.0)]


@pytest.mark.parametrize(("sampler", "most"), [("grid", 2), ("random", math.inf)])
def test_first_trials_that_an_override_makes_equal_are_run_once(tmp_path, sampler, most):
    first = [{"local.lr": 0.5, "method.mu": mu} for mu in (0.0, 1.0)] + [{"local.lr": 0.25}]
    table = {"space": FOUR, "first": first}
    search = make_search(tmp_path, SearchOptions(sampler), table=table, **{"method.mu": 1.0})
    assert search.most_trials() == most
    play(search, 2)
    assert [trial[1] for trial in values(search)] == [{"local.lr": 0.5}, {"local.lr": 0.25}]


def test_equal_first_trials_that_leave_something_to_draw_are_all_run(tmp_path):
    table = {"first": [{"method.mu": 1.0}, {"method.mu": 1.0}, {"method.mu": 0.0}]}
    search = make_search(tmp_path, SearchOptions("random"), table=table)
    play(search, 3)
    assert [trial[1]["method.mu"] for trial in values(search)] == [1.0, 1.0, 0.0]
    (tmp_path / "grid").mkdir()
    grid = make_search(tmp_path / "grid", SearchOptions("grid"), table={**table, "space": FOUR})
    assert grid.most_trials() == 4  # a grid completes them to the same point
    play(grid, 4)
    assert len({tuple(trial[1].values()) for trial in values(grid)}) == 4


CONDITIONAL = {
    "space": {
        "method.mu": {"low": 0.1, "high": 1.0, "when": {"method.name": "fedprox"}},
        "method.name": ["fedavg", "fedprox"],
        "local.lr": {"low": 1e-3, "high": 0.5, "log": True},
    }
}


@pytest.mark.parametrize(
    "sampler",
    ["tpe", "qmc", *(pytest.param(name, marks=pytest.mark.full) for name in ("random", "nsga2"))],
)
def test_a_conditional_setting_is_drawn_where_it_is_searched(tmp_path, sampler):
    def after(trials, folder):
        search = make_search(folder, SearchOptions(sampler), table=CONDITIONAL)
        search.claim()
        play(search, trials)
        return values(search)

    found = after(12, tmp_path)
    for _, params, *_ in found:
        assert ("method.mu" in params) == (params["method.name"] == "fedprox")
    assert {params["method.name"] for _, params, *_ in found} == {"fedavg", "fedprox"}
    (tmp_path / "parts").mkdir()
    after(5, tmp_path / "parts")
    assert after(7, tmp_path / "parts") == found


def test_a_resumed_trial_draws_only_what_it_searches(tmp_path):
    """Others have ended since it began, so that the same draws would take another branch."""
    search = make_search(tmp_path, SearchOptions("tpe"), table=CONDITIONAL)
    play(search, 10)
    running = [search.ask() for _ in range(8)]
    before = {trial.number: dict(trial.params) for trial in running}
    play(search, 6)
    again = make_search(tmp_path, SearchOptions("tpe"), table=CONDITIONAL)
    assert {trial.number: trial.params for trial in again.take_over()} == before
    assert {"fedavg", "fedprox"} == {params["method.name"] for params in before.values()}


def test_a_half_drawn_trial_of_another_branch_is_completed(tmp_path):
    search = make_search(tmp_path, SearchOptions("random"), table=CONDITIONAL)
    trial = search.study.ask()
    other = make_search(tmp_path, SearchOptions("random"), table=CONDITIONAL)
    drawn = other.resolved.space.draw(optuna.create_study(sampler=other._sampler([])).ask())
    held = "fedavg" if drawn["method.name"] == "fedprox" else "fedprox"
    trial.set_user_attr("by", "a tuner")
    choice = search.resolved.space["method.name"]
    index = choice.to_internal_repr(held)
    search.study._storage.set_trial_param(trial._trial_id, "method.name", index, choice)
    (found,) = make_search(tmp_path, SearchOptions("random"), table=CONDITIONAL).take_over()
    assert found.params["method.name"] == held
    assert ("method.mu" in found.params) == (held == "fedprox") and "local.lr" in found.params


def test_hyperband_stops_trials_among_the_first_five(tmp_path):
    """The median rule stops none of these."""
    search = make_search(tmp_path, SearchOptions(pruner="hyperband"), rounds=9)
    stopped = []
    for number in range(5):
        trial = search.ask()
        for step in range(1, 10):
            if not search.decisions.judge(trial, {step: 0.9 - number / 10}):
                stopped.append((number, step))
                search.prune(trial)
                break
        else:
            summary = {"final_holdout_accuracy": 0.9 - number / 10, "bytes_up": 1, "bytes_down": 1}
            search.tell(trial, summary)
    assert stopped[0] == (1, 3)


def test_a_step_that_was_reported_before_is_not_reported_again(tmp_path):
    search = make_search(tmp_path)
    trial = search.ask()
    search.decisions.judge(trial, {1: 0.5, 2: 0.6})
    resumed = make_search(tmp_path)
    (again,) = resumed.take_over()
    resumed.decisions.judge(again, {1: 0.5, 3: 0.7})  # a warning would fail the test
    assert values(make_search(tmp_path))[0][4] == {1: 0.5, 2: 0.6, 3: 0.7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            SearchOptions(sampler="best"),
            "^study.sampler=best: must be one of tpe, random, grid",
        ),
        (SearchOptions(pruner="soon"), "pruner=soon: must be one of median, percentile, succ"),
        (
            SearchOptions(sampler_options={"n_startup": 5}),
            "sampler.n_startup: no such option of tpe; did you mean 'n_startup_trials'",
        ),
        (
            SearchOptions(sampler_options={"n_startup_trials": "5"}),
            "sampler.n_startup_trials=5: must be int with sampler=tpe",
        ),
        (
            SearchOptions(sampler_options={"n_startup_trials": True}),
            "sampler.n_startup_trials=True: must be int with sampler=tpe",
        ),
        (
            SearchOptions(sampler_options={"n_ei_candidates": 0}),
            "sampler.n_ei_candidates=0: must be 1 or more",
        ),
        (
            SearchOptions(pruner="median", pruner_options={"n_warmup_steps": -1}),
            "pruner.n_warmup_steps=-1: must be 0 or more",
        ),
        *(
            (
                SearchOptions(pruner="hyperband", pruner_options={name: 0}),
                f"pruner.{name}=0: must be",
            )
            for name in ("min_resource", "max_resource", "reduction_factor")
        ),
        *(
            (
                SearchOptions(sampler_options={"prior_weight": weight}),
                f"sampler.prior_weight={weight}: must be 0 or more and finite",
            )
            for weight in (-1.0, -1, math.nan, math.inf)
        ),
        (
            SearchOptions("nsga2", sampler_options={"swapping_prob": math.nan}),
            "sampler.swapping_prob=nan: must be 0 or more and finite",
        ),
        (
            SearchOptions(pruner="percentile", pruner_options={"percentile": math.nan}),
            "pruner.percentile=nan: must be 0 or more and finite",
        ),
        (
            SearchOptions("grid", sampler_options={"seed": 5}),
            "sampler.seed: no such option of grid; it has none",
        ),
        (
            SearchOptions("cma-es", sampler_options={"popsize": 3}),
            "sampler.popsize=3: must be 4 or more",
        ),
        (
            SearchOptions("cma-es", sampler_options={"restart_strategy": "ipop"}),
            "sampler.restart_strategy: no such option of cma-es",
        ),
        (
            SearchOptions("cma-es", objectives=("accuracy", "bytes")),
            "sampler=cma-es: searches one objective only, but got 2",
        ),
        (
            SearchOptions("nsga2", sampler_options={"population_size": 1}),
            "sampler=nsga2: population_size=1: `population_size` must be greater than",
        ),
        (
            SearchOptions(pruner="percentile", pruner_options={"percentile": 200}),
            "pruner=percentile: percentile=200: Percentile must be between 0 and 100",
        ),
        (
            SearchOptions(objectives=("bytes", "bytes")),
            "objectives=bytes,bytes: must be distinct ones of",
        ),
        (
            SearchOptions(objectives=("speed",)),
            "objectives=speed: must be distinct ones of accuracy, loss, bytes",
        ),
        (
            SearchOptions(pruner="median", objectives=("accuracy", "bytes")),
            "pruner=median: pruners judge the objective accuracy alone, but got accuracy,bytes;",
        ),
        (
            SearchOptions(pruner="hyperband", objectives=("bytes",)),
            "pruner=hyperband: pruners judge the objective accuracy alone, but got bytes; use",
        ),
    ],
)
def test_refusals(options, message):
    with pytest.raises(raysim.SettingsError, match=message):
        options.check()


def test_trials_that_cannot_be_compared_are_not_mixed(tmp_path):
    make_search(tmp_path, rounds=9).claim()  # no trial was drawn for these
    search = make_search(tmp_path)
    search.claim()
    search.ask()
    make_search(tmp_path, **{"engine.cpus_per_actor": 0.5}).claim()
    with pytest.raises(raysim.RunError, match=r"differs in settings \(rounds: 4, here 9\)"):
        make_search(tmp_path, rounds=9).claim()
    with pytest.raises(raysim.RunError, match=r"differs in settings \(.*method.mu"):
        make_search(tmp_path, **{"method.mu": 0.5}).claim()
    with pytest.raises(raysim.RunError, match=r"differs in sampler \(tpe, here random"):
        make_search(tmp_path, SearchOptions(sampler="random")).claim()


def test_a_chain_in_another_order_is_another_study(tmp_path):
    def search(*names):
        overrides = {"method.name": "chain", "method.methods": {name: {} for name in names}}
        return make_search(
            tmp_path, table={"space": {"local.lr": {"low": 0.1, "high": 0.5}}}, **overrides
        )

    first = search("fedprox", "momentum")
    first.claim()
    first.ask()
    search("fedprox", "momentum").claim()
    expected = r"differs in settings \(method.methods: fedprox, momentum, here momentum, fedprox\)"
    with pytest.raises(raysim.RunError, match=expected):
        search("momentum", "fedprox").claim()


@pytest.mark.parametrize("storage", ["sqlite:////no/such/folder/study.db", "nonsense://x", "x"])
def test_a_storage_that_cannot_be_used(tmp_path, storage):
    with pytest.raises(raysim.RunError, match=f"storage={storage}: cannot be used: "):
        make_search(tmp_path, storage=storage)


@pytest.mark.parametrize("storage", ["sqlite://", "sqlite:///:memory:", "journal://x"])
def test_a_storage_that_ends_with_the_process(tmp_path, storage):
    kind = storage.partition(":")[0]
    message = f"cannot be used: it names no file; four slashes begin a full path: {kind}:////FILE"
    with pytest.raises(raysim.RunError, match=f"storage={storage}: {message}"):
        make_search(tmp_path, storage=storage)
