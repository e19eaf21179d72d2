"""Tables in files: CSV, TSV, Parquet, Arrow and JSON lines, read in batches.

Values of text files are read as words, and become numbers in `columns`, where all of a column are.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysim.core.errors import DataError
from raysim.workloads.datasets.files.source import Batches, Source, check_width, reading

BLOCK_BYTES = 16 * 2**20
"""Bytes of a text file that are parsed at once; a row must be shorter."""
BATCH_ROWS = 65_536
ONE_BUFFER: dict[str, Any] = {"buffer_size": 2**20, "pre_buffer": False}
"""How a Parquet file is read: by so many bytes of a column, not by a whole row group."""
MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Words of text files that stand for a missing value."""
BOM = b"\xef\xbb\xbf"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")
ARROW = (".arrow", ".feather", ".ipc")
SUFFIXES = (*SEPARATORS, *LINES, *ARROW, ".parquet")
"""Ends of the names of tables."""


def table(paths: Sequence[Path]) -> Source:
    """Return the table in one or several files of one format and the same columns.

    Raises:
        DataError: a file is damaged, or its columns differ from those of the first.
    """
    sources = [_table(path) for path in paths]
    first = sources[0]
    for each in sources[1:]:
        if {*each.names} != {*first.names}:
            other = sorted({*each.names} ^ {*first.names})[0]
            raise DataError(f"{each.path}: column {other!r} is not in each file of the folder")

    def read(names: tuple[str, ...]) -> Batches:
        for each in sources:
            yield from each.read(names)

    return Source(first.path, first.names, read, tuple(paths))


def _table(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix in SEPARATORS:
        return _separated(path, SEPARATORS[suffix])
    if suffix in LINES:
        return _json_lines(path)
    return _parquet(path) if suffix == ".parquet" else _arrow(path)


def _separated(path: Path, separator: str) -> Source:
    from pyarrow import csv

    _check_text(path, separator.encode())
    blocks = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with reading(path, "a table with a header"), csv.open_csv(path, blocks, parse) as reader:
        names = tuple(reader.schema.names)

    def read(wanted: tuple[str, ...]) -> Batches:
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=wanted,
            strings_can_be_null=True,
            null_values=MISSING,
        )
        with reading(path, "a table"), csv.open_csv(path, blocks, parse, convert) as reader:
            yield from reader

    return Source(path, names, read, (path,))


def _check_text(path: Path, separator: bytes) -> None:
    """Check the header's length, and that the file has no NUL bytes, in blocks."""
    header = True
    with reading(path, "a text file"), path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            if header:
                line = block.split(b"\n", 1)[0].split(b"\r", 1)[0]
                check_width(path, line.count(separator) + 1)
                if not line.removeprefix(BOM).strip():
                    raise DataError(f"{path}: its first line is empty; must name the columns")
            if b"\0" in block:
                raise DataError(
                    f"{path}: has NUL bytes; must be text in UTF-8 (UTF-16 is not read)"
                )
            header = False
    if header:
        raise DataError(f"{path}: is empty; must have a header and rows")


def _parquet(path: Path) -> Source:
    from pyarrow import parquet

    with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
        names = tuple(file.schema_arrow.names)

    def read(wanted: tuple[str, ...]) -> Batches:
        with reading(path, "Parquet"), parquet.ParquetFile(path, **ONE_BUFFER) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[*wanted]):
                yield batch.select([*wanted])

    return Source(path, names, read, (path,))


def _arrow(path: Path) -> Source:
    def opened() -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        mapped = pa.memory_map(str(path))
        try:
            file = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            stream = pa.ipc.open_stream(mapped)
            return stream.schema, iter(stream)
        return file.schema, map(file.get_batch, range(file.num_record_batches))

    with reading(path, "Arrow"):
        names = tuple(opened()[0].names)

    def read(wanted: tuple[str, ...]) -> Batches:
        with reading(path, "Arrow"):
            for batch in opened()[1]:
                chosen = batch.select([*wanted])
                chosen.validate(full=True)  # an offset beyond its buffer would end the process
                for start in range(0, len(chosen), BATCH_ROWS):
                    yield chosen.slice(start, BATCH_ROWS)

    return Source(path, names, read, (path,))


def _json_lines(path: Path) -> Source:
    names: dict[str, None] = {}
    for parsed in _parsed_lines(path):
        names |= dict.fromkeys(parsed.column_names)
        check_width(path, len(names))
    if not names:
        raise DataError(f"{path}: is empty; must have an object in each line")

    def read(wanted: tuple[str, ...]) -> Batches:
        for parsed in _parsed_lines(path):
            columns: dict[str, Any] = {
                name: parsed[name] if name in parsed.column_names else pa.nulls(len(parsed))
                for name in wanted
            }
            yield from pa.table(columns).combine_chunks().to_batches()

    return Source(path, tuple(names), read, (path,))


def _parsed_lines(path: Path) -> Iterator[pa.Table]:
    """Yield the objects of whole lines, in blocks."""
    rest, first = b"", True
    with reading(path, "JSON lines"), path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            text = rest + (block.removeprefix(BOM) if first else block)
            whole, _, rest = text.rpartition(b"\n")
            first = False
            if whole.strip():
                yield _parsed(whole)
            if len(rest) > BLOCK_BYTES:
                raise DataError(f"{path}: a line is longer than {BLOCK_BYTES} bytes")
        if rest.strip():
            yield _parsed(rest)


def _parsed(text: bytes) -> pa.Table:
    """Return the objects of lines of text, with dates as the words that they are."""
    from pyarrow import json

    blocks = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    table = json.read_json(io.BytesIO(text), blocks)
    dates = [each.name for each in table.schema if pa.types.is_timestamp(each.type)]
    if not dates:
        return table
    words = json.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in dates]))
    return json.read_json(io.BytesIO(text), blocks, words)
