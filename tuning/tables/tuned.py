"""Fair tuning: the searches of a sweep run side by side before it trains with the best settings.

They become those of the row, or the cell, which is then trained with all seeds on all data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

import raysim
from raysim.core.errors import RunError
from raysim.core.user_input import key_text, override_text
from raysim.storage.lock import make_folder
from raysim.tuning.runs.folder import check_folders
from raysim.tuning.runs.run import digest_of
from raysim.tuning.search.record import record_of
from raysim.tuning.search.results import trial_line
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import default_storage
from raysim.tuning.slots.fitting import at_most
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import Together, run_in_slots
from raysim.tuning.studies.ranges import Range, format_range
from raysim.tuning.studies.study import Study
from raysim.tuning.tables.plan import TablePlan
from raysim.tuning.tables.searches import TuneTable, budget, to_search
from raysim.tuning.tuner import StudyListener, Tuner
from raysim.workloads.tables import PaperTable

EDGE = 0.05
"""Share of a range, on its own scale, within which its ends are edges."""


@dataclass(frozen=True)
class Chosen:
    """Outcome of a search.

    Attributes:
        title: Name of the row or the cell.
        values: The best settings by dotted key; none where nothing was to be searched.
        edges: The keys whose best value lies on the edge of its range, with the range in words.
        score: The best held-out accuracy or loss.
        objective: Which of both.
        curve: The score of each completed trial by its number.
        rounds: Rounds of all trials.
        failed: Trials that failed, as those that diverged.
    """

    title: str
    values: Mapping[str, Any]
    edges: Mapping[str, str]
    score: float | None = None
    objective: str = ""
    curve: Mapping[int, float] = field(default_factory=dict)
    rounds: int = 0
    failed: int = 0

    @property
    def settings(self) -> str:
        """The best settings as they are typed."""
        return " ".join(override_text(key, _short(value)) for key, value in self.values.items())

    @property
    def shown_score(self) -> str:
        """The best score, an accuracy in percent."""
        if self.score is None:
            return ""
        return f"{self.score:.2%}" if self.objective == "accuracy" else f"{self.score:.4g}"

    def lines(self) -> Iterator[str]:
        """Yield what was chosen in words."""
        if self.score is None:
            yield f"{self.title}: none of the ranges is of its settings, which stay."
            return
        failed = f"; {self.failed} trials failed" if self.failed else ""
        score = f"held-out {self.objective} {self.shown_score}"
        yield f"{self.title}: {self.settings} ({score}{failed})."
        for key, allowed in self.edges.items():
            yield f"{self.title}: {key} lies on the edge of its range, {allowed}; widen it."


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tuned(
    plan: TablePlan, tune: TuneTable, out: Path, jobs: int | None, line: Callable[[str], None]
) -> tuple[PaperTable, list[Chosen]]:
    """Search the rows or the cells of a plan; return its table with the best settings.

    Args:
        plan: The plan.
        tune: What is searched, and how.
        out: Folder of the sweep, in which the studies lie under `tuning/`.
        jobs: Number of slots; None takes as many as fit.
        line: Prints a line.

    Raises:
        RaysimError: a setting, the data, a folder or the cluster does not allow a search, or all
            trials of one failed.
    """
    searched = to_search(plan, tune)
    with ExitStack() as ends:
        opened: dict[Path, _Titled] = {}
        tuners: dict[str, Tuner] = {}
        for each in searched:
            if each.study is not None:
                folder = _folder(out, each.study)
                if folder not in opened:
                    study = _opened(each.title, each.study, folder, line)
                    opened[folder] = ends.enter_context(study)
                tuners[each.title] = opened[folder]
        queue = Together({t.title: t for t in opened.values()}, lambda text: line(f"note: {text}"))
        if queue.remain():
            first = next(iter(opened.values()))
            left = sum(tuner.total - tuner.done for tuner in opened.values())
            settings = first.search.resolved.settings
            with open_slots(settings, at_most(jobs, left), queue.note) as slots:
                line(f"{budget(tune, searched)}; {left} trials left; {len(slots)} slots")
                run_in_slots(slots, queue)
        chosen = [_chosen(each.title, tuners.get(each.title)) for each in searched]
    values = {
        (cell.paper.row, cell.paper.column): found.values
        for each, found in zip(searched, chosen, strict=True)
        for cell in each.cells
    }
    cells = tuple(
        replace(cell, settings={**cell.settings, **values.get((cell.row, cell.column), {})})
        for cell in plan.table.cells
    )
    notes = [note for note in (plan.table.note, f"{budget(tune, searched)}.") if note]
    notes += [said for each in chosen for said in each.lines()]
    return replace(plan.table, cells=cells, note="\n".join(notes)), chosen


def _folder(out: Path, study: Study) -> Path:
    """Return the folder of a search, named by all that decides its trials."""
    resolved = study.resolve({})
    record = record_of(resolved, study.options())
    rest = {key: value for key, value in record.items() if key != "settings"}
    text = key_text(digest_of(resolved.settings), resolved.settings.seed, rest)
    return out / "tuning" / sha256(text.encode()).hexdigest()[:12]


@contextmanager
def _opened(
    title: str, study: Study, folder: Path, line: Callable[[str], None]
) -> Iterator[_Titled]:
    """Open the study of a search, and check that its trials can start."""
    resolved, options = study.resolve({}), study.options()
    raysim.check(resolved.settings)
    check_folders([folder])
    make_folder(folder)
    with closing(Search(folder.name, default_storage(folder), options, resolved)) as search:
        tuner = _Titled(title, search, folder, line)
        with tuner.begun(study.table.trials):
            yield tuner


class _Titled(Tuner):
    """Tuner of a search that has a title."""

    def __init__(
        self, title: str, search: Search, folder: Path, line: Callable[[str], None]
    ) -> None:
        self.title = title
        super().__init__(search, folder, _Told(title, line))


class _Told(StudyListener):
    """Listener that prints a line per trial."""

    def __init__(self, title: str, line: Callable[[str], None]) -> None:
        self._title, self._line = title, line

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        """Print a trial's outcome."""
        self._line(f"{self._title}, {trial_line(trial, seconds)}")


