"""Plans of tables: what options and overrides are refused, and why."""

from __future__ import annotations

import json

import pytest

from raysim.errors import SettingsError
from raysim.tuning.tables.plan import make_plan
from raysim.user_input import dotted, override_text
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import NAME, make_table


def test_a_table_is_shortened_and_not_extended(table, slots):
    long, short = ("--only", "fedavg,long"), ("--only", "fedavg,short")
    for words, most in ((long, 4), (short, 2), ((), 4)):
        for option in ((), ("--dry-run",)):
            assert table(*words, "--rounds", "5", *option) == (
                2,
                "",
                f"raysim: --rounds=5: must be at most {most}, the rounds of the longest run of"
                " blobs-1 in these columns; it shortens and does not extend\n",
            )
    assert slots.started == []
    code, said, _ = table(*long, "--rounds", "4", "--seeds", "1")  # those of the table
    assert code == 0 and "rounds." not in said.replace("over the rounds.", "")


def test_columns_of_fewer_rounds_keep_them():
    """Of D&C' and the others in one column those of the longest count, chosen or not."""
    only = ["cifar10 K=5,FedAvg"]
    (cell,) = make_plan(TABLES["dnc-2"], only, rounds=36).chosen
    assert cell.run.settings.rounds == cell.full_rounds == 18
    with pytest.raises(SettingsError, match=r"^--rounds=37: must be at most 36, the rounds of "):
        make_plan(TABLES["dnc-2"], only, rounds=37)


def test_the_folder_of_a_figure_or_a_study_is_refused(table, slots, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for file, values, held in (
        ("figure.json", {"figure": NAME}, f"figure {NAME}"),
        ("study.json", {"name": NAME, "folder": "1"}, "a study"),
    ):
        (out / file).write_text(json.dumps({"schema": 1, **values}))
        for words in ((), ("--dry-run",)):
            _, _, err = table("--only", "short", *words)
            assert err == f"raysim: out=out: holds {held}; choose another --out\n"
        (out / file).unlink()
    assert slots.started == [] and not (out / "table.json").exists()


def test_a_file_is_for_raysim_sweep(table):
    assert table(name="my.toml")[2] == "raysim: my.toml: a file is run by raysim sweep\n"


ROWS_REFUSE = {
    ("flexchill-1", "cifar10", "local.temperature"): 1,
    ("flexchill-1", "cifar10,T=4", "local.temperature"): 1.0,
    ("flexchill-1", "cifar10,T=4", "local"): {"temperature": 1.0},
    ("mifl-6a", "MIFL,2nn,iid,E=1", "method.name"): "fedprox",
    ("mifl-6a", "MIFL,2nn,iid,E=1", "method"): {"name": "fedprox"},
    ("mifl-6a", "MIFL,2nn,iid,E=1", "method.update"): False,
    ("fedfusion-2", "Multi", "method.operator"): "conv",
    ("flexchill-8", "T=4", "partition.name"): "iid",
    ("mifl-5", "E=1", "fraction"): 0.5,
}


@pytest.mark.parametrize(("name", "only", "key"), ROWS_REFUSE)
def test_what_makes_the_rows_is_not_overridden(name, only, key):
    value = ROWS_REFUSE[name, only, key]
    with pytest.raises(SettingsError) as refused:
        make_plan(TABLES[name], only=(only,), overrides={key: value})
    line = f"{override_text(key, value)}: follows from the rows; leave it out"
    assert str(refused.value) == line


CHAINS = {
    " ".join(names): {"method.name": "chain", **{f"method.methods.{name}": {} for name in names}}
    for names in (("fedprox", "momentum"), ("momentum", "fedprox"))
}


def test_rows_of_chains_in_another_order_are_not_overridden_by_one_chain(tmp_path):
    table = make_table(tmp_path, CHAINS)
    overrides = {"method.methods": {"momentum": {}, "fedprox": {}}}
    with pytest.raises(SettingsError, match=r"^'method.methods=.* follows from the rows; leave it"):
        make_plan(table, overrides=overrides)
    runs = make_plan(table, overrides={"method.methods.fedprox.mu": 0.5}).first_runs
    assert len(runs) == len({run.name for run in runs}) == 4


def test_a_folder_of_a_chain_is_refused_to_one_in_another_order(
    table, slots, tmp_path, monkeypatch
):
    first, other = CHAINS.values()
    words = ("--only", "short", "--seeds", "1")
    for row, refused in ((first, False), (first, False), (other, True)):
        monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, {"chain": row}))
        code, _, err = table(*words)
        assert code == (2 if refused else 0), err
    assert err == (
        "raysim: out=out: chain, IID, short: has runs with method.methods=fedprox, momentum (here"
        " momentum, fedprox); choose another --out\n"
    )
    assert len(slots.started) == 1


@pytest.mark.parametrize(
    ("name", "only", "key", "value"),
    [
        ("mifl-5", "FSVRG", "method.step", "constant"),
        ("mifl-5", "MFA", "method.gamma", 0.5),  # FMA's gamma is another
        ("fedmax-1", "FedProx", "method.mu", 0.1),
        ("flexchill-1", "cifar10", "method.name", "fedprox"),  # that of all rows
        ("mifl-6a", "2nn", "local.lr", 0.2),
        ("dnc-2", "K=5", "local.epochs", 1),  # FedMA's preset has others
    ],
)
def test_settings_that_make_no_row_are_overridden(name, only, key, value):
    plan = make_plan(TABLES[name], only=(only,), overrides={key: value})
    chosen = [cell for cell in plan.cells if cell.chosen]
    assert chosen
    for cell in chosen:
        assert dotted(cell.run.settings.to_dict())[key] == value
