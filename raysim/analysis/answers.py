"""Answers: what the global model writes after a few prompts of the test set.

Each token is the likeliest one after those before it, without a draw. A prompt ends where the first
token counts; of texts without prompts it is the first half.

Legend: n prompts, T tokens of an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raysim.analysis.base import Analysis, Columns, MeasuredRound, Need
from raysim.api.generation import likeliest_tokens, places_of
from raysim.api.rules import Trained, View
from raysim.api.scoring import IGNORED, NO_TOKEN
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Tensors

PROMPTS = 4
"""Prompts that are answered: as many forward passes of so many rows as the longest has tokens."""
TOKENS = 32
"""Most tokens of an answer."""


class Answers(Analysis):
    """Texts that the global model writes after four prompts of the test set, of up to 32 tokens."""

    needs: ClassVar[tuple[Need, ...]] = ("language",)

    def rows(self, evaluated: MeasuredRound) -> Columns:
        """Return a row for each prompt."""
        x = evaluated.probe["x"].numpy()
        y = evaluated.probe["y"].numpy()
        right = y[:, -1] != 0 if y.shape[1] > x.shape[1] else np.ones(len(y), bool)
        x, y, ends = x[right], y[right, : x.shape[1]], evaluated.end_tokens()
        divided: dict[tuple[int, ...], Array] = {}
        for row in np.flatnonzero((y != IGNORED).any(1) & ((x != NO_TOKEN).sum(1) > 1)):
            prompt, rest = _divided(x[row], y[row], ends)
            divided.setdefault((*prompt.tolist(),), rest)
        if not divided:
            return {}
        prompts, rests = [*divided][:PROMPTS], [*divided.values()][:PROMPTS]
        asked = {"x": torch.from_numpy(_rows(prompts))}
        answered = partial(_answered, ends=ends, places=places_of(evaluated.network))
        measured = evaluated.measure(answered, evaluated.everyone[:1], {"asked": asked})
        (figures,) = measured.values()
        return {
            "prompt": np.array(evaluated.as_text(_rows(prompts))),
            "wanted": np.array(evaluated.as_text(_rows(rests))),
            "answer": np.array(evaluated.as_text(figures["tokens"].numpy())),
        }


def _divided(x: Array, y: Array, ends: Sequence[int]) -> tuple[Array, Array]:
    """Return the tokens of a prompt, and the wanted tokens after it, up to their end."""
    counted = np.flatnonzero(y != IGNORED)
    first = counted[0] or len(counted) // 2
    rest = y[counted[counted >= first]]
    places = np.flatnonzero(np.isin(rest, ends))
    return x[: first + 1], rest[: places[0]] if len(places) else rest


def _rows(rows: Sequence[Sequence[int] | Array]) -> Array:
    """Return rows of tokens as an array [n, T]."""
    array = np.full((len(rows), max(map(len, rows))), NO_TOKEN, np.int64)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return array


def _answered(view: View, trained: Trained, *, ends: Sequence[int], places: int | None) -> Tensors:
    """Return the tokens that the global model puts after prompts [n, S]."""
    asked = view.broadcast["asked"]["x"]
    model = view.broadcast["model"]

    def forward(x: Tensor) -> Tensor:
        return view.at(model, x).logits

    return {"tokens": likeliest_tokens(forward, asked, TOKENS, ends=ends, places=places)}
