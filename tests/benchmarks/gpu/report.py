"""RESULTS-GPU.md, written anew as rows come, and its plots, after each job."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.results import DONE, Outcome, Results
from tests.benchmarks.gpu.speed import OVER
from tests.benchmarks.report import heading, line

NAME = "RESULTS-GPU.md"
ROUNDS = 3000
"""Rounds of the published experiment."""
MEBIBYTE = 2**20
SYSTEMS = """\
raysim and the bare loops run torch's deterministic algorithms, as is raysim's default; pfl does
not. All compute fp32 without TF32. Graphs "no" are raysim's runs with no step recorded: each
operation of a step is launched, and all else is as with graphs. Ratios are medians over the sweeps,
with least and greatest; "-" is the system itself, or none to compare with."""
TITLES = {
    "environment": "The machine",
    "bits": "Bits of the model",
    "actors": "Actors that share the GPU",
    "profile": "A round under the profiler",
    "faults": "Faults",
    "evaluation": "Evaluation of 10,000 samples",
    "unequal": "Clients of unequal sizes",
}
"""Titles of the parts whose rows are shown as they are."""


def write(results: Results, out: Path, about: Sequence[str], *, draw: bool = True) -> None:
    """Write tables and plots.

    Args:
        results: What there is so far.
        out: The folder.
        about: The command, and the machine.
        draw: Whether to draw the plots anew; those that are there are shown.
    """
    lines = ["# Results on a GPU", "", *(f"{each}\n" for each in about)]
    compared, counted = results.of("speed", "bf16"), results.of("memory")
    lines += [*tests(results.of("tests", "new-methods", "full-tests")), *speed(compared)]
    lines += [*cell(results.of("cell")), *memory(counted)]
    for part, title in TITLES.items():
        lines += table(title, results.of(part))
    lines += left(results)
    lines += plots(compared, counted, out) if draw else []
    lines += [f"![{path.name}]({path.name})" for path in sorted(out.glob("*.png"))]
    (out / NAME).write_text("\n".join(lines) + "\n")


def plots(compared: Sequence[Outcome], counted: Sequence[Outcome], out: Path) -> list[str]:
    """Draw the plots; return the lines that say why there are none."""
    try:
        from tests.benchmarks.gpu.plots import plot_memory, plot_speed  # matplotlib may be missing

        plot_speed(compared, out)
        plot_memory(counted, out)
    except Exception as error:  # of any kind: the tables are there without them
        return [f"Not drawn: {type(error).__name__}: {' '.join(str(error).split())}", ""]
    return []


def tests(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what came of the tests that need a device."""
    rows = [row for each in outcomes for row in each.rows]
    if not rows:
        return
    counts = Counter(row["outcome"] for row in rows)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    yield from ["## Tests that need a CUDA device", "", f"{said}.", ""]
    bad = [row for row in rows if row["outcome"] != "passed"]
    yield from (f"- {row['outcome']}: `{row['test']}`" for row in bad)
    yield ""


def speed(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table for each comparison."""
    shown = [each for each in outcomes if each.rows]
    if shown:
        yield from ["## Speed", "", SYSTEMS, ""]
    for outcome in shown:
        yield from [f"### {outcome.job}", ""]
        columns = ("workers", "stack", "graphs", "local steps/s", "over one at a time")
        yield heading("system", *columns, "over bare", "over its graph")
        for row in outcome.rows:
            graphs = ("yes" if row["graphs"] else "no") if row["name"] == "raysim" else "-"
            cells = [row["name"], row["workers"], row["stack"], graphs]
            if not row["seconds"]:
                yield failed(cells, row)
                continue
            yield line([*cells, rate(row), *(spread(row[over]) for over in OVER)])
        notes = {note for row in outcome.rows for note in row["notes"]}
        yield from ["", *(f"- note: {note}" for note in sorted(notes)), ""]


def rate(row: Mapping[str, Any]) -> str:
    """Return the median of a system's local steps a second, with least and greatest."""
    rates = [row["steps"] / seconds for seconds in row["seconds"]]
    return f"{statistics.median(rates):.4g} ({min(rates):.4g} to {max(rates):.4g})"


def spread(ratios: Sequence[float]) -> str:
    """Return the median of the sweeps' ratios, with least and greatest; "-" of none."""
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def failed(cells: Sequence[object], row: Mapping[str, Any]) -> str:
    """Return the line of a system without figures."""
    reason = " ".join(row["reason"].split()).replace("|", "/")[:120]
    return line([*cells, reason or "failed; see log.txt", "-", "-"])


def cell(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the table of the published experiment."""
    rows = [row for each in outcomes for row in each.rows]
    if not rows:
        return
    data = "random images of CIFAR-10's shape" if rows[0]["random"] else "CIFAR-10"
    yield from ["## fedmax-cifar10-noniid", "", f"{ROUNDS} rounds in the paper; {data}.", ""]
    yield heading("raysim, inline", "round, s", f"{ROUNDS} rounds, min")
    for row in rows:
        if not (seconds := row["seconds"]):
            yield failed([row["system"]], row)
            continue
        median = statistics.median(seconds)
        shown = f"{median:.4f} ({min(seconds):.4f} to {max(seconds):.4f})"
        yield line([row["system"], shown, f"{ROUNDS * median / 60:.1f}"])
    yield ""


def memory(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the tables of estimated and counted memory."""
    rows = [row for each in outcomes for row in each.rows]
    if not rows:
        return
    yield from ["## Memory of a client in a stack", ""]
    yield "Counted: the most bytes of tensors at a time in two rounds, the recording of a step as a"
    yield from ["CUDA graph and the workspaces of CUDA's libraries among them, over the stack.", ""]
    columns = ("stack", "estimated, MiB", "counted, MiB", "counted / estimated")
    yield heading("network", *columns, "auto", "auto, a quarter of the device")
    for row in rows:
        if "context" in row:
            continue
        cells = [row["network"], row["stack"], f"{row['estimate'] / MEBIBYTE:.1f}"]
        if "counted" in row:
            cells += [f"{row['counted'] / MEBIBYTE:.1f}", f"{row['counted'] / row['estimate']:.2f}"]
            yield line([*cells, row.get("auto", "-"), row.get("auto_of_four", "-")])
        else:
            yield failed(cells, row)
    for row in rows:
        if "context" in row:
            own, room = row["context"] / MEBIBYTE, row["left_for_it"] / MEBIBYTE
            yield f"\nBeside tensors the process took {own:.0f} MiB; {room:.0f} are left for it."
    yield ""


def table(title: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table for each job of a part: a column for each name in its rows but the notes."""
    shown = [each for each in outcomes if each.rows]
    if shown:
        yield from [f"## {title}", ""]
    for outcome in shown:
        names = [*dict.fromkeys(name for row in outcome.rows for name in row if name != "notes")]
        yield heading(*names)
        yield from (line([text(row.get(name, "-")) for name in names]) for row in outcome.rows)
        notes = {note: None for row in outcome.rows for note in row.get("notes", ())}
        yield from ["", *(f"- note: {' '.join(note.split())}" for note in notes), ""]


def text(value: object) -> str:
    """Return the text of a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "-"
    return " ".join(str(value).split()).replace("|", "/")


def left(results: Results) -> Iterator[str]:
    """Yield what was not measured, and why."""
    missing = [each for each in results.outcomes.values() if each.state != DONE]
    if missing:
        yield from ["## Not measured, or not to the end", ""]
        yield from (f"- {each.job}: {each.state}" for each in missing)
        yield from ["", "The same command goes on with these.", ""]
