"""Fair tuning: the searches of a sweep run side by side before it trains with the best settings.

They become the row's, or the cell's, which is then trained with all seeds on all data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

import raysim
from raysim.errors import RunError, SettingsError
from raysim.federation.prepared import digests_of
from raysim.results.failures import is_divergence
from raysim.storage.lock import make_folder
from raysim.tuning.runs.folder import check_folders
from raysim.tuning.search.record import record_of
from raysim.tuning.search.search import RETRY_OF, Search
from raysim.tuning.search.storage import default_storage
from raysim.tuning.slots.fitting import at_most
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import CombinedQueue, run_in_slots
from raysim.tuning.studies.ranges import Range, format_range, short_override
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import ResolvedStudy
from raysim.tuning.tables.searches import Searched, TuneTable, budget
from raysim.tuning.tuner import StudyListener, Tuner
from raysim.user_input import key_text
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.papers.run import digest_of
from raysim.workloads.tables import PaperCell, PaperTable

NAME = "tuning"
"""Name of every search in its own storage; pruners may draw by it, alike for all rows."""
AGAIN = "fix this, then type the same command to try them again"
THREE = 3
"""Least number of choices for the smallest and the largest to be edges."""
FEW_HELD_OUT = 200
"""Number of held-out samples below which a note says how few they are."""
EDGE = 0.05
"""Share of a range, on its own scale, within which its ends are edges."""


@dataclass(frozen=True)
class Chosen:
    """Outcome of a search.

    Attributes:
        title: Name of the row or the cell.
        values: The best settings by dotted key; empty if there was nothing to search.
        edges: Keys with a best value on an edge of the range, with edge and range in words.
        score: The best held-out accuracy or loss.
        objective: Accuracy or loss.
        curve: The score of each completed trial by its number.
        rounds: Rounds of all trials.
        trials: Number of trials that ended.
        failed: How many of them failed; trials that diverge fail.
        pruned: How many of them were pruned.
        tied: Number of trials that have the best score; the first of them was taken. If all trials
            have it, no value counts as on an edge.
        held_out: Samples on which trials are scored; None if unknown.
        error: The first trial's error if no trial succeeded; then nothing was chosen.
    """

    title: str
    values: Mapping[str, Any]
    edges: Mapping[str, str]
    score: float | None = None
    objective: str = ""
    curve: Mapping[int, float] = field(default_factory=dict)
    rounds: int = 0
    trials: int = 0
    failed: int = 0
    pruned: int = 0
    tied: int = 1
    held_out: int | None = None
    error: str = ""

    @property
    def settings(self) -> str:
        """The best settings as they are typed."""
        return " ".join(short_override(key, value) for key, value in self.values.items())

    @property
    def shown_score(self) -> str:
        """The best score, an accuracy in percent."""
        if self.score is None:
            return ""
        return f"{self.score:.2%}" if self.objective == "accuracy" else f"{self.score:.4g}"

    def lines(self) -> Iterator[str]:
        """Yield the choice in words."""
        if self.error:
            yield f"{self.title}: left out: all {self.trials} trials failed; first: {self.error}"
            return
        if self.score is None:
            yield f"{self.title}: no range belongs to its settings, which stay."
            return
        lost = {"failed": self.failed, "pruned": self.pruned}
        words = "".join(f"; {count} trials {how}" for how, count in lost.items() if count)
        words += f"; {self.rounds} rounds in all" if self.pruned else ""
        score = f"held-out {self.objective} {self.shown_score}"
        yield f"{self.title}: {self.settings} ({'; '.join([score + words, *self.doubts()])})."
        for key, edge in self.edges.items():
            yield f"{self.title}: {key} lies on the {edge}; widen it."

    def doubts(self) -> Iterator[str]:
        """Yield why the choice says little: trials that tie, and few held-out samples."""
        if self.tied > 1:
            which = "all" if self.tied == len(self.curve) else str(self.tied)
            yield f"{which} trials tie, the first is taken"
        if self.held_out is not None and self.held_out < FEW_HELD_OUT:
            yield f"only {self.held_out} held-out samples; one of them is {1 / self.held_out:.1%}"


def tuned(
    table: PaperTable,
    tune: TuneTable,
    searched: Sequence[Searched],
    *,
    out: Path,
    jobs: int | None,
    line: Callable[[str], None],
) -> tuple[PaperTable, list[Chosen]]:
    """Search the rows or the cells of a table; return it with the best settings.

    Args:
        table: The table.
        tune: How they are searched.
        searched: The searches.
        out: Folder of the sweep; its `tuning/` holds the studies.
        jobs: Number of slots; None takes as many as fit.
        line: Prints a line.

    Raises:
        RaysimError: a setting, the data, a folder or the cluster does not allow a search, or all
            trials of a search failed.
    """
    with ExitStack() as ends:
        opened: dict[Path, Tuner] = {}
        titles: dict[Path, str] = {}
        folders = _folders(out, searched, line)
        for search, folder in zip(searched, folders, strict=True):
            if search.study and search.is_chosen and folder and folder not in opened:
                told = StudyListener(line, titles.setdefault(folder, search.title))
                tuner = _opened(search.study, search.options, folder, tune.trials, told)
                opened[folder] = ends.enter_context(tuner)
        tuners = {titles[folder]: tuner for folder, tuner in opened.items()}
        queue = CombinedQueue(tuners, lambda text: line(f"note: {text}"))
        if queue.remain():
            first = next(iter(opened.values()))
            left = sum(max(tuner.total - tuner.done, 0) for tuner in opened.values())
            settings = first.search.resolved.settings
            with open_slots(settings, at_most(jobs, left), queue.note) as slots:
                line(f"{budget(tune, searched)}; {left} trials left; {len(slots)} slots")
                run_in_slots(slots, queue)
        choices = [
            _chosen(search, folder, opened, tune.trials)
            for search, folder in zip(searched, folders, strict=True)
        ]
    chosen = [
        choice for choice, one_search in zip(choices, searched, strict=True) if one_search.is_chosen
    ]
    errors = [f"{choice.title}: {choice.error}" for choice in chosen if choice.error]
    if errors and len(errors) == len(chosen):
        raise RunError(f"all trials of all rows failed; {errors[0]}; {AGAIN}")
    notes = [f"{budget(tune, searched)}.", *(said for choice in chosen for said in choice.lines())]
    cells = _with_values(table, searched, choices)
    return replace(table, cells=cells, notes=(*table.notes, *notes)), chosen


def _with_values(
    table: PaperTable, searched: Sequence[Searched], choices: Sequence[Chosen]
) -> tuple[PaperCell, ...]:
    """Return a table's cells with their chosen settings, without cells of failed searches."""
    by_place = {
        cell.place: choice
        for search, choice in zip(searched, choices, strict=True)
        for cell in search.cells
    }
    chosen = [(cell, by_place.get(cell.place)) for cell in table.cells]
    return tuple(
        replace(cell, settings={**cell.settings, **choice.values}) if choice else cell
        for cell, choice in chosen
        if not (choice and choice.error)
    )


