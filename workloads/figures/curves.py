"""Figures that are curves of a table's runs: a panel for each column, a line for each row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raysim.workloads.figures.figure import Figure, FigureRun
from raysim.workloads.tables import find

ACCURACY = {"test_accuracy": "test accuracy"}
CLIENT_ACCURACY = {"client_accuracy_mean": "mean accuracy of the clients"}
MACRO_F1 = {"test_macro_f1": "test macro F1"}
TEST_LOSS = {**ACCURACY, "test_loss": "test loss"}
TRAIN_LOSS = {**ACCURACY, "train_loss": "training loss"}
TO_TARGET = "A curve ends where its run in the table does: at the target, or where it gives up."


def _table_curves(
    table: str,
    columns: str,
    reference: str,
    values: Mapping[str, str],
    note: str = "",
    /,
    **other: Any,
) -> Figure:
    """Return the curves of a table's runs.

    Args:
        table: The table.
        columns: Regular expression of the columns that are drawn.
        reference: The paper's figure.
        values: The columns of the runs that are drawn, and their names.
        note: Deviations from the paper's figure.
        other: Other fields of the figure.
    """
    source = find(table)
    cells = [cell for cell in source.cells if re.search(columns, cell.column)]
    names = [*values.values()]
    fields: dict[str, Any] = {
        "title": " and ".join(names).capitalize(),
        "table": "metrics",
        "axis": "" if len(names) > 1 else names[0],
        "options": {"apart": names} if len(names) > 1 else {},
    }
    return Figure(
        paper=source.paper,
        reference=reference,
        preset=cells[0].preset,
        runs=tuple(
            FigureRun(
                cell.row, cell.settings, cell.preset, panel=cell.column.removesuffix(" accuracy")
            )
            for cell in cells
        ),
        draw="curves",
        values=tuple(values),
        note=note,
        **{**fields, **other},
    )


def _information(table: str, columns: str, reference: str) -> Figure:
    """Return a part of MIFL's figure 6."""
    return _table_curves(
        table,
        columns,
        reference,
        {"test": "test samples", "train": "training samples"},
        TO_TARGET,
        title="Mutual information of labels and predicted classes",
        table="label_information",
        axis="mutual information [nats]",
    )


MIFL_4 = {
    "a": ("mifl-2a", "^2nn iid .*B=inf"),
    "b": ("mifl-2a", "^2nn noniid .*B=10"),
    "c": ("mifl-2b", "^cnn noniid .*B=inf"),
    "d": ("mifl-3", "^cnn mnist iid"),
    "e": ("mifl-3", "^cnn mnist noniid"),
    "f": ("mifl-3", "^3nn mimic3"),
}
"""Per part of MIFL's figures 4 and 5, the table and its columns."""
NO_LIST = "The paper does not say which of table 3's E and B it draws; all are drawn."

CURVES = {
    "fedmax-4": _table_curves("fedmax-1", "T=3000$", "figure 4", ACCURACY),
    "fedmax-5": _table_curves("fedmax-1", "T=600$", "figure 5", ACCURACY),
    "fedmax-6": _table_curves("fedmax-2", "", "figure 6", MACRO_F1),
    "dnc-8": _table_curves(
        "dnc-1",
        "95-5$",
        "figure 8",
        ACCURACY,
        "The paper draws the accuracy on training samples. A round of FedMA is a pass over nine"
        " layers, nine rounds of the paper.",
    ),
    "fedfusion-5": _table_curves("fedfusion-1", "", "figure 5", ACCURACY),
    "flexchill-4": _table_curves("flexchill-1", "accuracy$", "figure 4", CLIENT_ACCURACY),
    "flexchill-9": _table_curves("flexchill-c", "accuracy$", "figure 9", TEST_LOSS),
    **{
        f"flexchill-{number}": _table_curves(
            "flexchill-d", f"^{name}=", f"figure {number}", TEST_LOSS
        )
        for number, name in ((10, "B"), (11, "m"), (12, "E"), (13, "alpha"))
    },
    **{
        f"mifl-4{part}": _table_curves(
            *(table, columns, f"figures 4{part} and 5{part}", TRAIN_LOSS),
            f"{NO_LIST} {TO_TARGET}" if table == "mifl-3" else TO_TARGET,
        )
        for part, (table, columns) in MIFL_4.items()
    },
    "mifl-6a": _information("mifl-2a", MIFL_4["a"][1], "figures 6a and 6b"),
    "mifl-6c": _information("mifl-3", MIFL_4["e"][1], "figures 6c and 6d"),
    "mifl-6e": _information("mifl-3", MIFL_4["f"][1], "figures 6e and 6f"),
    "mifl-8": _table_curves("mifl-4", "(80%|imagenet.*70%)$", "figure 8", TRAIN_LOSS, TO_TARGET),
    "mifl-9": _table_curves(
        "mifl-5",
        "^cnn mnist noniid",
        "figure 9",
        TRAIN_LOSS,
        f"A round of FMA is a pass over all layers. {TO_TARGET}",
    ),
    "mifl-10": _table_curves("mifl-6b", "^cnn mnist noniid", "figure 10", TRAIN_LOSS, TO_TARGET),
}