def _chosen(title: str, tuner: Tuner | None) -> Chosen:
    """Return the outcome of a search.

    Raises:
        RunError: all its trials failed.
    """
    if tuner is None:
        return Chosen(title, {}, {})
    search, trials = tuner.search, tuner.search.study.get_trials(deepcopy=False)
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    found = tuner.result(None).best
    if not found:
        error = failed[0].user_attrs.get("failed") if failed else "none was completed"
        raise RunError(f"{title}: all {len(trials)} trials failed, the first: {error}")
    (trial,) = found
    space = search.resolved.space
    curve = {t.number: t.values[0] for t in trials if t.state is TrialState.COMPLETE}
    return Chosen(
        title,
        trial.params,
        {k: format_range(space[k]) for k, v in trial.params.items() if on_edge(space[k], v)},
        trial.values[0],
        search.options.objectives[0],
        curve,
        sum(map(_rounds, trials)),
        len(failed),
    )


def _rounds(trial: FrozenTrial) -> int:
    """Return the rounds that a trial has run; those of a failed one are not counted."""
    rounds: int = trial.user_attrs.get("summary", {}).get("rounds", trial.last_step or 0)
    return rounds


def on_edge(values: Range, value: Any) -> bool:
    """Return whether a value lies on an edge of its range, beyond which there may be better ones.

    The edges of a range are its outer EDGEs, on its own scale; those of choices are the least and
    the largest number of three or more.
    """
    if isinstance(values, CategoricalDistribution):
        numbers = [v for v in values.choices if isinstance(v, int | float) and v is not True]
        return len(numbers) > 2 and value in (min(numbers), max(numbers))
    scale = math.log if values.log else float
    low, high = scale(values.low), scale(values.high)
    return not EDGE < (scale(value) - low) / (high - low) < 1 - EDGE
