"""TensorBoard tags of columns: `GROUP/NAME`, so that TensorBoard shows each group by itself.

Evaluations have a group for each set of samples and model, such as `test` or `personal_holdout`.
Other columns have the tag that they declare, in `train`, `bytes`, `clients`, `seconds` or
`virtual`, or are in the group `method`.
"""

from __future__ import annotations

from collections.abc import Iterable

from raysim.api.columns import Column

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
"""Charts of TensorBoard's tab Custom Scalars by category, in the order of the tab."""


def tag_of(column: Column) -> str:
    """Return the tag of a column of `metrics.parquet`."""
    scored = column.scored
    if scored and (scored.score or scored.spread):
        return f"{scored.set}/{'_'.join(filter(None, (scored.score, scored.spread)))}"
    return column.tag or f"method/{column.name}"


def charts_of(columns: Iterable[Column]) -> dict[str, dict[str, list[str]]]:
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
