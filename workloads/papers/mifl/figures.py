"""Figures of MIFL.

Supplement C, which is not available, has further plots. `mifl-c4`, `mifl-c5` and `mifl-c6` draw
what figures 8 to 10 leave out of their tables, as the text describes C.4, C.5 and C.6. C.1 and C.2
(accuracies and losses) and C.3 (mutual information) are of runs of tables 2 and 3 that the paper
does not name: `raysim report` draws the curves of all runs of a table, and a table that is run
with `analysis=label_information` has their mutual information.
"""

from __future__ import annotations

from raysim.workloads.papers.curves import ACCURACY, table_curves
from raysim.workloads.papers.figure import HEAT_MAP, Figure, FigureRun
from raysim.workloads.papers.mifl.presets import MIFL

TRAIN_LOSS = {**ACCURACY, "train_loss": "training loss"}
BEST = "The paper draws the best accuracy so far; here it is the accuracy of each round."
TO_TARGET = "A curve ends where its run in the table does: at the target, or where it gives up."
PASSES = "A round of FMA is a pass over all layers."
LAST_TARGETS = "(80%|imagenet.*70%)$"
"""Columns of table 4 whose runs end at the last of their targets."""
PARTS = {
    "a": ("mifl-2a", "^2nn iid .*B=inf"),
    "b": ("mifl-2a", "^2nn noniid .*B=10"),
    "c": ("mifl-2b", "^cnn noniid .*B=inf"),
    "d": ("mifl-3", "^cnn mnist iid"),
    "e": ("mifl-3", "^cnn mnist noniid"),
    "f": ("mifl-3", "^3nn mimic3"),
}
"""Per part of MIFL's figures 4 and 5, the table and its columns."""
SUPPLEMENT = "The supplement is not available: drawn is what the paper's figure leaves out."
NO_LIST = "The paper does not say which of table 3's E and B it draws; all are drawn."


def _progress(table: str, columns: str, reference: str, *notes: str) -> Figure:
    """Return accuracies and training losses of a table's runs."""
    return table_curves(table, columns, reference, TRAIN_LOSS, " ".join([*notes, BEST, TO_TARGET]))


def _information(table: str, columns: str, reference: str, note: str = "") -> Figure:
    """Return a part of MIFL's figure 6, or a figure like it."""
    return table_curves(
        table,
        columns,
        reference,
        {"test": "test samples", "train": "training samples"},
        f"{note}{TO_TARGET}",
        title="Mutual information of labels and predicted classes",
        table="label_information",
        axis="mutual information [nats]",
    )


FIGURES = {
    "mifl-3": Figure(
        "Samples of each client and class",
        MIFL,
        "figure 3",
        "mifl-mnist-2nn-iid",
        (FigureRun("IID"), FigureRun("non-IID", preset="mifl-mnist-2nn-noniid")),
        **HEAT_MAP,
    ),
    **{
        f"mifl-4{part}": _progress(
            *(table, columns, f"figures 4{part} and 5{part}"),
            *([NO_LIST] if table == "mifl-3" else []),
        )
        for part, (table, columns) in PARTS.items()
    },
    "mifl-6a": _information("mifl-2a", PARTS["a"][1], "figures 6a and 6b"),
    "mifl-6c": _information("mifl-3", PARTS["e"][1], "figures 6c and 6d"),
    "mifl-6e": _information("mifl-3", PARTS["f"][1], "figures 6e and 6f"),
    "mifl-7": Figure(
        "Mutual information of each client's trained model and the one it received",
        MIFL,
        "figure 7",
        "mifl-mnist-cnn-iid",
        (
            FigureRun("IID, B=600", {"local.batch_size": 600}),
            FigureRun("non-IID, B=10", preset="mifl-mnist-cnn-noniid"),
        ),
        "scatter",
        "client_information",
        ("information",),
        "mutual information [nats]",
        {"target_accuracy": None, "rounds": 100},
    ),
    "mifl-8": _progress("mifl-4", LAST_TARGETS, "figure 8"),
    "mifl-9": _progress("mifl-5", "^cnn mnist noniid", "figure 9", PASSES),
    "mifl-10": _progress("mifl-6b", "^cnn mnist noniid", "figure 10"),
    "mifl-c4": _information("mifl-4", LAST_TARGETS, "supplement C.4", f"{SUPPLEMENT} "),
    "mifl-c5": _progress("mifl-5", "^(cnn mnist iid|3nn)", "supplement C.5", SUPPLEMENT, PASSES),
    "mifl-c6a": _progress("mifl-6a", "", "supplement C.6", SUPPLEMENT),
    "mifl-c6b": _progress("mifl-6b", "^cnn (mnist iid|cifar10)", "supplement C.6", SUPPLEMENT),
}
