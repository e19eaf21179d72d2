"""Tables in files: CSV, TSV, Parquet, Arrow, JSON lines and arrays, read in batches.

Values of text files are read as words, and become numbers in `columns`, where all of a column are.
Text files may be compressed by gzip; of a bomb no more is read than its own size makes plausible.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import DataError
from raysim.workloads.datasets.files.arrays import LARGE_BYTES, MOST_RATIO
from raysim.workloads.datasets.files.source import Batches, Source, check_width, reading

BLOCK_BYTES = 16 * 2**20
"""Bytes of a text file that are parsed at once; a row must be shorter."""
BATCH_ROWS = 65_536
ONE_BUFFER: dict[str, Any] = {"buffer_size": 2**20, "pre_buffer": False}
"""How a Parquet file is read: by so many bytes of a column, not by a whole row group."""
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")
"""Words of text files that stand for a missing value."""
DECIMAL_COMMA = r"^([+-]?\d*),(\d+([eE][+-]?\d+)?)$"
"""Numbers of a table that is separated by semicolons, because its decimal point is a comma."""
BOM = b"\xef\xbb\xbf"
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}
"""Separators of columns: the one that the header has most often, the first of as many."""
QUOTED = re.compile(rb'"[^"]*"')
"""Quoted name in a header; separators in it do not separate."""
ROW = re.compile(r"\brow (\d+)")
"""A row in the errors of Arrow's reader of JSON, counted from 0 in a block of lines."""
LINES = (".jsonl", ".ndjson")
JSON = ".json"
MARKS = {("", "["), ("[", "]"), ("}", ","), ("}", "]")}
"""Marks of an array, each after the mark before it: none, "[" or the end of an object."""
_NO_BLANK = re.compile(r"[^ \t\r\n]|\Z")
_DECODER = json.JSONDecoder()
GZIP = ".gz"
ARROW = (".arrow", ".feather", ".ipc")
TEXTS = (*SEPARATORS, *LINES, JSON)
SUFFIXES = (*TEXTS, *(end + GZIP for end in TEXTS), *ARROW, ".parquet")
"""Ends of the names of tables."""


def suffix_of(path: Path) -> str:
    """Return the end of a file's name that tells its format: `.csv`, `.csv.gz`."""
    end = path.suffix.lower()
    return Path(path.stem).suffix.lower() + end if end == GZIP else end


def first_mark(path: Path) -> str:
    """Return the first character of a JSON file that is no blank; empty if it has none."""
    with reading(path, "a text file"):
        text = next(_blocks(path), b"").decode("utf-8-sig", "replace").strip()
    return text[:1]


def table(paths: Sequence[Path], texts: frozenset[str] = frozenset()) -> Source:
    """Return the table in one or several files of one format and the same columns.

    Args:
        paths: The files.
        texts: Columns whose cells are taken as they stand; an empty cell is missing.

    Raises:
        DataError: a file is damaged, or its columns differ from the first file's.
    """
    if strange := [path for path in paths if not path.is_file()]:
        raise DataError(f"{strange[0]}: is no file")
    sources = [_table(path, texts) for path in paths]
    first = sources[0]
    for source in sources[1:]:
        if {*source.names} != {*first.names}:
            other = sorted({*source.names} ^ {*first.names})[0]
            raise DataError(f"{source.path}: column {other!r} is not in each file of the folder")

    def read(names: tuple[str, ...]) -> Batches:
        for part in sources:
            yield from part.read(names)

    return Source(first.path, first.names, read, tuple(paths))


def _table(path: Path, texts: frozenset[str]) -> Source:
    suffix = suffix_of(path).removesuffix(GZIP)
    if suffix in SEPARATORS:
        return _separated(path, SEPARATORS[suffix], texts)
    if suffix in (*LINES, JSON):
        return _json_lines(path)
    return _parquet(path) if suffix == ".parquet" else _arrow(path)