def _folders(
    out: Path, searched: Sequence[Searched], line: Callable[[str], None]
) -> list[Path | None]:
    """Return the folder of each search, named by all that decides its trials, and by its data.

    Trials on other data are not compared, so a search starts again after its data has changed. The
    data of an unchosen search is not read; it has its last folder, or None if there is none.

    Raises:
        RaysimError: the data of a chosen search cannot be prepared.
    """
    data, folders = dict[str, str](), list[Path | None]()
    for search in searched:
        if search.study is None:
            folders.append(None)
            continue
        name, dataset = _name(search.study, search.options), search.study.settings.data
        known = sorted((out / "tuning").glob(f"{name}-*"), key=lambda path: path.lstat().st_mtime)
        if not search.is_chosen:
            folders.append(known[-1] if known else None)
            continue
        if (key := repr(dataset)) not in data:
            data[key] = digests_of(dataset, data_root())["train"]
        folder = out / "tuning" / f"{name}-{data[key][:12]}"
        if known and folder not in known:
            line(f"note: {search.title}: the data has changed since {known[-1]}; searching again")
        folders.append(folder)
    return folders


def _name(study: ResolvedStudy, options: SearchOptions) -> str:
    """Return a name for all that decides the trials of a search, but its data."""
    record = record_of(study, options)
    rest = {key: value for key, value in record.items() if key != "settings"}
    text = key_text(digest_of(study.settings), study.settings.seed, rest)
    return sha256(text.encode()).hexdigest()[:12]


@contextmanager
def _opened(
    study: ResolvedStudy, options: SearchOptions, folder: Path, trials: int, told: StudyListener
) -> Iterator[Tuner]:
    """Open the study of a search, and check that its trials can start."""
    raysim.check(study.settings)
    check_folders([folder])
    make_folder(folder)
    with closing(Search(NAME, default_storage(folder), options, study)) as search:
        tuner = Tuner(search, folder, told)
        with tuner.begun(trials):
            search.retry_failed(lambda error: not is_divergence(error))
            yield tuner


