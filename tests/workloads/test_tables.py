"""Tables of the papers: counts, figures read in the papers, settings of the cells."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from raysim import Settings
from raysim.errors import SettingsError
from raysim.results.metrics import parse_metric
from raysim.tuning.tables.plan import make_plan
from raysim.tuning.tables.searches import read_tune, to_search
from raysim.user_input import dotted
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.papers.preset import ORIGINS
from raysim.workloads.tables import TABLES, PaperCell, find

OF_PAPERS = {name: table for name, table in TABLES.items() if table.paper}
CELLS = [(table, cell) for table in OF_PAPERS.values() for cell in table.cells]

# By hand, from the papers' texts.
PUBLISHED = {
    "fedmax-1": 36,  # 3 methods, 3 datasets, 2 schedules, 2 partitions
    "fedmax-2": 8,
    "fedmax-mu": 8,
    "fedmax-sharing": 0,
    "fedmax-fig2": 0,
    "dnc-1": 12,
    "dnc-2": 10,
    "dnc-3": 4,
    "fedmmd-fig4": 4,
    "fedfusion-1": 16,
    "fedfusion-2": 8,
    "fedfusion-fig6": 4,
    "flexchill-1": 54,  # 6 temperatures, 3 datasets, 3 figures
    "flexchill-2": 36,
    "flexchill-8": 35,  # 6 temperatures and the reference, accuracy and 4 layers
    "flexchill-c": 0,
    "flexchill-d": 0,
    "mifl-2a": 40,
    "mifl-2b": 80,
    "mifl-3": 54,
    "mifl-4": 24,
    "mifl-5": 30,
    "mifl-6a": 36,
    "mifl-6b": 36,
    "mifl-choices": 0,
    "pfllib-1": 52,  # 13 of 18 methods, 2 datasets, 2 splits
}
FIGURES = {
    "pfllib-1": {
        ("FedAvg", "fmnist practical"): (85.85, 0.19),
        ("FedDBE", "cifar100 pathological"): (73.38, 0.18),
    },
    "fedmax-1": {
        ("FedMAX", "cifar10 noniid T=3000"): (73.10, 1.20),
        ("FedAvg", "cifar100 iid T=600"): (32.67, 0.39),
        ("FedProx", "femnist noniid T=600"): (92.09, 0.08),
    },
    "fedmax-2": {
        ("FedMAX", "aptos iid"): (0.3451, 0.0062),
        ("FedAvg", "chest-xray noniid"): (0.7094, 0.0338),
    },
    "fedmax-mu": {
        ("mu=1", "cifar100 noniid T=3000"): (41.99, 0.58),
        ("mu=1", "cifar10 iid T=600"): (75.91, 1.09),
    },
    "dnc-1": {("FedProx", "cifar10 skew 75-25"): 74.6, ("FedMA", "cifar10 skew 95-5"): 81.0},
    "dnc-2": {("D&C'", "cifar10 K=10"): 82.2, ("FedAvg", "cifar10 K=5"): 88.5},
    "dnc-3": {("FedMA", "shakespeare K=66"): 47.4, ("D&C", "shakespeare K=66"): 49.6},
    "fedmmd-fig4": {
        ("FedMMD", "cifar10 binary noniid"): 260,
        ("FedAvg", "mnist shards noniid"): 128,
    },
    "fedfusion-1": {
        ("FedFusion+Conv", "(c) mnist permuted"): 95.79,
        ("FedFusion+Multi", "(a) mnist binary noniid"): 90.51,
        ("FedAvg", "(d) cifar10 iid"): 80.01,
    },
    "fedfusion-2": {
        ("FedFusion+Multi", "mnist permuted 94%"): 78,
        ("FedFusion+Conv", "mnist permuted 95%"): 92,
    },
    "fedfusion-fig6": {
        ("FedFusion+Conv", "mnist permuted"): 65.2,
        ("FedAvg", "mnist permuted"): 92.3,
    },
    "flexchill-1": {
        ("T=0.05", "cifar10 accuracy"): 44.71,
        ("T=2", "femnist rounds"): 205,
        ("T=0.25", "cifar100 training loss"): 2.997,
    },
    "flexchill-2": {
        ("T=0.5", "federated iid accuracy"): 53.19,
        ("T=4", "centralised training loss"): 1.152,
    },
    "flexchill-8": {
        ("T=0.05", "cka layer 2"): 0.9059,
        ("reference (T=1, iid)", "accuracy"): 73.86,
    },
    "mifl-2a": {
        ("FA", "2nn noniid E=1 B=inf C=0.0"): 4387,
        ("MIFL", "2nn iid E=1 B=10 C=0.2"): 39,
    },
    "mifl-2b": {
        ("MIFL", "cnn noniid E=5 B=10 C=0.5"): 129,
        ("FA", "2nn noniid E=5 B=10 C=0.1"): 134,
        ("FA", "cnn iid E=5 B=inf C=0.0"): 258,
    },
    "mifl-3": {
        ("MIFL", "cnn mnist noniid E=20 B=inf"): 229,
        ("FA", "3nn mimic3 noniid E=5 B=50"): 79,
    },
    "mifl-4": {
        ("FA", "resnet50 imagenet B=64 65%"): 68,
        ("MIFL", "cnn cifar10 B=inf 75%"): 187,
    },
    "mifl-5": {
        ("MFA", "cnn mnist iid E=5 B=50"): 23,
        ("FSVRG", "3nn mimic3 noniid E=1 B=50"): 89,
        ("FMA", "cnn mnist noniid E=5 B=50"): 194,
    },
    "mifl-6a": {
        ("MIFL-Aggregation", "2nn mnist noniid E=5 B=10"): 118,
        ("MIFL-Update", "3nn mimic3 noniid E=1 B=50"): 75,
    },
    "mifl-6b": {
        ("FA", "cnn cifar10 iid E=1 B=50"): 546,
        ("MIFL", "cnn mnist iid E=5 B=10"): 7,
    },
}
OBTAINABLE = {"mnist", "fashion-mnist", "cifar10", "shakespeare", "synthetic"}
METRIC = re.compile(
    r"(final|last_ten|best)\((?P<column>\w+)\)"
    r"|rounds_to\((?P<target_column>\w+), (?P<target>0\.\d+)\)"
    r"|analysis\(\w+, \w+\)"
)


@pytest.fixture(scope="module")
def resolved() -> dict[int, Settings]:
    """Return the settings of every cell, by its number in CELLS; equal ones are resolved once."""
    keys = [(cell.preset, repr(cell.settings)) for _, cell in CELLS]
    distinct = dict(zip(keys, (cell for _, cell in CELLS), strict=True))
    known = {key: cell.resolve() for key, cell in distinct.items()}
    return {number: known[key] for number, key in enumerate(keys)}


def cell_of(name: str, row: str, column: str) -> PaperCell:
    return TABLES[name].cell(row, column)


def settings_of(name: str, row: str, column: str) -> dict[str, object]:
    return dotted(cell_of(name, row, column).resolve().to_dict())


def test_published_cells_of_each_table():
    counts = {name: sum(cell.is_published for cell in t.cells) for name, t in OF_PAPERS.items()}
    assert counts == PUBLISHED
    assert sum(counts.values()) == 587


def test_cells_on_obtainable_data_and_those_that_need_files_or_code(resolved, tmp_path):
    missing: Counter[str] = Counter()
    analyses: Counter[str] = Counter()
    obtainable = 0
    for number, (table, cell) in enumerate(CELLS):
        dataset = resolved[number].dataset
        lacking = missing_files(dataset, tmp_path)
        assert bool(lacking) == (dataset.title not in OBTAINABLE)
        if cell.is_published:
            missing[table.paper.name] += bool(lacking)
            analysis = parse_metric(table.metric_of(cell)).analysis
            analyses[analysis] += 1
            obtainable += not lacking and not analysis
    assert +missing == {"FedMAX": 36, "FLex&Chill": 36, "MIFL": 52, "PFLlib": 26}
    assert analyses == {"": 555, "cka": 28, "new_client": 4}
    assert obtainable == 405


@pytest.mark.parametrize("name", FIGURES)
def test_figures_as_the_papers_print_them(name):
    for (row, column), expected in FIGURES[name].items():
        cell = cell_of(name, row, column)
        value, deviation = expected if isinstance(expected, tuple) else (expected, None)
        assert (cell.published, cell.published_deviation) == (value, deviation), (row, column)


def test_all_tables_with_figures_are_compared_with_the_paper():
    assert set(FIGURES) == {name for name, count in PUBLISHED.items() if count}
    assert min(map(len, FIGURES.values())) >= 2


def test_suspect_figures_say_why():
    suspects = Counter(
        (table.name, cell.suspect) for table, cell in CELLS if cell.suspect and cell.is_published
    )
    assert {(name, count) for (name, _), count in suspects.items()} == {
        ("fedmax-1", 6),  # FEMNIST*'s IID columns
        ("fedmmd-fig4", 2),
        ("fedfusion-fig6", 4),
        ("flexchill-1", 1),  # twice
        ("flexchill-1", 18),  # losses
        ("flexchill-2", 18),
        ("mifl-2b", 1),
        ("mifl-4", 4),  # CIFAR-10's 80%
        ("mifl-5", 6),  # FSVRG
        ("mifl-6b", 12),
        ("pfllib-1", 4),  # pFedMe
    }
    for row in TABLES["fedmax-1"].rows:
        for schedule in ("T=3000", "T=600"):
            same, other = (
                cell_of("fedmax-1", row, f"femnist {split} {schedule}")
                for split in ("iid", "noniid")
            )
            assert (same.published, same.published_deviation) == (
                other.published,
                other.published_deviation,
            )
            assert "the authors' code" in same.suspect and not other.suspect


def test_every_cell_resolves_and_every_override_has_an_origin(resolved):
    assert len(resolved) == len(CELLS)
    for number, (table, cell) in enumerate(CELLS):
        values = dotted(resolved[number].to_dict())
        assert {key: values[key] for key in cell.settings} == cell.settings, cell
        assert cell.origins.keys() == cell.settings.keys(), cell
        assert set(cell.origins.values()) <= ORIGINS.keys(), table.name


def test_metrics_are_columns_of_the_cells_runs_and_targets_can_be_reached(resolved):
    for number, (table, cell) in enumerate(CELLS):
        settings, metric = resolved[number], METRIC.fullmatch(table.metric_of(cell))
        assert metric, cell
        column = metric["column"] or metric["target_column"]
        if column == "client_accuracy_mean":
            assert settings.evaluation.clients, cell
        elif column and "local_test_" in column:
            assert settings.evaluation.local_test, cell
            assert settings.evaluation.finetune_epochs or not column.startswith("finetuned_"), cell
        elif column:
            scores = {"loss", *settings.dataset.scoring.metrics}
            score = column.removeprefix("test_").removesuffix("_at_temperature")
            assert score in {*scores, "train_loss"}, cell
        if metric["target"]:  # a run must neither stop nor give up before it
            assert (settings.target_accuracy or 1) >= float(metric["target"]), cell
            assert cell.published is None or settings.rounds >= cell.published, cell
        elif column:
            assert settings.target_accuracy is None, cell


OWN = {
    "adapters-1": {
        "trained": ("head", "LoRA 4", "LoRA 8", "LoRA 16", "FFA-LoRA 8", "all weights"),
        "others": ("LoRA 8, local", "LoRA 8, centralised"),
        "steps": (15, 4, 4),
    },
    "adapters-2": {
        "trained": ("FedIT", "FFA-LoRA", "FedSA-LoRA", "RoLoRA", "FlexLoRA", "HetLoRA"),
        "others": ("FLoRA", "FedEx-LoRA", "FedDPA", "local"),
        "steps": (4, 4, 2),
    },
    "adapters-privacy": {"trained": ("FedIT", "FFA-LoRA"), "others": (), "steps": (15, 10, 2)},
}
"""Rows of tables that no paper prints, and their rounds, clients of a round and steps of each."""


@pytest.mark.parametrize("name", OWN)
def test_tables_of_adapters_have_runs_of_one_budget_and_searches_on_held_out_samples(name):
    table, expected = make_plan(TABLES[name]), OWN[name]
    assert table.paper is None and table.rows == (*expected["trained"], *expected["others"])
    assert all(all(cell.origins.values()) for cell in table.cells)
    settings = [cell.run.settings for cell in table.cells]
    assert {(s.rounds, s.cohort_size, s.local.steps) for s in settings} == {expected["steps"]}
    tune = read_tune(table.tune)
    for search in to_search(table, tune):
        trial = search.study.settings
        assert trial.rounds == (tune.rounds or trial.rounds) <= expected["steps"][0]
        assert trial.evaluation.holdout == 0.1 and not trial.evaluation.test
    notes = " ".join(table.notes)
    assert ("Hypothetical" in notes) is (name == "adapters-privacy")
    assert ("dequantised Q4_1" in notes) is (name == "adapters-2")


def test_analyses_compare_with_the_run_of_the_reference_row():
    plan = make_plan(TABLES["flexchill-8"])
    runs = {cell.row: cell.run for cell in plan.cells}
    reference = runs.pop("reference (T=1, iid)")
    assert (reference.settings.analysis, reference.reference) == ((), None)
    for run in runs.values():
        assert (run.settings.analysis, run.reference) == (("cka",), reference)
    assert len({run.name for run in (*runs.values(), reference)}) == 12
    joining = make_plan(TABLES["fedfusion-fig6"])
    assert {cell.run.settings.analysis for cell in joining.cells} == {("new_client",)}


def test_ratios_are_those_that_the_papers_print():
    """Of rounds, in tables and figures that print speedups or reductions."""
    baselines = {name: table.baseline for name, table in TABLES.items() if table.baseline}
    mifl = {name: "FA" for name in TABLES if name.startswith("mifl-") and PUBLISHED[name]}
    fedavg = {"fedmmd-fig4": "FedAvg", "fedfusion-2": "FedAvg"}
    assert baselines == {**mifl, **fedavg, "flexchill-1": "T=1"}
    for name in baselines:
        metrics = TABLES[name].metrics
        assert any(metric.startswith("rounds_to(") for metric in metrics), name
    # FLex&Chill prints 0.44 and 6.00 times beside FEMNIST's rounds, and differences of accuracies.
    table = TABLES["flexchill-1"]
    ratios = {column: table.published_ratio("T=0.05", column) for column in table.columns}
    assert {column for column, ratio in ratios.items() if ratio} == {
        "femnist rounds",
        "cifar10 rounds",
        "cifar100 rounds",
    }
    assert ratios["femnist rounds"] == 6.0
    assert table.published_ratio("T=4", "femnist rounds") == pytest.approx(0.44, abs=0.005)


def test_figures_in_per_cent_are_accuracies():
    for table, cell in CELLS:
        is_accuracy = (
            re.match(r"(final|last_ten|best)\(\w+_accuracy", table.metric_of(cell)) is not None
        )
        assert (table.unit_of(cell) == "%") == is_accuracy, cell
        if cell.published is not None and table.metric_of(cell).startswith("final"):
            assert (cell.published > 15) == is_accuracy, cell


def test_settings_of_methods():
    prox = settings_of("fedmax-1", "FedProx", "cifar10 noniid T=600")
    assert (prox["method.name"], prox["method.mu"], prox["method.reduction"]) == (
        "fedprox",
        1.0,
        "mean",
    )
    assert (prox["rounds"], prox["local.epochs"]) == (600, 5)
    matched = settings_of("dnc-2", "FedMA", "cifar10 K=10")
    assert (matched["method.name"], matched["clients"], matched["rounds"]) == ("fedma", 10, 2)
    assert settings_of("dnc-2", "D&C'", "cifar10 K=5")["rounds"] == 36
    halves = {
        row: settings_of("mifl-6a", row, "2nn mnist iid E=1 B=50") for row in TABLES["mifl-6a"].rows
    }
    assert halves["FA"]["method.name"] == "fedavg"
    assert {row: (s["method.update"], s["method.aggregation"]) for row, s in halves.items()
            if row != "FA"} == {
        "MIFL-Update": (True, False),
        "MIFL-Aggregation": (False, True),
        "MIFL": (True, True),
    }  # fmt: skip
    assert settings_of("mifl-5", "FSVRG", "cnn mnist iid E=1 B=50")["fraction"] == 1
    for row in ("FedAvg", "FedMMD"):
        assert settings_of("fedmmd-fig4", row, "cifar10 binary noniid")["model.dropout"] == 0


def test_settings_of_columns():
    one = cell_of("mifl-2a", "FA", "2nn iid E=1 B=inf C=0.0").resolve()
    assert (one.cohort_size, one.local.batch_size, one.local.epochs) == (1, "full", 1)
    assert cell_of("flexchill-d", "T=4", "m=15").resolve().cohort_size == 15
    reference = settings_of("flexchill-8", "reference (T=1, iid)", "cka layer 1")
    assert (reference["partition.name"], reference["local.temperature"]) == ("iid", 1.0)
    assert "partition.alpha" not in reference
    assert settings_of("dnc-1", "FedAvg", "cifar10 skew 75-25")["partition.p"] == 0.75
    assert settings_of("mifl-3", "MIFL", "cnn mnist noniid E=20 B=10")["local.epochs"] == 20


def test_a_control_takes_the_first_steps_of_the_lowest_temperature():
    """FLex&Chill's T alone changes the step; a control is the same row with lr / T of T=0.05.

    Its name says T and lr, and is not chosen by `--only T=4`.
    """
    for name in ("flexchill-1", "flexchill-2", "flexchill-8", "flexchill-c", "flexchill-d"):
        table = TABLES[name]
        cells = {(cell.row, cell.column): dotted(cell.resolve().to_dict()) for cell in table.cells}
        assert sum(row.startswith("control") for row in table.rows) == 5
        for (row, column), settings in cells.items():
            assert settings["local.temperature"] <= 0.05 or not row.startswith("T=0.05")
            if not row.startswith("control"):
                continue
            temperature, lr = settings["local.temperature"], settings["local.lr"]
            assert row == f"control of {temperature:g} at lr={lr:g}"
            lowest, own = cells["T=0.05", column], cells[f"T={temperature:g}", column]
            rates = [each["local.lr"] / each["local.temperature"] for each in (settings, lowest)]
            assert rates[0] == pytest.approx(rates[1])
            assert {**settings, "local.lr": own["local.lr"]} == own


def test_figures_of_one_run_have_its_settings():
    first = [settings_of("flexchill-1", "T=1", f"cifar10 {name}") for name in
             ("accuracy", "loss", "rounds")]  # fmt: skip
    other = settings_of("flexchill-2", "T=1", "federated noniid accuracy")
    assert first == [other] * 3
    assert settings_of("fedfusion-2", "FedAvg", "mnist permuted 94%") == settings_of(
        "fedfusion-2", "FedAvg", "mnist permuted 95%"
    )


def test_overrides_come_after_the_cell_s():
    cell = cell_of("mifl-6a", "MIFL", "2nn mnist iid E=5 B=10")
    assert cell.resolve({"rounds": 30, "local.epochs": 2}).local.epochs == 2
    with pytest.raises(SettingsError, match="rounds=0"):
        cell.resolve({"rounds": 0})


def test_a_cell_names_the_files_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    needs = cell_of("fedmax-1", "FedAvg", "cifar100 iid T=600").missing
    assert f"{tmp_path / 'cifar100'}: train.bin, test.bin missing" in needs
    assert cell_of("fedmax-1", "FedAvg", "cifar10 iid T=600").missing == ""


def test_commands_select_by_words_of_rows_and_columns():
    words = {word for table in TABLES.values() for name in table.columns for word in name.split()}
    assert {"2nn", "cnn", "cifar10", "mnist", "iid", "noniid", "B=10", "C=0.1", "E=5"} <= words


def test_unknown_tables():
    with pytest.raises(SettingsError, match=r"^mifl-6: no such table; did you mean 'mifl-6b'\?$"):
        find("mifl-6")