def _separated(path: Path, separators: str, texts: frozenset[str]) -> Source:
    from pyarrow import csv

    separator = _separator(path, separators)
    blocks = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with (
        reading(path, "a table with a header"),
        _opened(path) as file,
        csv.open_csv(file, blocks, parse) as reader,
    ):
        stored = tuple(reader.schema.names)
    names = tuple(name.strip() for name in stored)

    def read(wanted: tuple[str, ...]) -> Batches:
        missing = MISSING if texts.isdisjoint(wanted) else ("",)
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(stored, pa.string()),
            include_columns=[stored[names.index(name)] for name in wanted],
            strings_can_be_null=True,
            null_values=missing,
        )
        with (
            reading(path, "a table in UTF-8"),
            _opened(path) as file,
            csv.open_csv(file, blocks, parse, convert) as reader,
        ):
            for batch in reader:
                columns = [
                    column if name in texts else _cleaned(column, separator, missing)
                    for name, column in zip(wanted, batch.columns, strict=True)
                ]
                yield pa.record_batch(columns, names=[*wanted])

    return Source(path, names, read, (path,))


def _cleaned(words: pa.Array, separator: str, found: Sequence[str]) -> pa.Array:
    """Return a column's words without outer blanks, null where missing.

    Args:
        words: The column.
        separator: Separator of columns.
        found: Words that the reader has found to stand for a missing value.
    """
    cleaned = pc.utf8_trim_whitespace(words)
    if separator == ";":
        cleaned = pc.replace_substring_regex(cleaned, DECIMAL_COMMA, r"\1.\2")
    if found == MISSING and cleaned.equals(words):
        return words
    return pc.if_else(pc.is_in(cleaned, pa.array(MISSING)), pa.scalar(None, pa.string()), cleaned)


def _opened(path: Path) -> pa.NativeFile:
    """Return the bytes of a text file, decompressed."""
    compression = "gzip" if path.suffix.lower() == GZIP else None
    return pa.input_stream(str(path), compression=compression)


def _separator(path: Path, separators: str) -> str:
    """Return the separator of columns; check the header's length, and that no byte is NUL."""
    separator = ""
    with reading(path, "a text file"):
        for block in _blocks(path):
            if not separator:
                line = block.split(b"\n", 1)[0].split(b"\r", 1)[0].removeprefix(BOM)
                bare = QUOTED.sub(b"", line)
                separator = max(separators, key=lambda mark: bare.count(mark.encode()))
                check_width(path, line.count(separator.encode()) + 1)
                if not line.strip():
                    raise DataError(f"{path}: its first line is empty; must name the columns")
            if b"\0" in block:
                raise DataError(
                    f"{path}: has NUL bytes; must be text in UTF-8 (UTF-16 is not read)"
                )
    if not separator:
        raise DataError(f"{path}: is empty; must have a header and rows")
    return separator


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a text file, decompressed, in blocks.

    Raises:
        DataError: it is a bomb.
    """
    size, done = path.stat().st_size, 0
    with _opened(path) as file:
        while block := file.read(BLOCK_BYTES):
            if (done := done + len(block)) > max(LARGE_BYTES, MOST_RATIO * size):
                raise DataError(
                    f"{path}: has {size} bytes and {done} or more decompressed; at most"
                    f" {MOST_RATIO} times as many are read: decompress it"
                )
            yield block


def _parquet(path: Path) -> Source:
    from pyarrow import parquet

    with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
        names = tuple(file.schema_arrow.names)

    def read(wanted: tuple[str, ...]) -> Batches:
        with reading(path, "Parquet"), parquet.ParquetFile(path, **ONE_BUFFER) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[*wanted]):
                yield _with_strings(batch.select([*wanted]))

    return Source(path, names, read, (path,))


def _with_strings(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with strings in place of views of them, which few functions of Arrow take."""
    for place, field in enumerate(batch.schema):
        if pa.types.is_string_view(field.type):
            words = batch.column(place).cast(pa.string())
            batch = batch.set_column(place, field.name, words)
    return batch


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
                    yield _with_strings(chosen.slice(start, BATCH_ROWS))

    return Source(path, names, read, (path,))


