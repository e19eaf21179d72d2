"""Pictures and tables of the sweeps on the pages about robustness, privacy and compression.

Usage: python -m tests.benchmarks.pictures robustness|privacy|compression FOLDER OUT.png

FOLDER is that of `raysim sweep tests/benchmarks/NAME.toml --out FOLDER`. Prints the table in
Markdown. Robustness: accuracy of each aggregation under each attack at the strength that is worst
for it, at which all runs diverge, or else the least of the means over seeds. Privacy: accuracy by
epsilon. Compression: accuracy by bytes that the clients of a run sent, and at equal bytes, the last
one measured before, without runs that diverged; means over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from raysim.results.runs import read_run

NO_ATTACK = "none"
EQUAL_MB = 10
"""Megabytes sent up at which compressors are compared: a round without one."""
Values = npt.NDArray[np.float64]
Cells = Mapping[tuple[str, str, str], dict[str, Any]]
"""Cells of a table by row, column and metric."""


def cells_of(folder: Path) -> Cells:
    rows = pq.read_table(folder / "table.parquet").to_pylist()
    return {(each["row"], each["column"], each["metric"]): each for each in rows}


def names_of(cells: Cells, place: int) -> list[str]:
    return [*dict.fromkeys(key[place] for key in cells)]


def percent(cell: Mapping[str, Any]) -> str:
    if cell["diverged"] == cell["seeds"]:
        return "diverges"
    deviation = "" if cell["deviation"] is None else f" ± {100 * cell['deviation']:.1f}"
    return "-" if cell["mean"] is None else f"{100 * cell['mean']:.1f}{deviation}"


def score(cell: Mapping[str, Any]) -> float:
    """Return a cell's accuracy in percent, 0 where all runs diverge."""
    return 0.0 if cell["diverged"] == cell["seeds"] else 100 * (cell["mean"] or np.nan)


def print_table(head: list[str], rows: Mapping[str, list[str]]) -> None:
    print(f"| | {' | '.join(head)} |\n|{'---|' * (len(head) + 1)}")
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


def robustness(folder: Path) -> Figure:
    """Draw a cell for each aggregation and attack; print them, with the strength that was worst."""
    cells = cells_of(folder)
    strengths: dict[str, list[str]] = {}
    for column in names_of(cells, 1):
        name = column if column.startswith(NO_ATTACK) else column.partition(",")[0]
        strengths.setdefault(name, []).append(column)
    metric, rows = names_of(cells, 2)[0], names_of(cells, 0)
    worst = {
        (row, attack): min(
            (cells[row, column, metric] for column in columns if (row, column, metric) in cells),
            key=score,
        )
        for row in rows
        for attack, columns in strengths.items()
    }

    def text_of(row: str, attack: str) -> str:
        cell = worst[row, attack]
        strength = "" if len(strengths[attack]) == 1 else cell["column"].partition(", ")[2]
        return percent(cell) + (strength and f" ({strength})")

    clean = [name for name in strengths if name.startswith(NO_ATTACK)]
    for head in (clean, [name for name in strengths if name not in clean]):
        print_table(head, {row: [text_of(row, attack) for attack in head] for row in rows})
        print()
    shown = np.array([[score(worst[row, attack]) for attack in strengths] for row in rows])
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shown, cmap="cividis", vmin=10, vmax=100, aspect="auto")
    for place, value in np.ndenumerate(shown):
        colour = "white" if value < 60 else "black"
        text = f"{value:.0f}" if value else "div."
        axes.text(place[1], place[0], text, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(strengths)), [*strengths], rotation=35, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.axvline(len(clean) - 0.5, color="white", linewidth=4)
    axes.set(xlabel="attack, at the worst strength tried (div.: diverges)", ylabel="aggregation")
    figure.colorbar(image, label="test accuracy [%]")
    return figure


