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
    classes: ClassVar[tuple[str, ...]] = ("target", "predicted")

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row per pair of classes with samples."""
        counts = joint_counts(evaluated.targets, evaluated.predicted)  # [C, C]
        target, predicted = np.nonzero(counts)
        return {"target": target, "predicted": predicted, "samples": counts[target, predicted]}
