"""TensorBoard tags of columns: `GROUP/NAME`, so that TensorBoard shows each group by itself.

Groups are `test`, `holdout`, `local_test`, `client_accuracy` and those of deployed and fine-tuned
models (`personal_...`, `finetuned_...`) and of parts of the clients (`seen_...`, `unseen_...`,
`new_...`), `train`, `bytes`, `clients`, `seconds`, `virtual`, and `method` for all else.
"""

from __future__ import annotations

import re
from collections.abc import Collection

SETS = re.compile(
    r"(?P<group>(?:personal_|finetuned_)?(?:holdout|(?:seen_|unseen_|new_)?local_test)|test|train|bytes)"
    r"_(?P<name>\w+)"
)
CLIENTS = re.compile(r"(?P<group>client_accuracy)_(?P<name>mean|d[1-9])")
VIRTUAL = re.compile(r"(?P<total>total_)?virtual_(?P<name>seconds|joules)")
SECONDS = re.compile(r"(?P<name>evaluation|checkpoint|total|(?:worker|driver)_\w+)_seconds")
NAMED = {
    "objective": "train/objective",
    "lr": "train/lr",
    "bytes": "bytes/total",
    "seconds": "seconds/round",
    "clients": "clients/counted",
    "clients_dropped": "clients/dropped",
    "lost_clients": "clients/lost",
    "updates_dropped": "clients/updates_dropped",
    "staleness_mean": "clients/staleness_mean",
    "staleness_max": "clients/staleness_max",
}
CHARTS = {
    "accuracy": {
        "test set": ["test/accuracy"],
        "held-out samples": ["holdout/accuracy", "personal_holdout/accuracy"],
        "clients, mean": ["client_accuracy/mean"],
        "clients' own test samples": [
            f"{model}local_test/accuracy" for model in ("", "personal_", "finetuned_")
        ],
    },
    "loss": {"training and test set": ["train/loss", "test/loss", "holdout/loss"]},
    "bytes of a round": {"up and down": ["bytes/up", "bytes/down"]},
    "seconds of a round": {
        "measured": ["seconds/round", "seconds/evaluation", "seconds/checkpoint"],
        "virtual": ["virtual/seconds"],
    },
}
"""Charts of TensorBoard's tab Custom Scalars by category, in the order in which it shows them."""


def tag_of(column: str) -> str:
    """Return the tag of a column of `metrics.parquet`, or of a sum over its rounds."""
    if column in NAMED:
        return NAMED[column]
    if found := SETS.fullmatch(column) or CLIENTS.fullmatch(column):
        return f"{found['group']}/{found['name']}"
    if found := VIRTUAL.fullmatch(column):
        return f"virtual/{found['total'] or ''}{found['name']}"
    if found := SECONDS.fullmatch(column):
        return f"seconds/{found['name']}"
    return f"method/{column}"


def charts_of(columns: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """Return the tags of each chart of CHARTS that a run with these columns has."""
    written = {tag_of(column) for column in columns}
    present = {
        category: {
            title: shown
            for title, tags in charts.items()
            if (shown := [tag for tag in tags if tag in written])
        }
        for category, charts in CHARTS.items()
    }
    return {category: charts for category, charts in present.items() if charts}
