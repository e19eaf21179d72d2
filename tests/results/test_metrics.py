"""Metrics against values worked out by hand."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.api.columns import Column
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.results.metrics import NAMES, parse_metric
from raysim.results.runs import read_run
from tests.results.conftest import make_rows
from tests.tasks import make_settings, make_task

ACCURACY = [None, 0.5, 0.75, 0.625, None, 0.875]
"""Running maximum: 0.5 in round 2, 0.75 in rounds 3 and 4, 0.875 in round 6."""
VALUES = {
    "final(test_accuracy)": 0.875,
    "final(train_loss)": 2 / 6,
    "best(test_accuracy)": 0.875,
    "best(test_loss)": 0.125,
    "last_ten(test_accuracy)": (0.5 + 0.75 + 0.625 + 0.875) / 4,
    # Half of the way from 0.75 in round 4 to 0.875 in round 6.
    "rounds_to(test_accuracy, 0.8125)": 5.0,
    "bytes_to(test_accuracy, 0.8125)": 30 * 5.0,
    "bytes_up_to(test_accuracy, 0.8125)": 10 * 5.0,
    "seconds_to(test_accuracy, 0.8125)": 1.75 * 5.0,
    "rounds_to(test_accuracy, 0.625)": 2.5,
    "rounds_to(test_accuracy, 0.75)": 3.0,
    "rounds_to(test_accuracy,0.25)": 2.0,
    "rounds_to(test_accuracy, 0.9)": None,
    "rounds_to(test_loss, 0.375)": 2.5,
    "bytes_to(test_loss, 0.125)": 180.0,
    "rounds_to(train_loss, 1.5)": 1.5,
    "rounds_to(test_loss, 0.1)": None,
    # The smallest test_loss, 0.125, is that of round 6; the smallest train_loss of those evaluated.
    "at_best(test_accuracy, test_loss)": 0.875,
    "at_best(train_loss, test_accuracy)": 2 / 6,
    "final(bytes)": 180.0,
    "final(total_seconds)": 10.5,
}


@pytest.mark.parametrize("text", VALUES)
def test_value(write_run, text):
    record = read_run(write_run(rows=make_rows(ACCURACY)))
    assert parse_metric(text).of(record) == VALUES[text]


def test_the_last_ten_rounds(write_run):
    record = read_run(write_run(rows=make_rows([0.0, 1.0, *[0.5] * 9, 0.75])))
    assert parse_metric("last_ten(test_accuracy)").of(record) == pytest.approx(5.25 / 10)


def test_a_curve_that_falls_is_interpolated_on_its_running_extreme(write_run):
    """From the maximum so far, 0.6 in round 1, and not from 0.2 in round 2."""
    record = read_run(write_run(rows=make_rows([0.6, 0.2, 1.0])))
    assert parse_metric("rounds_to(test_accuracy, 0.7)").of(record) == pytest.approx(2.25)


def test_values_that_are_no_numbers(write_run):
    rows = make_rows([0.1, 0.2, 0.3], test_loss=[1.0, float("nan"), 0.5])
    record = read_run(write_run(rows=rows))
    assert parse_metric("best(test_loss)").of(record) == 0.5
    assert parse_metric("rounds_to(test_loss, 0.75)").of(record) == 2.0
    nan = read_run(write_run("nan", make_rows([0.1, 0.2], test_loss=[1.0, float("nan")])))
    assert parse_metric("final(test_loss)").of(nan) is None


def test_a_value_in_the_best_round_by_another_column(write_run):
    """In the first of equal rounds; what is no number chooses no round, and is no value."""
    nan = float("nan")
    held_out = [0.5, 0.75, 0.75, nan, 0.25, None]
    rows = make_rows([0.1, 0.2, 0.3, 0.4, 0.5, None], holdout_accuracy=held_out)
    record = read_run(write_run(rows=rows))
    assert parse_metric("at_best(test_accuracy, holdout_accuracy)").of(record) == 0.2
    assert parse_metric("at_best(holdout_accuracy, test_accuracy)").of(record) == 0.25
    rows = make_rows([0.1, 0.2], holdout_loss=[0.5, 0.75])
    record = read_run(write_run("loss", rows))
    assert parse_metric("at_best(test_accuracy, holdout_loss)").of(record) == 0.1
    lacking = parse_metric("at_best(test_accuracy, holdout_accuracy)")
    assert not lacking.is_in(record)
    with pytest.raises(SettingsError, match="no column 'holdout_accuracy'; did you mean"):
        lacking.of(record)
    none = read_run(write_run("none", make_rows([0.1], holdout_loss=[nan])))
    assert parse_metric("at_best(test_accuracy, holdout_loss)").of(none) is None


def test_a_run_without_rounds_has_no_figure(write_run):
    assert parse_metric("final(test_accuracy)").of(read_run(write_run())) is None


def test_the_better_of_two(write_run):
    record = read_run(write_run(rows=make_rows([0.1])))
    metrics = {text: parse_metric(text) for text in VALUES}
    values = {text: each.values_in(each.column_in(record)) for text, each in metrics.items()}
    assert {value.better for value in values.values()} == {"larger", "smaller"}
    assert {text for text, value in values.items() if value.larger} == {
        "final(test_accuracy)",
        "best(test_accuracy)",
        "last_ten(test_accuracy)",
        "at_best(test_accuracy, test_loss)",
    }


def test_definitions_name_column_and_target():
    columns = Column("test_accuracy", "larger"), Column("test_loss", "smaller")
    for name in NAMES:
        plain = ("final", "best", "last_ten", "over_local")
        text = f"{name}(test_loss)" if name in plain else ""
        second = "train_loss" if name == "at_best" else 0.5
        metric = parse_metric(text or f"{name}(test_loss, {second})")
        for column in (*columns, None):
            text = metric.definition(column)
            assert text.startswith(f"{metric}: ") and text.endswith(".")
            assert "test_loss" in text.partition(": ")[2]
    assert "smallest test_loss so far reaches 0.5" in metric.definition(columns[1])
    assert "best test_loss so far reaches 0.5" in metric.definition(None)
    assert "the largest test_accuracy" in parse_metric("best(test_accuracy)").definition(columns[0])


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "": "must be name(column)",
        "final": "must be name(column)",
        "final(a b)": "must be name(column)",
        "finl(test_accuracy)": "did you mean 'final'",
        "final(test_accuracy, 0.5)": "takes no target",
        "rounds_to(test_accuracy)": "needs a target",
        "at_best(test_accuracy)": "needs a second column, as in at_best(test_accuracy, holdout",
        "rounds_to(test_accuracy, x)": "needs a target",
        "rounds_to(test_accuracy, nan)": "needs a target",
        "analysis(activations, layer_1)": "activations has no metrics; did you mean 'kl_",
        "analysis(cka)": "must be as analysis(cka, layer_1)",
        "analysis(cka, layer_0)": "must be as analysis(cka, layer_1)",
        "analysis(new_client, epoch)": "must be as analysis(new_client, epochs)",
    }.items(),
)
def test_text_that_is_no_metric(text, says):
    with pytest.raises(SettingsError) as caught:
        parse_metric(text)
    assert says in str(caught.value) and "metric=" in str(caught.value)


def test_an_unknown_column_names_the_nearest(write_run):
    record = read_run(write_run(rows=make_rows([0.5])))
    with pytest.raises(SettingsError, match="'test_acuracy'; did you mean 'test_accuracy'"):
        parse_metric("final(test_acuracy)").of(record)


VIRTUAL = {
    # Half of the way from round 4, after 10 s and 100 J, to round 6, after 21 s and 210 J.
    "virtual_seconds_to(test_accuracy, 0.8125)": 15.5,
    "hours_to(test_accuracy, 0.8125)": 15.5 / 3600,
    "joules_to(test_accuracy, 0.8125)": 155.0,
    "final(total_virtual_seconds)": 21.0,
    "best(virtual_seconds)": 1.0,
    "final(lost_clients)": 2,
}


@pytest.mark.parametrize("text", VIRTUAL)
def test_virtual_time_and_energy(write_run, text):
    """Round n takes n virtual seconds and 10*n joules."""
    virtual = {"virtual_seconds": [1, 2, 3, 4, 5, 6], "virtual_joules": [10, 20, 30, 40, 50, 60]}
    rows = make_rows(ACCURACY, **virtual, lost_clients=[0, 0, 1, 0, 0, 2])
    metric = parse_metric(text)
    record = read_run(write_run(rows=rows))
    assert metric.of(record) == pytest.approx(VIRTUAL[text])
    assert metric.values_in(metric.column_in(record)).better == "smaller"


def test_virtual_time_needs_a_clock(write_run, tmp_path):
    metric = parse_metric("hours_to(test_accuracy, 0.8)")
    record = read_run(write_run(rows=make_rows(ACCURACY)))
    assert not metric.is_in(record)
    with pytest.raises(SettingsError, match="no column 'total_virtual_seconds'; run it with clock"):
        metric.of(record)
    for text in ("hours_to(test_accuracy, 0.8)", "final(virtual_joules)"):
        with pytest.raises(SettingsError, match=r"needs clock\.name=devices"):
            parse_metric(text).check(make_settings(tmp_path))
        parse_metric(text).check(make_settings(tmp_path, **{"clock.name": "devices"}))


CLIENTS, DITTO = {"evaluation.clients": True}, {"method.name": "ditto"}
BY_KEY = {"partition.name": "by_key", "dataset.name": "femnist", "clients": 5}
OF_CLIENTS = {
    "client_accuracy_mean": (CLIENTS, "evaluation.clients=true"),
    "trained_accuracy_d1": (
        {**CLIENTS, "evaluation.trained": True},
        "evaluation.clients=true",
    ),
    "local_test_accuracy_mean": ({**CLIENTS, **BY_KEY}, "evaluation.clients=true"),
    "local_test_loss": ({**CLIENTS, **BY_KEY}, "evaluation.clients=true"),
    "personal_local_test_accuracy_d1": ({**CLIENTS, **BY_KEY}, "evaluation.clients=true"),
    "personal_holdout_loss": ({"evaluation.holdout": 0.1}, "evaluation.holdout above 0"),
    "train_set_accuracy": ({"evaluation.train_set": True}, "evaluation.train_set=true"),
    "personal_train_set_accuracy": (
        {"evaluation.train_set": True},
        "evaluation.train_set=true",
    ),
    "finetuned_local_test_accuracy": (
        {"evaluation.local_test": 0.2, "evaluation.finetune_epochs": 1},
        "evaluation.finetune_epochs or .finetune_steps above 0",
    ),
    "personal_new_local_test_accuracy_jain": (
        {"evaluation.local_test": 0.2, "evaluation.new_clients": 0.1},
        "evaluation.new_clients above 0",
    ),
    "unseen_local_test_accuracy_gain": (
        {"evaluation.local_test": 0.2},
        "evaluation.local_test above 0",
    ),
    "personal_holdout_accuracy": ({"evaluation.holdout": 0.1}, "evaluation.holdout above 0"),
}


@pytest.mark.parametrize("column", OF_CLIENTS)
def test_columns_of_clients_need_a_run_that_has_them(tmp_path, column):
    settings, needs = OF_CLIENTS[column]
    metric = parse_metric(f"best({column})")
    assert metric.column_before(make_settings(tmp_path)).larger == ("accuracy" in column)
    metric.check(make_settings(tmp_path, **settings))
    for each in (metric, parse_metric(f"at_best(test_accuracy, {column})")):
        with pytest.raises(SettingsError, match=f"{column}.*: needs {needs}"):
            each.check(make_settings(tmp_path))


OF_ATTACK = {
    "bad_clients": ({"attack.name": "ipm"}, "an attack"),
    "bad_clients_beyond_bound": (
        {"attack.name": "ipm", "aggregation.name": "trimmed_mean"},
        "an attack, and an aggregation that states a bound",
    ),
    "total_bad_clients_beyond_bound": (
        {"attack.name": "ipm", "aggregation.name": "median"},
        "an attack, and an aggregation that states a bound",
    ),
    "attack_success_rate": ({"attack.name": "backdoor"}, "an attack with a trigger"),
}


@pytest.mark.parametrize("column", OF_ATTACK)
def test_columns_of_attacks_need_a_run_that_has_them(tmp_path, column):
    settings, needs = OF_ATTACK[column]
    metric = parse_metric(f"final({column})")
    metric.check(make_settings(tmp_path, **settings))
    with pytest.raises(SettingsError, match=f"{column}.*: needs {needs}"):
        metric.check(make_settings(tmp_path))


class Declares(FedAvg):
    """FedAvg with a column that adds up, and one of as many numbers as there are."""

    columns = (Column("cost", "smaller", fold="sum"), Column("width", "smaller", numbered=True))


def test_columns_that_a_method_declares_are_known_before_a_run(tmp_path):
    """With their totals, and each of a numbered one's, whose own name is none."""
    settings = make_settings(tmp_path, **{"method.name": f"{__name__}:Declares"})
    for name in ("cost", "total_cost", "width_1", "width_12"):
        metric = parse_metric(f"best({name})")
        metric.check(settings)
        declared = metric.column_before(settings)
        assert (declared.name, declared.better) == (name, "smaller")
    for name in ("width", "width_x"):
        with pytest.raises(SettingsError, match=f"no column '{name}'; did you mean 'width_1'"):
            parse_metric(f"best({name})").check(settings)


