"""Page of `raysim list runs`: the runs below a folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.errors import RunError, visible
from raysim.user_input import parse_json, user_path
from raysim.user_input.run_folders import runs_below

LONGEST = 10_000
"""Most characters of a name, which is not cut."""
DEFAULT = "runs"
COLUMNS = ("run", "method", "dataset", "seed", "rounds", "state", "score")


def runs_page(folder: str) -> RenderableType:
    """Return the table of the runs in a folder and those below it, the newest last.

    Raises:
        RunError: there is no such folder.
    """
    place = _place(folder)
    table = Table(title=f"runs in {visible(str(place), LONGEST)}", title_justify="left", box=None)
    runs = runs_in(folder)
    for name in COLUMNS:
        right = name in ("seed", "rounds")
        table.add_column(name, overflow="fold", justify="right" if right else "left")
    for run in runs:
        table.add_row(*(Text(visible(word, LONGEST)) for word in (run["run"], *_words(run))))
    if not runs:
        table.add_row(Text("none"), *[""] * (len(COLUMNS) - 1))
    return table


def _words(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of a run from its method, or its table's cell, on."""
    method = run["cell"] or run["method"]
    if run["error"] is not None:
        return method, run["dataset"], "", "", run["state"], run["error"]
    data, rounds = run["dataset"] or "its own task", f"{run['rounds']}/{run['of']}"
    if run["path"]:
        data += f" {Path(run['path']).name}"
    return method, data, str(run["seed"]), rounds, run["state"], _score(run)


def runs_in(folder: str) -> list[dict[str, Any]]:
    """Return the figures of each run in a folder and below it, the newest last.

    Raises:
        RunError: there is no such folder.
    """
    place = _place(folder)
    runs = sorted(runs_below(place), key=lambda run: (run / "config.json").stat().st_mtime)
    cells = {folder: _cells_in(folder) for folder in {_grid_of(run) for run in runs}}
    return [_told(run) | {"cell": cells[_grid_of(run)].get(run.parent.name, "")} for run in runs]


def _grid_of(run: Path) -> Path:
    """Return the folder of the table, the sweep or the figure that a run is of, if it is of one."""
    return run.absolute().parents[2] if len(run.absolute().parents) > 2 else run.absolute()


def _cells_in(folder: Path) -> dict[str, str]:
    """Return the first cell of each run of a table or a sweep, by the folder of its seeds."""
    from raysim.storage.schema import GRIDS  # which imports torch

    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        recorded = parse_json((folder / GRIDS["table"]).read_text(encoding="utf-8"))
        return {str(digest): str(label) for label, digest in reversed(recorded["runs"].items())}
    return {}


def _place(folder: str) -> Path:
    place = user_path(folder or DEFAULT)
    if not place.is_dir():
        raise RunError(f"{visible(str(place))}: no such folder; type: raysim list runs FOLDER")
    return place


def _told(run: Path) -> dict[str, Any]:
    """Return method, data, seed and last score of a run, or its error where it is damaged."""
    from raysim.api.scoring import ACCURACY, LOSS, TEST
    from raysim.results.compare import common_score
    from raysim.results.runs import read_run

    told: dict[str, Any] = {"run": str(run), "method": "", "dataset": "", "path": None}
    told |= {"seed": None, "rounds": None}
    told |= {"of": None, "state": "damaged", "accuracy": None, "loss": None, "error": None}
    try:
        record = read_run(run)
    except RunError as error:
        return told | {"error": str(error)}
    settings = record.settings
    last = record.metrics.to_pylist()[-1] if len(record.metrics) else {}
    score = common_score([record])
    scored = score.scored if score and score.scored else TEST
    return told | {
        "method": str(settings.get("method.name", "")),
        "dataset": "" if record.own_task else str(settings.get("dataset.name", "")),
        "path": None if record.own_task else settings.get("dataset.path"),
        "seed": record.seed,
        "rounds": len(record.metrics),
        "of": settings.get("rounds"),
        "state": record.state,
        "accuracy": last.get(scored._replace(score=ACCURACY.name).name),
        "loss": last.get(scored._replace(score=LOSS.name).name),
    }


def _score(run: Mapping[str, Any]) -> str:
    accuracy, loss = run["accuracy"], run["loss"]
    if accuracy is not None:
        return f"{100 * accuracy:.2f}%"
    return f"loss {loss:.4g}" if loss is not None else ""