def privacy(folder: Path) -> Figure:
    """Draw the accuracy by epsilon, beside lines of the rows without noise."""
    cells = cells_of(folder)
    table = {row: cell for (row, _, _), cell in cells.items()}
    print_table(["test accuracy, %"], {row: [percent(cell)] for row, cell in table.items()})
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    lines: dict[str, dict[float, dict[str, Any]]] = {}
    for row, cell in table.items():
        if "epsilon" in row:
            name, _, epsilon = row.rpartition("epsilon ")
            lines.setdefault(name.rstrip(", ") or "clip and noise", {})[float(epsilon)] = cell
    for (name, line), marker in zip(lines.items(), "os", strict=True):
        means, deviations = ([100 * c[key] for c in line.values()] for key in ("mean", "deviation"))
        axes.errorbar([*line], means, deviations, marker=marker, capsize=3, label=name)
    exact = [row for row in table if "epsilon" not in row]
    for row, style in zip(exact, ("--", ":"), strict=True):
        axes.axhline(100 * table[row]["mean"], linestyle=style, color="0.3", label=row)
    axes.set(xscale="log", xlabel="epsilon", ylabel="test accuracy [%]")
    ticks = sorted({epsilon for line in lines.values() for epsilon in line})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def compression(folder: Path) -> Figure:
    """Draw the mean accuracy over seeds by megabytes sent up; print all metrics."""
    found = cells_of(folder)
    metrics, rows = names_of(found, 2), names_of(found, 0)
    cells = {(row, metric): cell for (row, _, metric), cell in found.items()}
    column = names_of(found, 1)[0]
    lines = {row: by_bytes(folder, f"{row}, {column}") for row in rows}

    def shown(row: str, metric: str) -> str:
        cell = cells[row, metric]
        scale = 1e6 if metric.startswith("bytes") else 1
        some = "" if cell["n"] == cell["seeds"] else f" ({cell['n']} of {cell['seeds']})"
        if cell["mean"] is None or metric.endswith("(test_accuracy)"):
            return percent(cell) + some * (cell["n"] > 0)
        deviation = "" if cell["deviation"] is None else f" ± {cell['deviation'] / scale:.2g}"
        return f"{cell['mean'] / scale:.3g}{deviation}{some}"

    def at_equal(row: str) -> str:
        sent, accuracy = lines[row]
        if not (before := (sent <= EQUAL_MB).nonzero()[0]).size:
            return "-"
        reached = accuracy[before[-1]]
        return f"{reached.mean():.1f} ± {reached.std(ddof=1):.1f}"

    head = [*metrics, f"accuracy at {EQUAL_MB} MB, %"]
    print_table(head, {r: [*(shown(r, each) for each in metrics), at_equal(r)] for r in rows})
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    for place, (row, (sent, accuracy)) in enumerate(lines.items()):
        colour, style = f"C{place}" if place < 10 else "black", ("-", "--", ":")[place % 3]
        axes.plot(sent, accuracy.mean(axis=1), color=colour, linestyle=style, label=row)
    axes.axvline(EQUAL_MB, color="0.7", linewidth=1, label=f"{EQUAL_MB} MB")
    axes.set(xscale="log", xlabel="MB sent up, all clients", ylabel="test accuracy [%]")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def by_bytes(folder: Path, cell: str) -> tuple[Values, Values]:
    """Return the MB that a cell's clients have sent by each evaluation, and its accuracy in %.

    Returns:
        Their means over seeds [evaluations], and accuracies [evaluations, seeds], of finished runs.
    """
    digest = json.loads((folder / "table.json").read_text())["runs"][cell]
    runs = (read_run(run) for run in sorted((folder / "runs" / digest).iterdir()))
    found = [run for run in runs if run.state == "finished"]
    sent = [dict(run.points("total_bytes_up")) for run in found]
    points = [dict(run.points("test_accuracy")) for run in found]
    numbers = sorted(set.intersection(*map(set, points)))
    return (
        np.array([np.mean([each[n] for each in sent]) / 1e6 for n in numbers]),
        100 * np.array([[each[n] for each in points] for n in numbers]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    drawings = {each.__name__: each for each in (robustness, privacy, compression)}
    parser.add_argument("name", choices=[*drawings])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    drawings[arguments.name](arguments.folder).savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
