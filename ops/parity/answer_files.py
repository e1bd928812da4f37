"""Samples of the answers in files of JSONL and Parquet, in bounded memory."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.ops.parity.answer_places import AnswerPlace, read_json
from penstock.ops.parity.keyed_sample import KeyedSample, SampledRecord
from penstock.ops.parity.recorded_answers import NotComparable
from penstock.producer.files.arrow_rows import objects_of
from penstock.producer.files.jsonl_reader import MAX_LINE_BYTES, numbered_lines
from penstock.producer.files.parquet_reader import count_parquet, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

Done = Callable[[int, int], None]  # what is read of a topic or file, and what there is in all, in one unit


class _Row(NamedTuple):
    place: str
    number: int  # from 1
    read: Callable[[], Mapping[str, Any]]  # the object; raises NotComparable
    done: int
    total: int


def sample_file(path: Path, place: AnswerPlace, key_column: str | None, size: int, done: Done) -> KeyedSample:
    """Read a file once. Raises NotComparable and TableError for one that cannot be read.

    Args:
        key_column: the column or key by which rows are paired; None: the number of the row.
        size: most keys in the sample.
    """
    sample = KeyedSample(str(path), size)
    try:
        for row in _parquet_rows(path) if path.suffix.lower() == ".parquet" else _json_rows(path):
            sample.offer(_key(row, key_column), partial(_record, row, place))
            done(row.done, row.total)
    except OSError as error:
        raise NotComparable(f"{path} cannot be read: {error.strerror or error}.") from error
    return sample


def _key(row: _Row, column: str | None) -> bytes:
    if column is None:
        return b"row %d" % row.number
    try:
        fields = row.read()
    except NotComparable as error:
        raise NotComparable(f"{row.place} {error}, so that it has no {column!r}.") from error
    if fields.get(column) is None:
        raise NotComparable(f"{row.place} has no {column!r}, by which rows are paired. It has: {', '.join(fields)}.")
    return b"key " + str(fields[column]).encode(errors="surrogatepass")


def _record(row: _Row, place: AnswerPlace) -> SampledRecord:
    try:
        return SampledRecord(row.place, *place.read(row.read()))
    except NotComparable as error:
        return SampledRecord(row.place, error.kept())


def _json_rows(path: Path) -> Iterator[_Row]:
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        for number, line in numbered_lines(file):
            done += len(line or b"")
            yield _Row(f"{path}, line {number:,}", number, partial(_json_object, line), done, total)


def _json_object(line: bytes | None) -> Mapping[str, Any]:
    if line is None:
        raise NotComparable(f"has more than {MAX_LINE_BYTES:,} bytes")
    document = read_json(line)
    if not isinstance(document, dict):
        raise NotComparable("holds no JSON object")
    return document


def _parquet_rows(path: Path) -> Iterator[_Row]:
    content = read_parquet(path, ())
    next(content)  # the header
    total, number = count_parquet(path), 0
    for block in content:
        for index in range(block.source.num_rows):
            number += 1
            yield _Row(f"{path}, row {number:,}", number, partial(_arrow_object, block.source, index), number, total)


def _arrow_object(rows: "pa.RecordBatch", index: int) -> Mapping[str, Any]:
    [row] = objects_of(rows.slice(index, 1))
    return row
