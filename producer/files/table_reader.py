"""Reader of one or several tables: blocks of rows, in bounded memory. See `penstock.producer.files`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Self

from penstock.producer.errors import PenstockError
from penstock.producer.files.csv_reader import count_csv, read_csv
from penstock.producer.files.encoders import ArrowEncoder, CsvEncoder, JsonlEncoder, TableEncoder
from penstock.producer.files.hive_partitions import Partition, read_partitions
from penstock.producer.files.jsonl_reader import count_jsonl, read_jsonl
from penstock.producer.files.object_path import ObjectPath, file_path
from penstock.producer.files.openai_encoder import OpenAiEncoder
from penstock.producer.files.openai_reader import read_openai
from penstock.producer.files.parquet_reader import count_parquet, read_parquet
from penstock.producer.files.row_blocks import Block, Content, Header, TableError
from penstock.producer.files.seen_ids import SeenIds
from penstock.producer.files.standard_streams import STANDARD, input_shown

_COUNT_LIMIT_BYTES = 1 << 30  # larger text files are not counted before they are read


_Read = Callable[[Path], Content]


class _Format(NamedTuple):
    # Of files with these columns of texts, some of them of tables; see `open_reader`.
    reading: Callable[[Sequence[Path], Sequence[str], Mapping[Path, Partition]], _Read]
    count: Callable[[Path], int]
    encoder: type[TableEncoder]


OPENAI = "openai"  # a format that no extension says: lines of OpenAI's batch files, in .jsonl files


def _reading_parquet(paths: Sequence[Path], texts: Sequence[str], of_tables: Mapping[Path, Partition]) -> _Read:
    partitions = {**read_partitions([path for path in paths if path not in of_tables]), **of_tables}
    return lambda path: read_parquet(path, texts, partitions.get(path, {}))


# By extension.
FORMATS = {
    ".csv": _Format(lambda _, texts, __: lambda path: read_csv(path, texts), count_csv, CsvEncoder),
    ".jsonl": _Format(lambda _, texts, __: lambda path: read_jsonl(path, texts), count_jsonl, JsonlEncoder),
    ".parquet": _Format(_reading_parquet, count_parquet, ArrowEncoder),
}


class Reader:
    """Open tables: a context manager, and an iterable of their blocks that can be used once."""

    def __init__(self, paths: Sequence[Path], texts: Sequence[str], content: Content) -> None:
        """Called by `open_reader`."""
        header: Header = next(content)
        first = next(content, None)
        if first is None and header[0] is None:
            raise TableError(f"{input_shown(paths[0]) if len(paths) == 1 else 'The input'} has no rows.")
        self.paths = paths
        self.texts = texts  # the columns of the texts
        self.columns, self.schema = header
        self._first = () if first is None else (first,)
        self._content = content
        self._skipped = 0
        self._num_bytes = 0 if STANDARD in paths else _num_bytes(paths)
        self._rows_read = self._bytes_read = 0

    def skip(self, rows: int) -> None:
        """Leave out the first rows. Called before iteration, which reads over them."""
        self._skipped = rows

    @property
    def estimated_rows(self) -> int | None:
        """Rows of the input, from the bytes that the rows so far take. None for standard input and for Parquet.

        Called from any thread while another iterates.
        """
        if not self._bytes_read or not self._num_bytes:
            return None
        return max(self._rows_read, round(self._rows_read * self._num_bytes / self._bytes_read))

    def __iter__(self) -> Iterator[Block]:
        skip = self._skipped
        for block in itertools.chain(self._first, self._content):
            self._rows_read += len(block.texts)
            self._bytes_read = block.end_byte
            if skip >= len(block.texts):
                skip -= len(block.texts)
                continue
            yield block.after(skip) if skip else block
            skip = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()


def open_reader(
    paths: str | Path | Sequence[Path],
    texts: str | Sequence[str],
    *,
    standard_format: str | None = None,
    model: str = "",
    of_tables: Mapping[Path, Partition] | None = None,
) -> Reader:
    """Open tables of one format and with the same columns.

    Args:
        texts: the column of the texts, or the two columns of pairs; of no effect with OPENAI.
        standard_format: extension that standard input, the path `-`, is read as; or OPENAI, of files too.
        model: the served name, which lines of OPENAI must have.
        of_tables: files of tables that have a log, with the columns that they are without; see `TableFiles`.

    Raises:
        TableError: unknown file, format or column, other columns than the first file's, or neither rows nor columns.
            Iteration raises it for a damaged file.
    """
    paths = [_path(paths)] if isinstance(paths, str | Path) else paths
    texts = (texts,) if isinstance(texts, str) else texts
    formats = {format_of(path, standard_format) for path in paths}
    if len(formats) > 1:
        raise TableError(f"The files are of several formats: {', '.join(sorted(formats))}. Give those of one.")
    (extension,) = formats
    if STANDARD in paths and (len(paths) > 1 or extension == ".parquet"):
        raise TableError("Standard input is read alone, as csv or jsonl.")
    for path in paths:
        if path != STANDARD and path.exists() and not path.is_file() and not path.is_dir():
            raise TableError(
                f"{path} is no file that can be read twice. Pipe csv or jsonl to standard input (-, with --format)."
            )
    try:
        if extension == OPENAI:
            return Reader(paths, (), _openai_content(paths, model))
        return Reader(paths, texts, _content(paths, FORMATS[extension].reading(paths, texts, of_tables or {})))
    except OSError as error:
        raise TableError(f"{error.filename or paths[0]} cannot be read: {error.strerror or error}.") from error


def count_rows(paths: str | Path | Sequence[Path]) -> int | None:
    """Number of rows, for a progress bar; None for standard input, and for text that would take long to read twice."""
    paths = [_path(paths)] if isinstance(paths, str | Path) else paths
    if STANDARD in paths:
        return None
    is_read_twice = any(isinstance(path, ObjectPath) for path in paths)  # if it is counted
    if paths[0].suffix.lower() != ".parquet" and (is_read_twice or _num_bytes(paths) > _COUNT_LIMIT_BYTES):
        return None
    count = FORMATS[format_of(paths[0])].count
    return sum(count(path) for path in paths)


def _path(given: str | Path) -> Path:
    return file_path(given) if isinstance(given, str) else given


def _num_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def format_of(path: Path, standard_format: str | None = None) -> str:
    """The extension that says a file's format, or OPENAI.

    Raises TableError for another extension, and for one that needs an extra.
    """
    extension = path.suffix.lower()
    if standard_format == OPENAI and path != STANDARD and extension != ".jsonl":
        raise TableError(f"{path}: OpenAI's batch format is JSON Lines; the extension must be .jsonl.")
    if standard_format == OPENAI or (path == STANDARD and standard_format is not None):
        return standard_format
    if path == STANDARD:
        raise TableError("Standard input and output have no extension: give --format.")
    if extension not in FORMATS:
        raise TableError(f"{path}: the extension must be one of {', '.join(FORMATS)}.")
    if extension == ".parquet" and find_spec("pyarrow") is None:
        raise TableError(f"{path}: Parquet needs pyarrow, which is not installed: pip install 'penstock[parquet]'")
    return extension


def encoder_of(path: Path, standard_format: str | None) -> type[TableEncoder]:
    """The encoder of an output. Raises TableError as `format_of`."""
    extension = format_of(path, standard_format)
    return OpenAiEncoder if extension == OPENAI else FORMATS[extension].encoder


def _openai_content(paths: Sequence[Path], model: str) -> Content:
    with SeenIds() as seen:
        yield from _content(paths, partial(read_openai, model=model, seen=seen))


def _content(paths: Sequence[Path], read: _Read) -> Content:
    """The header, and then the blocks of one file after the other. Headers are compared before the first row."""
    if len(paths) == 1:
        yield from read(paths[0])
        return
    first = _header(paths[0], read)
    for path in paths[1:]:
        if not _are_equal(first, _header(path, read)):
            raise TableError(f"{path} has other columns, or columns of other types, than {paths[0]}.")
    yield first
    before = 0
    for path in paths:
        with closing(read(path)) as content:
            next(content)
            for block in content:
                yield _naming(path, block, before)
        before += path.stat().st_size


def _header(path: Path, read: _Read) -> Header:
    with closing(read(path)) as content:
        header: Header = next(content)
    return header


def _are_equal(one: Header, other: Header) -> bool:
    are_names_equal = one[0] is other[0] or list(one[0] or ()) == list(other[0] or ())
    return are_names_equal and (one[1] is None or one[1].equals(other[1]))


def _naming(path: Path, block: Block, before: int) -> Block:
    """The block, with the file's name in the errors of its rows, and `before` bytes of earlier files."""
    named = [
        type(text)(f"{path.name}: {text.message}") if isinstance(text, PenstockError) else text for text in block.texts
    ]
    return replace(block, texts=named, end_byte=block.end_byte and before + block.end_byte)
