"""Records of runs, read from the directories of running, stopped and finished runs.

Recorded settings are not validated, and a user's own class that they name is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raysim import methods  # noqa: F401 - registers them
from raysim.api.columns import OF_ENGINE, SUMS, Column, by_scored
from raysim.api.method import METHODS
from raysim.api.scoring import (
    ACCURACY,
    GAIN,
    HOLDOUT,
    JAIN,
    LOCAL_TEST,
    LOSS,
    LOSSES,
    PERSONAL,
    TRAIN_SET,
    spread_column,
)
from raysim.errors import RunError, SettingsError
from raysim.results.failures import INFINITE_LOSS, failure_of, read_failure
from raysim.samples.arrow import checksum
from raysim.storage.checkpoints import NO_PRIVACY, PRIVACY, Checkpoints
from raysim.storage.lock import is_locked
from raysim.storage.recorder import ANALYSIS
from raysim.storage.rows.metrics import declared_field, declared_in, read_metrics
from raysim.storage.rows.parted import read_table
from raysim.storage.run_directory import RunDirectory
from raysim.storage.schema import GRIDS, recorded_settings
from raysim.storage.sealed.models import model_problem
from raysim.storage.summary import DROPPED, end_of, is_counted
from raysim.user_input import canonical, decides_result, parse_json

OF_CLIENTS = {score.samples for score in (LOCAL_TEST, HOLDOUT, TRAIN_SET)}
"""Sets of the clients' samples."""


def with_deployed(metrics: pa.Table) -> pa.Table:
    """Add columns of the models that clients deploy to a run that has none: the global one's.

    So rows of a table have one metric: `final(personal_local_test_accuracy)`. Gains are 0.
    """
    known = by_scored(declared_in(metrics.schema).values())
    if any(scored.model == PERSONAL for scored in known):
        return metrics
    for scored, column in known.items():
        if scored.model or scored.samples not in OF_CLIENTS:
            continue
        deployed, values = column.of(scored._replace(model=PERSONAL)), metrics[column.name]
        metrics = metrics.append_column(declared_field(deployed, values.type), values)
        if scored.spread == JAIN:
            zeros = [None if value is None else 0.0 for value in values.to_pylist()]
            score = known[scored._replace(spread="")].of(scored._replace(model=PERSONAL, spread=""))
            field = declared_field(spread_column(score, GAIN), pa.float64())
            metrics = metrics.append_column(field, pa.array(zeros, pa.float64()))
    return metrics


State = Literal["finished", "running", "interrupted", "diverged", "failed"]
PAGE = "report.html"
"""Name of the page in the folder of a table's, a sweep's or a study's runs."""
EVERY = "evaluation.every"
OF_TRAINING = ("train_loss", "test_loss")