def test_own_test_samples_need_a_partition_that_gives_them(tmp_path):
    metric = parse_metric("final(local_test_accuracy)")
    with pytest.raises(SettingsError, match="needs a partition whose clients have own test"):
        metric.check(make_settings(tmp_path, **CLIENTS))
    with pytest.raises(SettingsError, match=r"needs evaluation\.trained=true"):
        parse_metric("final(trained_accuracy_mean)").check(make_settings(tmp_path, **CLIENTS))
    with pytest.raises(SettingsError, match=r"needs evaluation\.holdout above 0"):
        parse_metric("final(personal_holdout_loss)").check(make_settings(tmp_path, **DITTO))


@pytest.mark.parametrize("column", ["kl_mean_client", "kl_client_mean"])
def test_the_divergence_of_activations_is_the_mean_over_the_clients_of_the_last_round(
    tmp_path, column
):
    options = {"rounds": 3, "evaluation.every": 2, "fraction": 0.5, "analysis": "kl_activations"}
    raysim.run(make_settings(tmp_path / "run", **options), make_task((9, 20, 12, 17)))
    rows = pq.read_table(tmp_path / "run/analysis/kl_activations.parquet").to_pylist()
    last = [row[column] for row in rows if row["round"] == 3]
    assert {row["round"] for row in rows} == {2, 3} and len(last) == 2
    metric = parse_metric(f"analysis(kl_activations, {column})")
    assert metric.of(read_run(tmp_path / "run")) == pytest.approx(sum(last) / 2, rel=1e-12)
    found = metric.column_in(read_run(tmp_path / "run"))
    assert found.better == "smaller" and metric.analysis == "kl_activations"
    assert not metric.takes_reference and str(metric) in metric.definition(found)
