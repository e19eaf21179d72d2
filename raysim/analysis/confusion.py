"""Confusion matrix: the test samples of each class by the class that is predicted.

Legend: N samples, C classes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raysim.analysis.base import Analysis, Columns, MeasuredRound, Need
from raysim.analysis.formulas import joint_counts


class Confusion(Analysis):
    """Test samples of each class by the class that the global model predicts."""

    needs: ClassVar[tuple[Need, ...]] = ("classes", "predicted_classes")

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per pair of classes with samples, with their names if they have any."""
        counts = joint_counts(evaluated.targets, evaluated.predicted)  # [C, C]
        target, predicted = np.nonzero(counts)
        columns = {"target": target, "predicted": predicted, "samples": counts[target, predicted]}
        if not evaluated.labels:
            return columns
        labels = np.array(evaluated.labels)
        names = {"target_name": labels[target], "predicted_name": labels[predicted]}
        return {**columns, **names}