@dataclass(frozen=True)
class RunRecord:
    """Run, as recorded in its directory.

    Attributes:
        path: The run directory.
        settings: Values by dotted key, as `canonical` returns them.
        own_task: Whether the run has its own task.
        metrics: A row per committed round, with sums over the rounds so far; empty before the
            first. A run at T=1 has its losses as losses at its temperature, too. A run in which
            clients deploy the global model has its scores as scores of the deployed models, too.
        own_models: Whether it evaluates models that clients deploy in place of the global one.
        summary: `summary.json`; None for an unfinished run.
        state: "running" if no end is recorded and a process holds the directory's lock,
            "interrupted" if none does. "diverged" if a client's update or a loss is not finite,
            "failed" if another error ended the run.
        environment: `environment.json`; empty if it cannot be read.
        notes: Lines about its failure, damaged files, dropped clients, and changes that the run was
            forced to accept.
    """

    path: Path
    settings: Mapping[str, Any]
    own_task: bool
    metrics: pa.Table
    own_models: bool
    summary: Mapping[str, Any] | None
    state: State
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["seed"])

    @property
    def own_round(self) -> str:
        """The method's round in words if it is no communication round; of a chain the first such.

        Empty for a user's own class, which is not imported.
        """
        named = (str(self.settings.get(f"method.{key}", "")) for key in ("name", "methods"))
        known = [name for name in ", ".join(named).split(", ") if name in {*METHODS}]
        return next(filter(None, (METHODS.get(name).own_round for name in known)), "")

    @property
    def revisions(self) -> dict[str, Any] | None:
        """Revisions of its components; None if no checkpoint seals them."""
        checkpoints = _checkpoints(self.path)
        return checkpoints.revisions() if checkpoints else None

    @property
    def rounds(self) -> int:
        """Committed rounds."""
        return len(self.metrics)

    @property
    def digest(self) -> str | None:
        """The sha256 of the model; None without a model."""
        path = RunDirectory(self.path).model
        return checksum(path) if path.is_file() else None

    @property
    def model_problem(self) -> str | None:
        """Line about a finished run's damaged model; None if the model is intact."""
        is_there = self.summary is not None and RunDirectory(self.path).model.exists()
        return model_problem(self.path) if is_there else None

    def sealed(self, name: str) -> str | None:
        """Return the value that a checkpoint seals under a name of the identity, or None."""
        value = self._identity.get(name)
        return None if value is None else str(value)

    @property
    def privacy(self) -> str:
        """Meaning of its epsilon: accountant, relation, delta, cohorts; empty without one."""
        words = self.sealed(PRIVACY)
        return "" if words in (None, NO_PRIVACY) else str(words)

    @cached_property
    def _identity(self) -> Mapping[str, Any]:
        checkpoints = _checkpoints(self.path)
        return checkpoints.identity() if checkpoints else {}

    def column(self, name: str) -> Column:
        """Return a column of the metrics as it is declared."""
        return self._declared.get(name) or OF_ENGINE.get(name, Column(name))

    @cached_property
    def _declared(self) -> Mapping[str, Column]:
        return declared_in(self.metrics.schema)

    def points(self, column: str) -> list[tuple[int, float]]:
        """Return round and value of each value of a column that counts; see `is_counted`."""
        if column not in self.metrics.column_names:
            return []
        values = self.metrics[column].to_pylist()
        numbers = self.metrics["round"].to_pylist()
        points = [(n, v) for n, v in zip(numbers, values, strict=True) if v is not None]
        if self.column(column).scored is None:
            return points
        every = self.settings[EVERY]
        rounds = end_of(self.summary or {}, self.settings["rounds"])
        return [point for point in points if is_counted(point[0], every, rounds)]

    def analysis(self, name: str) -> list[dict[str, Any]]:
        """Return an analysis's rows of the last evaluated round; empty without any.

        Raises:
            RunError: the file of the analysis is damaged.
        """
        path, evaluated = self.path / ANALYSIS / f"{name}.parquet", self.points("test_loss")
        if not evaluated or not path.exists():
            return []
        table = read_table(path)
        rows: list[dict[str, Any]]
        rows = table.filter(pc.equal(table["round"], evaluated[-1][0])).to_pylist()
        return rows


def read_run(path: Path) -> RunRecord:
    """Read a run directory, even while its run writes to it.

    Raises:
        RunError: the folder holds no run, or a run of another version.
    """
    if not path.is_dir():
        raise RunError(f"{path}: there is no such folder")
    directory, notes = RunDirectory(path), list[str]()
    settings, own_task = _settings(directory)
    rounds, target = settings["rounds"], settings["target_accuracy"]
    metrics = _with_losses(_metrics(directory, rounds, notes.append))
    scored = by_scored(declared_in(metrics.schema).values())
    own_models = any(score.model == PERSONAL for score in scored)
    metrics = with_deployed(metrics)
    every = settings[EVERY]
    finished = directory.is_finished(target, rounds, every)
    summary = _json(directory.summary) if finished else None
    state, error = _end(directory, metrics, finished=summary is not None)
    notes += [f"{path}: {state}: {error}"] if error else []
    notes += _dropped(path, metrics)
    checkpoints = _checkpoints(path)
    sealed = checkpoints.words() if checkpoints else {}
    forced = (summary or {}).get("forced") or sealed.get("forced") or ()
    notes += [f"{path}: forced to go on {change}" for change in forced]
    return RunRecord(
        path=path,
        settings=settings,
        own_task=own_task,
        metrics=metrics,
        own_models=own_models,
        summary=summary,
        state=state,
        environment=_json(directory.environment) or {},
        notes=tuple(notes),
    )


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Read run directories.

    Raises:
        SettingsError: no path is given, or one is given twice.
        RunError: a folder holds no run.
    """
    records: dict[Path, RunRecord] = {}
    for path in paths:
        if (place := path.resolve()) in records:
            raise SettingsError(f"{path}: is given twice")
        records[place] = read_run(path)
    if not records:
        raise SettingsError("RUN: must be at least one run directory")
    return list(records.values())


def infinite_loss(path: Path) -> str | None:
    """Return the error of a finished run with a last loss that is not finite.

    Raises:
        RunError: the folder holds no run.
    """
    return INFINITE_LOSS if read_run(path).state == "diverged" else None


def result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by dotted key that decide the model, without the seed."""
    return {k: value for k, value in settings.items() if k != "seed" and decides_result(k)}


