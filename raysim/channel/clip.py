"""Clipping: no client moves the model by more than a given norm.

Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language
Models", ICLR 2018, flat clipping.

    d <- d * min(1, norm / ||d||)        ||d|| the Euclidean norm of all differences of an upload

An upload within the norm is left as it is, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from raysim.api.channel import Stage
from raysim.api.rules import Upload, View
from raysim.numbers.tensors import clip_factor, flatten, norm


class Clip(Stage):
    """Scale a client's differences down to a norm where they exceed it.

    Bounds a client's effect on the model; the first half of differential privacy. Costs one
    pass over the upload. `update_norm` of a client in the tables is its norm before.
    """

    norm: float = Field(default=1.0, gt=0, description="largest Euclidean norm of the differences")
    bounds_norm: ClassVar[bool] = True  # differences are scaled down or left

    def send(self, view: View, upload: Upload) -> Upload:
        """Scale the differences to the norm where they exceed it."""
        length = norm(flatten(upload.sums))
        metrics, factor = {"update_norm": length}, clip_factor(length, self.norm)
        if factor == 1:
            return replace(upload, metrics=metrics)
        sums = {g: {n: d * factor for n, d in group.items()} for g, group in upload.sums.items()}
        return replace(upload, sums=sums, metrics=metrics)
