"""Label heat map: the samples of each client and class.

Legend: n clients, C classes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raysim.analysis.base import Analysis, Columns, MeasuredRound, Need


class LabelHeatMap(Analysis):
    """Training samples of each client and class; a function of the partition, in one round."""

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    classes: ClassVar[tuple[str, ...]] = ("label",)

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per client and class that it holds, in the first evaluated round."""
        if not evaluated.first:
            return {}
        clients, counts = evaluated.class_counts()  # [n], [n, C]
        held, labels = np.nonzero(counts)
        return {"client": clients[held], "label": labels, "samples": counts[held, labels]}
