"""Cells of tables, with the declarations of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raysim.api.columns import OF_ENGINE
from raysim.results.metrics import parse_metric
from raysim.results.tables import ResultCell
from raysim.storage.column_names import OF_SCORES

Place = tuple[str, str]
COLUMNS = {**OF_ENGINE, **OF_SCORES}


def declared(cells: Mapping[Place, ResultCell], metric: str) -> dict[Place, ResultCell]:
    """Return cells with the column of their metric, or else of the given one, as declared."""
    return {
        place: replace(cell, column=COLUMNS.get(parse_metric(cell.metric or metric).column))
        for place, cell in cells.items()
    }
