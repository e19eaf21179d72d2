"""Command `raysim predict`: a trained model's predictions for new data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from raysim.cli.destinations import check_apart, check_file
from raysim.cli.options import RunDir, path_option
from raysim.cli.output import printing
from raysim.user_input.user_modules import leave_out_working_directory

if TYPE_CHECKING:
    import pyarrow as pa

console = Console(emoji=False)
SHOWN_ROWS, SHOWN_COLUMNS = 10, 7
"""Most rows and columns that are printed."""


def predict(
    run_dir: RunDir,
    data: Annotated[
        Path,
        typer.Argument(parser=path_option("DATA"), metavar="DATA", help="a file or folder of rows"),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            parser=path_option("--out"),
            metavar="PATH",
            help="the file (.csv); default: print the first rows",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="client whose own model predicts, by number or name; default: global"),
    ] = None,
) -> None:
    """Predict the target of new rows with a run's model."""
    if out is not None:
        check_file(out, ".csv")
        check_apart(out, data)
    leave_out_working_directory(run_dir)  # before packages try optional imports
    from raysim.facade.predictions import TrainedModel
    from raysim.storage.atomic import replace_file

    listener = printing(console)
    batches = TrainedModel.of(run_dir, client, listener).predictions(data)
    first = next(batches)
    if out is None:
        _print(first.slice(0, SHOWN_ROWS))
        return
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in chain([first], batches):
            rows += len(batch)
            yield batch

    replace_file(out, lambda aside: _write(aside, counted()))
    listener.note(f"{rows} predictions: {out}")


def _write(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    from pyarrow import csv

    first = next(batches)
    options = csv.WriteOptions(quoting_style="needed")
    with csv.CSVWriter(str(path), first.schema, write_options=options) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)


def _print(rows: pa.RecordBatch) -> None:
    """Print rows as a table: the predictions, and of the rows' own columns as many as fit."""
    from rich.table import Table

    from raysim.cli.pages import uncut
    from raysim.facade.predictions import PREDICTION

    names = rows.schema.names
    start = next(n for n, name in enumerate(names) if name.startswith(PREDICTION))
    predicted = names[start:][:SHOWN_COLUMNS]
    own = names[:start][: max(SHOWN_COLUMNS - len(predicted), 1)]
    table = Table(box=None)
    for name in (*own, *predicted):
        table.add_column(name, overflow="fold")
    for row in islice(rows.to_pylist(), SHOWN_ROWS):
        table.add_row(*(_shown(row[name]) for name in (*own, *predicted)))
    console.print(uncut(table, console.width))


def _shown(value: object) -> str:
    from rich.markup import escape

    from raysim.errors import visible

    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else escape(visible(str(value)))
