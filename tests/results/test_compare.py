"""Runs grouped by settings, and their comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

import raysim
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.results.compare import compared_metrics, comparison, group_runs, judged_columns
from raysim.results.metrics import parse_metric
from raysim.results.runs import read_run
from raysim.storage.revisions import COMPONENTS, DOWN_STAGES, FORMULA, STAGES
from raysim.testing.tasks import samples
from tests.cli.test_app import raysim_command  # noqa: F401 - a fixture
from tests.results.conftest import make_rows
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task

PROX = {"method.name": "fedprox", "method.mu": 0.1}


@pytest.fixture
def grouped(write_run):
    """Write runs of names and fields, and group them."""

    def group(**runs):
        return group_runs([read_run(write_run(name, **fields)) for name, fields in runs.items()])

    return group


def test_groups_are_of_equal_settings_apart_from_the_seed(grouped):
    first, second, third = grouped(
        a={"seed": 2},
        b=PROX,
        c={"seed": 0, "engine.actors": 3},
        d={"seed": 2, "trace": True},
        e={**PROX, "seed": 1, "analysis": "cka", "reference": "elsewhere"},
    )
    assert [[record.path.name for record in g.records] for g in (first, second, third)] == [
        ["c", "a"],
        ["b", "e"],
        ["d"],  # a second run of seed 2
    ]
    assert [g.label for g in (first, second, third)] == ["fedavg", "fedprox", "fedavg (2)"]


LOSSES = [{k: v for k, v in row.items() if k != "test_accuracy"} for row in make_rows([0.5])]
REFUSED = {
    "dataset": ({"dataset.name": "fashion-mnist"}, "dataset.name=fashion-mnist", "name=mnist"),
    "task": ({"own_task": True}, "its own task", "dataset.name=mnist"),
    "metric": ({"rows": LOSSES, "finished": False}, "test_loss", "test_accuracy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_cannot_be_compared_are_refused_in_one_line(
    write_run,
    raysim_command,  # noqa: F811
    tmp_path,
    case,
):
    fields, has, other = REFUSED[case]
    a = write_run("a", make_rows([0.5]))
    b, c = write_run("b", make_rows([0.5]), seed=1), write_run("c", **fields)
    for words in (("compare", a, b, c), ("report", a, b, c, "-o", "page.html")):
        code, out, err = raysim_command(*map(str, words))
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert err.startswith(f"raysim: {c}: has {has}, and {a} has ") and other in err
        assert err.endswith("cannot be compared\n")
    assert not (tmp_path / "page.html").exists()


def test_runs_of_different_tables_are_refused_in_one_line(
    write_run,
    raysim_command,  # noqa: F811
    tmp_path,
):
    paths = []
    for folder, table, seed in (("a", "mifl-6a", 0), ("b", "mifl-6a", 1), ("c", "mifl-2b", 2)):
        run = f"{folder}/runs/mifl/iid/seed-{seed}"
        (tmp_path / run).parent.mkdir(parents=True)
        (tmp_path / folder / "table.json").write_text(json.dumps({"schema": 1, "table": table}))
        paths.append(str(write_run(run, make_rows([0.5]), seed=seed)))
    a, b, c = paths
    assert raysim_command("compare", a, b)[0] == 0  # two folders of one table
    free = str(write_run("free", make_rows([0.5]), seed=3))
    assert raysim_command("compare", c, free)[0] == 0
    for words in (("compare", free, a, c), ("report", a, b, c, "-o", "page.html")):
        code, out, err = raysim_command(*words)
        assert (code, out) == (2, "")
        assert err == (
            f"raysim: {c}: has table mifl-2b, and {a} has table mifl-6a: runs of another table"
            " cannot be compared\n"
        )
    (tmp_path / "c/table.json").write_text("garbage")  # of which `raysim table` says so
    assert raysim_command("compare", a, c)[0] == 0


def test_tasks_with_other_test_samples_are_refused(tmp_path):
    for name, test in (("a", 300), ("b", 300), ("c", 200)):
        task = replace(make_task((8, 8)), test=samples(test, 10_000))
        raysim.run(make_settings(tmp_path / name, rounds=1, seed=ord(name)), task)
    records = [read_run(tmp_path / name) for name in "abc"]
    assert len(group_runs(records[:2])) == 1
    with pytest.raises(SettingsError, match=r"c: has its own test samples \w+, and .*/a has"):
        group_runs(records)


def test_labels_have_the_settings_that_tell_groups_apart(grouped):
    groups = grouped(a=PROX, b={**PROX, "method.mu": 0.5}, c={"local.lr": 0.2})
    assert [g.label for g in groups] == [
        "fedprox, method.mu=0.1, local.lr=0.1",
        "fedprox, method.mu=0.5, local.lr=0.1",
        "fedavg, local.lr=0.2",
    ]


def test_labels_leave_out_what_the_name_of_a_component_says(grouped):
    """A field that methods share is in the labels of a method that has several values of it."""
    groups = grouped(
        a={"method.name": "ditto"},  # method.lam=0.1
        b={"method.name": "pfedme"},
        c={"method.name": "pfedme", "method.lam": 30.0},
    )
    labels = ["ditto", "pfedme, method.lam=15.0", "pfedme, method.lam=30.0"]
    assert [g.label for g in groups] == labels


def test_labels_have_settings_as_they_are_typed_but_for_quotes(grouped):
    groups = grouped(
        a={"evaluation.clients": True, "partition.limit": None},
        b={"evaluation.clients": False, "partition.limit": 5, "clock.name": "devices"},
    )
    assert [{*g.label.split(", ")} for g in groups] == [
        {"evaluation.clients=true", "partition.limit=none", "clock.name=none"},
        {"evaluation.clients=false", "partition.limit=5", "clock.name=devices"},
    ]


def test_chains_in_another_order_are_other_groups(grouped):
    chain, names = {"method.name": "chain"}, ("fedprox", "momentum")
    runs = {"a": names, "b": names[::-1], "c": ("fedprox",), "d": (*names, "fedavg")}
    groups = grouped(
        **{name: {**chain, "method.methods": {m: {} for m in of}} for name, of in runs.items()}
    )
    assert len(groups) == 4
    assert "method.methods=fedprox,momentum" in groups[0].label
    assert "method.methods=momentum,fedprox" in groups[1].label


def test_runs_of_stages_in_another_order_are_other_rows(write_run):
    """Of a mapping of stages at the top of the settings, the last stage without settings."""
    stages = {"clip": {"norm": 1.0, "noise": 0.0}, "topk": {"fraction": 0.1}, "masks": {}}
    reordered = {name: dict(reversed(stages[name].items())) for name in stages}
    orders = {
        "a": (stages, [*stages]),
        "b": (stages, ["topk", "clip", "masks"]),
        "c": (stages, ["clip", "topk"]),
        "d": (reordered, [*stages]),  # fields in another order say nothing
    }
    records = []
    for seed, (run, (given, names)) in enumerate(orders.items()):
        file = write_run(run, make_rows([0.5] * 5), seed=seed) / "config.json"
        channel = {name: given[name] for name in names}
        file.write_text(json.dumps({**json.loads(file.read_text()), "channel": channel}))
        records.append(read_run(file.parent))
    groups = group_runs(records)
    assert {g.label: len(g.records) for g in groups} == {
        "channel=clip,topk,masks": 2,
        "channel=topk,clip,masks": 1,
        "channel=clip,topk": 1,
    }
    assert [row[0].text for row in comparison(groups, []).rows] == [g.label for g in groups]


def test_one_group_is_called_by_its_method(grouped):
    (group,) = grouped(a={"seed": 1}, b={"seed": 2})
    assert group.label == "fedavg"


def table_of(groups, target=None, further=()):
    grid = comparison(groups, compared_metrics(groups, target, further))
    return grid, [
        {name: entry.text for name, entry in zip(grid.header, row, strict=True)}
        for row in grid.rows
    ]


def test_the_comparison(grouped):
    rows = {seed: make_rows([0.5, 0.75, 0.7 + seed / 100]) for seed in range(3)}
    groups = grouped(
        a={"rows": rows[0], "seed": 0},
        b={"rows": rows[1], "seed": 1},
        c={"rows": rows[2], "seed": 2},
        d={"rows": make_rows([0.5]), "finished": False, **PROX},
    )
    grid, (first, second) = table_of(groups, 0.625)
    assert first == {
        "run": "fedavg",
        "rounds": "3",
        "last ten accuracy [%]": "65.33 ± 0.33 (n=3)",
        "final accuracy [%]": "71.00 ± 1.00 (n=3)",
        "best accuracy [%]": "75.00 ± 0.00 (n=3)",
        "rounds to 0.625": "1.5 ± 0.0 (n=3)",
        "sent [B]": "90 ± 0 (n=3)",
        "time [s]": "5.2 ± 0.0 (n=3)",
    }
    assert second["rounds"] == "1 of 5, 1 interrupted"
    assert second["rounds to 0.625"] == "- (0/1, 1 not reached so far, at best 50.00%)"
    assert not any(row[2].bold for row in grid.rows)  # one is finished, and compared with none
    assert grid.notes[0].startswith("interrupted: its process is gone")
    assert "resume goes on with its run directory, not with an archive" in grid.notes[0]
    assert "final(test_accuracy): the last value of test_accuracy." in grid.notes
    assert len(set(grid.notes)) == len(grid.notes)


def test_bytes_are_in_the_unit_of_the_smallest_run(grouped):
    sent = {"bytes_up": [4e5, 3e6], "bytes_down": [2e5, 3e6]}
    groups = grouped(
        a={"rows": make_rows([0.5, 0.75], **sent)}, b={"rows": make_rows([0.5]), **PROX}
    )
    further = [parse_metric("bytes_to(test_accuracy, 0.5)")]
    (_, *bytes_to), (_, *both) = compared_metrics(groups[:1], None, further)[3:5]
    assert (bytes_to[1], both[1]) == ("kB", "MB")
    assert dict((name, unit) for name, _, unit in compared_metrics(groups, None))["sent"] == "B"


def test_virtual_time_is_compared_where_a_run_has_it(grouped):
    clock = {"virtual_seconds": [1.5, 2.5], "virtual_joules": [10.0, 20.0], "lost_clients": [0, 3]}
    rows = make_rows([0.5, 0.75], **clock)
    groups = grouped(a={"rows": rows}, b={"rows": make_rows([0.5]), **PROX})
    _, (timed, other) = table_of(groups)
    shown = {"virtual time [s]": "4.0", "energy [J]": "30", "lost clients": "3"}
    assert {name: timed[name] for name in shown} == {n: f"{v} (n=1)*" for n, v in shown.items()}
    assert {other[name] for name in shown} == {"- (0/1, 1 without a value)"}
    _, (plain,) = table_of(grouped(c={"rows": make_rows([0.5])}))
    assert not shown.keys() & plain.keys()


def test_what_an_attack_achieved_is_shown_and_judges_nobody(grouped):
    beyond = {"bad_clients_beyond_bound": [1, 2]}
    rows = make_rows([0.5, 0.75], attack_success_rate=[0.25, 0.5], **beyond)
    groups = grouped(a={"rows": rows}, b={"rows": make_rows([0.5]), **PROX})
    _, (attacked, other) = table_of(groups)
    assert attacked["attack success [%]"] == "50.00 (n=1)*"
    assert attacked["bad beyond bound"] == "3 (n=1)*"
    assert other["attack success [%]"] == "- (0/1, 1 without a value)"
    columns = compared_metrics(groups, None)
    assert "attack success" not in [name for name, *_ in judged_columns(columns)]


def test_runs_in_progress_are_rows_of_their_own(grouped):
    groups = grouped(
        a={"rows": make_rows([0.5, 0.75]), "seed": 0},
        b={"rows": make_rows([0.9]), "seed": 1, "finished": False},
        c={"rows": make_rows([0.7]), "seed": 2, "finished": False},
        d={"rows": make_rows([0.9]), "finished": False, **PROX},
    )
    grid, rows = table_of(groups)
    assert [row["run"] for row in rows] == ["fedavg", "fedavg, in progress", "fedprox"]
    assert [row["final accuracy [%]"] for row in rows] == [
        "75.00 (n=1)*",
        "80.00 ± 14.14 (n=2)*",
        "90.00 (n=1)*",
    ]
    assert [row[2].bold for row in grid.rows] == [False, False, False]


def test_rounds_of_fedma_are_not_compared(grouped):
    rows = {
        "a": {"rows": make_rows([0.5, 0.9])},
        "b": {"rows": make_rows([0.9]), "method.name": "fedma"},
        "c": {"rows": make_rows([0.6]), **PROX},
    }
    groups = grouped(
        **{f"{run}{n}": {**given, "seed": n} for run, given in rows.items() for n in range(5)}
    )
    grid, (_, fedma, _) = table_of(groups, 0.5)
    column = grid.header.index("rounds to 0.5")
    assert [row[column].bold for row in grid.rows] == [True, False, True]
    final = grid.header.index("final accuracy [%]")
    assert [row[final].bold for row in grid.rows] == [True, True, False]
    assert fedma["rounds to 0.5"] == "1.0 ± 0.0 (n=5) (a)"
    (note,) = [note for note in grid.notes if note.startswith("a: ")]
    assert "a round is a pass over the layers" in note


def test_runs_that_diverged_are_counted(grouped):
    bad = make_rows([0.9], train_loss=[float("nan")])
    groups = grouped(a={"rows": make_rows([0.5])}, b={"rows": bad, "seed": 1})
    _, (row,) = table_of(groups)
    assert row["final accuracy [%]"] == "50.00 (1/2, 1 diverged)*"
    assert row["rounds"] == "1 of 5, 1 diverged"


def test_a_run_that_lost_its_slots_is_no_run_in_progress(
    write_run,
    raysim_command,  # noqa: F811
    tmp_path,
):
    rows = {name: make_rows(values) for name, values in {"a": [0.5], "b": [0.9]}.items()}
    paths = [write_run(name, rows[name], finished=name == "a", seed=ord(name)) for name in rows]
    (paths[1] / "failed.json").write_text(
        '{"error": "lost its slot 3 times: it died", "formula": {}}'
    )
    groups = group_runs([read_run(path) for path in paths])
    grid, (row,) = table_of(groups)
    assert row["final accuracy [%]"] == "50.00 (1/2, 1 failed)*"
    assert row["rounds"] == "1 of 5, 1 failed"
    line = f"{paths[1]}: failed: lost its slot 3 times: it died"
    assert grid.notes[:2] == ("failed: an error ended the run; it has no values.", line)
    page = tmp_path / "page.html"
    code, _, err = raysim_command("report", *map(str, paths), "-o", str(page))
    assert (code, err) == (0, "") and line in page.read_text(encoding="utf-8")


def test_targets_are_those_of_the_settings(grouped):
    groups = grouped(
        a={"rows": make_rows([0.5, 0.9]), "target_accuracy": 0.9},
        b={"rows": make_rows([0.5, 0.9]), "target_accuracy": 0.7},
    )
    _, (row, _) = table_of(groups)
    assert (row["rounds to 0.7"], row["rounds to 0.9"]) == ("1.5 (n=1)*", "2.0 (n=1)*")


def test_further_metrics_and_runs_without_accuracy(grouped):
    rows = [{k: v for k, v in row.items() if k != "test_accuracy"} for row in make_rows([0.5, 0.6])]
    groups = grouped(a={"rows": rows, "own_task": True})
    _, (row,) = table_of(groups, 0.5, [parse_metric("rounds_to(test_loss, 0.45)")])
    assert row["final loss"] == "0.4 (n=1)*"
    assert row["rounds_to(test_loss, 0.45)"] == "1.5 (n=1)*"
    assert not any("rounds to" in name for name in row)
    with pytest.raises(SettingsError, match="has no column 'nothing'"):
        table_of(groups, None, [parse_metric("final(nothing)")])


def test_a_run_before_its_first_round_has_no_values(grouped):
    _, (row,) = table_of(grouped(a={}))
    assert row["rounds"] == "0 of 5, 1 interrupted"
    assert row["time [s]"] == "- (0/1, 1 without a value so far)"


FIRST = {**dict.fromkeys((FORMULA, *COMPONENTS), 1), STAGES: {}, DOWN_STAGES: {}}
LATER = {
    "formula": {**FIRST, FORMULA: 2},
    "mean": {**FIRST, "revision of the aggregation": 2},
    "stage": {**FIRST, STAGES: {"clip": 1, "topk": 3}},
}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (
            (FIRST, FIRST, LATER["formula"], None),
            {"of revision 1": "ab", "of revision 2": "c", "of revision unknown": "d"},
        ),
        (
            (LATER["mean"], FIRST, LATER["stage"], FIRST),
            {
                "of revision 1": "bd",
                "of revision 1, revision of the aggregation 2": "a",
                "of revision 1, revisions of the channel's stages topk 3": "c",
            },
        ),
        ((FIRST, FIRST, None, FIRST), {"": "abcd"}),
        ((None, None, None, None), {"": "abcd"}),
    ],
)
def test_runs_by_another_formula_are_apart(write_run, monkeypatch, known, expected):
    """One that failed before its first checkpoint is of the formula of the others."""
    revisions = dict(zip("abcd", known, strict=True))
    records = [read_run(write_run(name, seed=i)) for i, name in enumerate(revisions)]
    with_revisions(monkeypatch, revisions)
    found = {g.label: "".join(r.path.name for r in g.records) for g in group_runs(records)}
    assert found == {
        f"fedavg, formula {label}" if label else "fedavg": names
        for label, names in expected.items()
    }


def with_revisions(monkeypatch, revisions) -> None:
    """Have the runs of these names sealed these revisions."""
    sealed = property(lambda record: revisions[record.path.name])
    monkeypatch.setattr("raysim.results.runs.RunRecord.revisions", sealed)


def test_revisions_of_a_component_are_told_apart_under_equal_settings_of_it(write_run, monkeypatch):
    """A mean's under two ways to weigh are not one origin."""
    rows = make_rows([0.5] * 5)
    with_revisions(monkeypatch, {"a": FIRST, "b": LATER["mean"], "c": LATER["mean"]})
    paths = [write_run("a", rows), write_run("b", rows, seed=1)]
    other = write_run("c", rows, **{"aggregation.weighting": "fixed"})
    for told, each in ((True, paths), (False, [paths[0], other])):
        notes = comparison(group_runs([read_run(path) for path in each]), ()).notes
        found = [n for n in notes if n.startswith("revision of the aggregation: differs among")]
        assert len(found) == told