def _json_lines(path: Path) -> Source:
    names: dict[str, None] = {}
    for parsed in _parsed_lines(path):
        names |= dict.fromkeys(parsed.column_names)
        check_width(path, len(names))
    if not names:
        raise DataError(f"{path}: is empty; must have objects")

    def read(wanted: tuple[str, ...]) -> Batches:
        for parsed in _parsed_lines(path):
            columns: dict[str, Any] = {
                name: parsed[name] if name in parsed.column_names else pa.nulls(len(parsed))
                for name in wanted
            }
            yield from pa.table(columns).combine_chunks().to_batches()

    return Source(path, tuple(names), read, (path,))


def _parsed_lines(path: Path) -> Iterator[pa.Table]:
    """Yield the objects of a file, in blocks."""
    is_array, rows = suffix_of(path).removesuffix(GZIP) == JSON, 0
    with reading(path, "JSON" if is_array else "JSON lines", RecursionError):
        for lines in _elements(path) if is_array else _lines(path):
            if lines.strip():
                yield (parsed := _parsed(lines, rows))
                rows += len(parsed)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield whole lines, in blocks; Arrow skips a byte-order mark."""
    rest = b""
    for block in _blocks(path):
        whole, _, rest = (rest + block).rpartition(b"\n")
        yield whole
        if len(rest) > BLOCK_BYTES:
            raise DataError(f"{path}: a line is longer than {BLOCK_BYTES} bytes")
    yield rest


def _elements(path: Path) -> Iterator[bytes]:
    """Yield the objects of an array as lines, in blocks.

    Raises:
        DataError: the file has no array of objects.
        ValueError: it is no JSON.
    """
    decode, text = codecs.getincrementaldecoder("utf-8-sig")().decode, ""
    before, objects = "", 0
    for block in chain(_blocks(path), [b""]):
        text += decode(block, not block)
        at, lines = 0, []
        while (at := _NO_BLANK.search(text, at).start()) < len(text):  # type: ignore[union-attr]
            mark = text[at]
            if (before, mark) in MARKS:
                before, at = mark, at + 1
                continue
            if before not in ("[", ","):
                raise _no_array(path, mark, before)
            if mark != "{":
                raise DataError(f"{path}: value {objects + 1} of its array must be an object")
            try:
                _, end = _DECODER.raw_decode(text, at)
            except json.JSONDecodeError as error:
                if block and len(text) - at <= BLOCK_BYTES:
                    break  # the rest of the object is in the next block
                raise ValueError(f"object {objects + 1}: {error.msg}") from error
            lines.append(text[at:end].replace("\n", " ").replace("\r", " "))
            before, at, objects = "}", end, objects + 1
        text = text[at:]
        yield "\n".join(lines).encode()
    if not before:
        raise DataError(f"{path}: is empty; must have objects")
    if before != "]":
        raise ValueError("its array has no end")


def _no_array(path: Path, mark: str, before: str) -> Exception:
    if before:
        return ValueError(f"{mark!r} follows {before!r}")
    return DataError(
        f"{path}: holds {'an object' if mark == '{' else 'no array'}; data is an array of objects;"
        " a file with an object in each line is called .jsonl"
    )


def _parsed(text: bytes, rows: int) -> pa.Table:
    """Return the objects of lines of text after so many rows, with dates as the words they are."""
    from pyarrow import json as arrow_json

    blocks = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(text), blocks)
    except pa.ArrowInvalid as error:
        of_file = ROW.sub(lambda match: f"row {rows + int(match[1]) + 1}", str(error))
        raise ValueError(of_file) from error
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dates:
        return table
    words = pa.schema([(name, pa.string()) for name in dates])
    typed = arrow_json.ParseOptions(explicit_schema=words)
    return arrow_json.read_json(io.BytesIO(text), blocks, typed)
