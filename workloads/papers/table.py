"""A table, of a paper or one's own: the settings of each cell, its metric, and its published value.

Settings are held as overrides of a preset, and are validated when they are asked for: the
components that they name import torch, which a list of tables does not need. A plan of a table
(`tuning.tables.plan`) is the same table, whose cells have their runs; what they give is written
into it (`tuning.tables.results`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raysim.errors import SettingsError
from raysim.results.tables import ResultCell, ResultTable
from raysim.workloads.presets import Paper

if TYPE_CHECKING:
    from raysim.config import Settings
    from raysim.workloads.papers.run import Run


@dataclass(frozen=True, kw_only=True)
class PaperCell(ResultCell):
    """One cell with the settings of its runs, which differ in the seed.

    Attributes:
        preset: The preset from which its settings are derived.
        settings: Overrides of the preset by dotted key.
        origins: Origins of these overrides: printed, inferred or chosen.
        planned: Run of its first seed in a plan; None runs its settings as they are.
        full_rounds: Rounds of the run without shortening, in a plan.
        chosen: Whether the plan's options choose it.
    """

    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    planned: Run | None = None
    full_rounds: int = 0
    chosen: bool = True

    def __hash__(self) -> int:
        return hash(self.place)

    @property
    def label(self) -> str:
        """Its row and its column in words."""
        return ", ".join(self.place)

    @property
    def is_published(self) -> bool:
        """True if the paper prints anything there."""
        return self.published is not None or bool(self.text)

    def resolve(self, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Return the validated settings of a run.

        Raises:
            SettingsError: an override is wrong.
        """
        from raysim import load_config

        return load_config(self.preset, {**self.settings, **(overrides or {})})

    @property
    def run(self) -> Run:
        """Run of its first seed."""
        from raysim.workloads.papers.run import Run

        return self.planned or Run.of(self.label, self.resolve())

    @property
    def missing(self) -> str:
        """Missing files that the user must provide for it, or other unmet needs."""
        return self.lacking or self.run.missing


@dataclass(frozen=True, kw_only=True)
class PaperTable(ResultTable):
    """A table whose cells can be run.

    Attributes:
        name: Its name in commands.
        paper: The paper that prints it; None for a custom table.
        reference: Its number there.
        cells: The cells, row by row.
        seeds: Seeds of each cell, counted from its setting `seed`; by default as many as the paper
            has, if it prints their number.
        row_keys: Settings that each row sets itself, by dotted key, besides its preset's.
        tune: Table `[tune]` of a sweep: a search of each row before its runs; empty without one.
        overrides: Settings of all runs by dotted key, in a plan.
        full_seeds: Number of seeds without shortening, in a plan.
    """

    name: str
    paper: Paper | None
    reference: str
    cells: tuple[PaperCell, ...]
    seeds: Sequence[int]
    row_keys: Mapping[str, frozenset[str]]
    tune: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    full_seeds: int = 0

    @property
    def source(self) -> str:
        """The paper's name with the table's number; empty without a paper."""
        return f"{self.paper.name}, {self.reference}" if self.paper else ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of its cells; the table's own is the first."""
        return tuple(dict.fromkeys([self.metric, *map(self.metric_of, self.cells)]))

    @property
    def chosen(self) -> list[PaperCell]:
        """Chosen cells whose data is available."""
        return [cell for cell in self.cells if cell.chosen and not cell.missing]

    @cached_property
    def first_runs(self) -> list[Run]:
        """Distinct runs of the chosen cells, and the references of their analyses; of one seed."""
        pairs = ((cell.run.reference, cell.run) for cell in self.chosen)
        return [*dict.fromkeys(run for pair in pairs for run in pair if run)]

    @property
    def runs(self) -> list[Run]:
        """The same, of all seeds."""
        return [*dict.fromkeys(seed for run in self.first_runs for seed in run.seeds(self.seeds))]

    @property
    def labels(self) -> dict[str, Run]:
        """Run of each cell by the cell's label."""
        return {cell.label: cell.run for cell in self.cells}

    def check_data(self) -> None:
        """Check that a chosen cell has its data.

        Raises:
            SettingsError: no chosen cell has its data.
        """
        if not self.chosen:
            missing = next(cell.missing for cell in self.cells if cell.chosen)
            raise SettingsError(f"{self.name}: no chosen cell can be run: {missing}")