def _chosen(
    searched: Searched, folder: Path | None, opened: Mapping[Path, Tuner], limit: int
) -> Chosen:
    """Return the outcome of a search among its first trials; of none where it was not made."""
    if searched.study is None or folder is None:
        return Chosen(searched.title, {}, {})
    if folder in opened:
        opened[folder].result(None)  # writes the files of the best settings
        return _outcome(searched.title, opened[folder].search, limit)
    storage = default_storage(folder)
    if not any((folder / name).exists() for name in ("study.db", "study.journal")):
        return Chosen(searched.title, {}, {})
    with closing(Search(NAME, storage, searched.options, searched.study)) as search:
        return _outcome(searched.title, search, limit)


def _outcome(title: str, search: Search, limit: int) -> Chosen:
    """Return the outcome of a search among the first trials; repeated ones count as the first."""
    trials = search.study.get_trials(deepcopy=False)
    repeated = {t.user_attrs[RETRY_OF]: t for t in trials if RETRY_OF in t.user_attrs}
    asked = [_last(t, repeated) for t in trials if RETRY_OF not in t.user_attrs][:limit]
    done = [trial for trial in asked if trial.state is TrialState.COMPLETE]
    failed = [trial for trial in asked if trial.state is TrialState.FAIL]
    counts: dict[str, Any] = {
        "rounds": sum(map(_rounds, asked)),
        "trials": sum(trial.state.is_finished() for trial in asked),
        "failed": len(failed),
        "pruned": sum(trial.state is TrialState.PRUNED for trial in asked),
    }
    if not done:
        error = failed[0].user_attrs.get("failed", "") if failed else ""
        return Chosen(title, {}, {}, error=str(error), **counts)
    objective = search.options.objectives[0]
    sign = -1 if objective == "loss" else 1
    best = max(done, key=lambda trial: sign * trial.values[0])  # of equal ones, the first
    tied = sum(trial.values[0] == best.values[0] for trial in done)
    held_out = best.user_attrs.get("summary", {}).get("held_out_samples")
    return Chosen(
        title,
        best.params,
        {} if tied == len(done) > 1 else _edges(search.resolved, best.params),
        best.values[0],
        objective,
        {number: t.values[0] for number, t in enumerate(asked) if t in done},
        tied=tied,
        held_out=held_out and round(held_out),
        **counts,
    )


def _last(trial: FrozenTrial, repeated: Mapping[int, FrozenTrial]) -> FrozenTrial:
    """Return a trial, or the last one that repeats it after a failure and has ended."""
    again = repeated.get(trial.number)
    return trial if again is None or not again.state.is_finished() else _last(again, repeated)


def _edges(resolved: ResolvedStudy, values: Mapping[str, Any]) -> dict[str, str]:
    """Return in words the edges that values lie on, if their ranges can be widened there."""
    edges = {}
    for key, value in values.items():
        allowed = resolved.space[key]
        if (beyond := beyond_edge(allowed, value)) is None:
            continue
        with suppress(SettingsError):  # the setting itself ends there
            resolved.settings.override({**values, key: beyond})
            side = "lower" if beyond < value else "upper"
            edges[key] = f"{side} edge of its range, {format_range(allowed)}"
    return edges


def _rounds(trial: FrozenTrial) -> int:
    """Return the rounds that a trial has run; a failed trial's are not counted."""
    rounds: int = trial.user_attrs.get("summary", {}).get("rounds", trial.last_step or 0)
    return rounds


def beyond_edge(values: Range, value: Any) -> float | None:
    """Return a value beyond the range if a value lies on the range's edge; None if not.

    The edges of a range are its outer EDGEs, on its own scale. The edges of three or more choices
    are the smallest and the largest number.
    """
    if isinstance(values, CategoricalDistribution):
        numbers = [v for v in values.choices if isinstance(v, int | float) and type(v) is not bool]
        if len(numbers) < THREE or value not in (min(numbers), max(numbers)):
            return None
        low, high = min(numbers), max(numbers)
        whole = all(isinstance(number, int) for number in numbers)
        step = 1 if whole else (high - low) / 2
        if value == high:
            return high + step
        return low / 2 if 0 < low < step else low - step  # most settings are positive
    scale = math.log if values.log else float
    low, high = scale(values.low), scale(values.high)
    share = (scale(value) - low) / (high - low)
    if EDGE < share < 1 - EDGE:
        return None
    end = values.low if share <= EDGE else values.high
    if isinstance(values, IntDistribution):
        return end - 1 if share <= EDGE else end + 1
    factor = 0.5 if share <= EDGE else 2.0
    width = values.high - values.low
    return end * factor if values.log else end + (-width if share <= EDGE else width) / 2
