"""Cells of a table, and their runs: cells of equal settings share a run.

Columns that differ only in their metric are read from the same run. The analyses needed by the
metrics of its cells are added to a run's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.user_input import canonical, key_text, portable_name
from raysim.results.metrics import Metric, parse_metric
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.datasets.prepared import missing_files
from raysim.workloads.sweeps import differs_by_cell
from raysim.workloads.tables import PaperCell, PaperTable

ITSELF = "another model than the reference, whose comparison with itself is no measurement"
"""Needed for a cell that compares the reference with itself."""


@dataclass(frozen=True)
class ResolvedCell:
    """A cell of the paper with its settings.

    Attributes:
        paper: The cell.
        settings: Settings of the cell, without the analysis of its metric.
        full_rounds: Rounds without shortening.
        chosen: Whether `--only` chooses the cell.
    """

    paper: PaperCell
    settings: Settings
    full_rounds: int
    chosen: bool

    @cached_property
    def key(self) -> str:
        """Settings as text, which the cells of one run have in common."""
        return key_text(canonical(self.settings.to_dict()))


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """Run for one or more cells, once per seed.

    Attributes:
        name: Name of its folder.
        label: Row and column; for several columns, the words that they share.
        settings: Settings of its first seed, with the analyses of its cells; a further seed adds to
            `seed`.
        full_rounds: Most rounds of its cells without shortening.
        reference: The run whose models its analyses compare with.
    """

    name: str
    label: str
    settings: Settings
    full_rounds: int
    reference: PlannedRun | None = None

    @cached_property
    def missing(self) -> str:
        """Missing files that the user must provide for the run."""
        return missing_files(self.settings.dataset, data_root())

    def label_of(self, seed: int) -> str:
        """Return row, column and seed."""
        return f"{self.label}, seed {seed}"

    def seeds(self, count: int) -> range:
        """Return the first `count` seeds."""
        return range(self.settings.seed, self.settings.seed + count)


@dataclass(frozen=True, eq=False)
class PlannedCell:
    """Cell with its run.

    Attributes:
        paper: The cell of the paper.
        name: Name of the cell in `table.json`.
        run: Run of the cell.
        full_rounds: Rounds without shortening.
        chosen: Whether `--only` chooses the cell.
        lacking: Unmet needs besides data.
    """

    paper: PaperCell
    name: str
    run: PlannedRun
    full_rounds: int
    chosen: bool
    lacking: str = ""

    @property
    def label(self) -> str:
        """Row and column."""
        return f"{self.paper.row}, {self.paper.column}"

    @property
    def missing(self) -> str:
        """Missing files that the user must provide for the cell, or other unmet needs."""
        return self.lacking or self.run.missing


def planned_cells(table: PaperTable, cells: Sequence[ResolvedCell]) -> list[PlannedCell]:
    """Return the cells of a table with their runs.

    Raises:
        SettingsError: a metric is invalid, or the run of a chosen cell does not give its value.
    """
    metrics = [_metric_of(table, cell.paper) for cell in cells]
    references = {cell.paper.column: cell.key for cell in cells if _is_reference(table, cell)}
    analyses: dict[str, dict[str, str]] = {cell.key: {} for cell in cells}
    lacking: list[str] = []
    for cell, metric in zip(cells, metrics, strict=True):
        reference = references.get(cell.paper.column, "") if metric.takes_reference else ""
        is_itself = reference == cell.key
        lacking.append(ITSELF if is_itself else "")
        if metric.analysis and not is_itself:
            analyses[cell.key][metric.analysis] = reference
    runs = _runs(cells, analyses, by_digest=table.paper is None)
    names = folder_names([(cell.paper.row, cell.paper.column) for cell in cells])
    for cell, metric, problem in zip(cells, metrics, lacking, strict=True):
        if cell.chosen and not problem:
            with _named(table, cell.paper):
                _check_metric(metric, runs[cell.key])
    return [
        PlannedCell(cell.paper, name, runs[cell.key], cell.full_rounds, cell.chosen, problem)
        for cell, name, problem in zip(cells, names, lacking, strict=True)
    ]


def _is_reference(table: PaperTable, cell: ResolvedCell) -> bool:
    return cell.paper.row == table.reference_row


@contextmanager
def _named(table: PaperTable, cell: PaperCell) -> Iterator[None]:
    """Add the cell's name to an error.

    Raises:
        SettingsError: the body raised one.
    """
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{table.name}: {cell.row}, {cell.column}: {error}") from error


def _metric_of(table: PaperTable, cell: PaperCell) -> Metric:
    with _named(table, cell):
        return parse_metric(table.metric_of(cell))


def _check_metric(metric: Metric, run: PlannedRun) -> None:
    metric.check(run.settings)
    if metric.takes_reference and run.reference is None:
        raise SettingsError(f"{metric}: there is no reference with such settings")


def _runs(
    cells: Sequence[ResolvedCell],
    analyses: Mapping[str, Mapping[str, str]],
    *,
    by_digest: bool,
) -> dict[str, PlannedRun]:
    """Return the runs of cells by key.

    Args:
        cells: The cells.
        analyses: By key, the needed analyses of cells, each with the key of its reference or "".
        by_digest: Whether a run's folder is named by its settings, which stay when rows and columns
            are added, or by row and column.
    """
    groups: dict[str, list[ResolvedCell]] = {}
    for cell in cells:
        groups.setdefault(cell.key, []).append(cell)
    places = {key: _shared_place([cell.paper for cell in group]) for key, group in groups.items()}
    names = dict(zip(groups, folder_names([*places.values()]), strict=True))
    runs: dict[str, PlannedRun] = {}
    for key in sorted(groups, key=lambda key: any(analyses[key].values())):  # references first
        settings, wanted = groups[key][0].settings, analyses[key]
        if wanted:
            asked = [*dict.fromkeys([*settings.analysis, *wanted])]
            settings = settings.override({"analysis": asked})
        reference = next((runs[each] for each in wanted.values() if each), None)
        label = ", ".join(places[key])
        full_rounds = max(cell.full_rounds for cell in groups[key])
        name = digest_of(settings) if by_digest else names[key]
        runs[key] = PlannedRun(name, label, settings, full_rounds, reference)
    return runs


def digest_of(settings: Settings) -> str:
    """Return the name of a run's folder by all that decides its results and rows, but the seed."""
    values = canonical(settings.to_dict())
    kept = {key: values[key] for key in values if key != "seed" and differs_by_cell(key)}
    return sha256(key_text(kept).encode()).hexdigest()[:12]


def _shared_place(cells: Sequence[PaperCell]) -> tuple[str, str]:
    """Return the row of the first cell, and its column or the common words of all columns."""
    first, *others = (cell.column.split() for cell in cells)
    shared = [word for word in first if all(word in words for words in others)]
    return cells[0].row, " ".join(shared or first)


def folder_names(places: Sequence[tuple[str, str]]) -> list[str]:
    """Return a distinct folder in portable characters for each row and column."""
    names: list[str] = []
    for row, column in places:
        name = f"{portable_name(row)}/{portable_name(column)}"
        while name in names:
            name += "-"
        names.append(name)
    return names