def test_the_order_of_recorded_fields_does_not_tell_formulas_apart(write_run, monkeypatch):
    paths = [write_run(name, seed=i) for i, name in enumerate("ab")]
    file = paths[1] / "config.json"
    file.write_text(json.dumps(dict(reversed(json.loads(file.read_text()).items()))))
    with_revisions(monkeypatch, {"a": LATER["formula"], "b": None})
    assert [g.label for g in group_runs([read_run(path) for path in paths])] == ["fedavg"]


def test_a_finished_run_without_checkpoints_is_of_an_unknown_formula(write_run, monkeypatch):
    rows = make_rows([0.5] * 5)
    records = [read_run(write_run(name, rows, seed=i)) for i, name in enumerate("ab")]
    with_revisions(monkeypatch, {"a": FIRST, "b": None})
    groups = group_runs(records)
    labels = [f"fedavg, formula of revision {known}" for known in ("1", "unknown")]
    assert [group.label for group in groups] == labels
    (note,) = (n for n in comparison(groups, ()).notes if "differs among" in n)
    assert note == (
        "revision of the method's formula fedavg: differs among the runs: 1 in"
        f" {records[0].path}; unknown in {records[1].path}"
    )


def test_an_unfinished_run_that_was_forced_to_go_on_says_so(tmp_path, monkeypatch):
    for number in (2, 3):
        go_on = (
            partial(raysim.resume, tmp_path, force=True)
            if number == 3
            else partial(raysim.run, make_settings(tmp_path))
        )
        with pytest.raises(KeyboardInterrupt):
            go_on(task=make_task(UNEQUAL), listener=StopAfter(number))
        monkeypatch.setattr(FedAvg, "revision", 9)
    (note,) = read_run(tmp_path).notes
    assert note.startswith(f"{tmp_path}: forced to go on after round 2: revision of the method's")