def _settings(directory: RunDirectory) -> tuple[dict[str, Any], bool]:
    """Return the recorded settings, from the newest checkpoint where `config.json` is damaged."""
    values = _json(directory.config)
    if values is None or "own_task" not in values:
        values = Checkpoints(directory.checkpoints).words().get("config")
    if values is None or "own_task" not in values:
        raise RunError(f"{directory.path}: holds no run{_instead(directory.path)}")
    recorded, own_task = recorded_settings(directory.config, values)
    settings = canonical(recorded)
    rounds = "number of rounds"
    for key, least, meaning in (("seed", 0, "seed"), ("rounds", 0, rounds), (EVERY, 1, rounds)):
        if type(settings[key]) is not int or settings[key] < least:
            raise RunError(f"{directory.config}: {key}={settings[key]!r} is no {meaning}")
    return settings, own_task


def _checkpoints(path: Path) -> Checkpoints | None:
    """Return the checkpoints of a run; None if a file stands in place of their folder."""
    folder = RunDirectory(path).checkpoints
    return None if folder.is_file() else Checkpoints(folder)


def _instead(path: Path) -> str:
    """Describe a folder without a run: a failure, runs of a table or study, or runs inside."""
    if failure := read_failure(path):
        return f", which failed before it had settings: {failure.error}"
    for kind, name in GRIDS.items():
        if (path / name).exists():
            runs = sorted(config.parent for config in path.glob("**/config.json"))
            page = f", or open its page, {path / PAGE}" if (path / PAGE).exists() else ""
            named = f", such as {runs[0]}; name them{page}" if runs else ""
            return f" but those of a {kind}{named}"
    held = len([*path.glob("*/config.json")])
    return f" itself, but {held} in it; name them: {path}/*" if held else ""


def _metrics(directory: RunDirectory, rounds: int, note: Callable[[str], None]) -> pa.Table:
    """Return the rows of the rounds, from the newest checkpoint where the table is damaged."""
    table, problem = _table(directory.metrics, rounds)
    if table is None and directory.metrics.exists():
        sealed = Checkpoints(directory.checkpoints).metrics()
        table = None if sealed is None else _table(sealed, rounds)[0]
        rows = "no checkpoint has its rows" if table is None else f"taking {sealed}"
        note(f"{directory.metrics}: is damaged ({problem}); {rows}")
    if table is None:
        return pa.table({"round": pa.array([], pa.int64())})
    return _with_cumulated(table)


def _dropped(path: Path, metrics: pa.Table) -> list[str]:
    """Return a line about dropped clients, which the means of a run's rounds lack."""
    if DROPPED not in metrics.column_names:
        return []
    counts = metrics[DROPPED].drop_null().to_pylist()
    where = f"dropped after errors in {len(counts)} of {len(metrics)} rounds"
    return [f"{path}: clients were {where}, {sum(counts)} in all (on_client_error=drop)"]


def _table(path: Path, rounds: int) -> tuple[pa.Table | None, str]:
    """Return a table of rounds, or None and the problem."""
    try:
        return read_metrics(path, rounds), ""
    except (OSError, ValueError, pa.ArrowException) as error:
        return None, " ".join(str(error).split())


def _with_cumulated(table: pa.Table) -> pa.Table:
    """Add the sums over the rounds so far: of columns that declare them, and SUMS."""
    summed = [column for column in declared_in(table.schema).values() if column.fold == "sum"]
    totals: dict[Column, tuple[str, ...]] = {OF_ENGINE[name]: SUMS[name] for name in SUMS}
    totals |= {column.total: (column.name,) for column in summed}
    for total_of, parts in totals.items():
        columns = [table[part].to_pylist() for part in parts if part in table.column_names]
        total, sums = 0.0, []
        for values in zip(*columns, strict=True):
            total += sum(value or 0 for value in values)
            sums.append(total)
        if columns:
            field = declared_field(total_of, pa.float64())
            table = table.append_column(field, pa.array(sums, pa.float64()))
    return table


def _with_losses(table: pa.Table) -> pa.Table:
    """Add the losses at the temperature of training of a run with T=1.

    Such a run has no separate columns for them, unless the temperature varies.
    """
    known = by_scored(declared_in(table.schema).values())
    for scored, column in known.items():
        if scored.score != LOSS.name or scored._replace(score=ACCURACY.name) not in known:
            continue
        for other in {scored._replace(score=loss) for loss in LOSSES} - known.keys():
            field = declared_field(column.of(other), table.field(column.name).type)
            table = table.append_column(field, table[column.name])
    return table


def _end(directory: RunDirectory, metrics: pa.Table, *, finished: bool) -> tuple[State, str]:
    """Return the state of a run and the recorded error that ended it, if any."""
    for column in OF_TRAINING:
        values = metrics[column].to_pylist() if column in metrics.column_names else []
        if any(value is not None and not math.isfinite(value) for value in values[-1:]):
            return "diverged", ""
    if finished:
        return "finished", ""
    if is_locked(directory.path):
        return "running", ""
    return failure_of(directory, len(metrics)) or ("interrupted", "")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
