"""Join the parts of a job into its output, each as soon as it is finished."""

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.producer.files.durable import give_up, sync
from penstock.producer.files.encoders import ArrowEncoder, TableEncoder

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second
    from pyarrow.parquet import ParquetWriter

# Row groups of a size that suits readers of Parquet. Their bounds depend on the rows alone.
ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 64 << 20


_Local = Callable[[Path], contextlib.AbstractContextManager[Path]]


class JoinedFile:
    """The output of one encoder's parts, in bounded memory. Called from one thread at a time.

    Parts are joined while later ones are computed, so that a job does not end with a pass over all of its rows.
    """

    def __init__(self, path: Path, encoder: TableEncoder, local: _Local = contextlib.nullcontext) -> None:
        """Parts that an earlier run joined are joined again: nothing is opened before the first call.

        Args:
            local: makes a local file of a part.
        """
        self._path = path
        self._local = local
        self._encoder = encoder
        self._num_joined = 0
        self._lengths: frozenset[int] = frozenset()
        self._file: IO[bytes] | None = None
        self._sink: _Sink | None = None

    def join(self, parts: Sequence[Path], vector_lengths: set[int]) -> None:
        """Join those of the finished parts that are not joined yet.

        Args:
            parts: all that are finished; each call has those of the one before, and maybe more.
            vector_lengths: those of their vectors. In Parquet, vectors of one length are lists of fixed size. If they
                turn out to differ, the file is begun anew.
        """
        if self._sink is None or self._lengths != vector_lengths:
            self.close()
            self._lengths = frozenset(vector_lengths)
            self._file = self._path.open("wb")
            if isinstance(self._encoder, ArrowEncoder):
                self._sink = _ParquetSink(self._encoder, self._lengths, self._file)
            else:
                self._sink = _Sink(self._encoder.header, self._file)
            self._num_joined = 0
        for part in parts[self._num_joined :]:
            with self._local(part) as file:
                self._sink.add(file)
            self._num_joined += 1

    def finish(self) -> None:
        """Complete the file, on the disk."""
        if self._sink is None or self._file is None:
            raise RuntimeError("A file of no parts was finished. This is a bug.")
        self._sink.finish()
        sync(self._file)
        self.close()

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        if self._sink is not None:
            self._sink.close()
        if self._file is not None:
            give_up(self._file)
        self._file = self._sink = None


class _Sink:
    """An open output: lines, one part after the other."""

    def __init__(self, header: bytes, file: IO[bytes]) -> None:
        self._file = file
        file.write(header)

    def add(self, part: Path) -> None:
        """Append the rows of a part."""
        with part.open("rb") as content:
            shutil.copyfileobj(content, self._file, 1 << 20)

    def finish(self) -> None:
        """Write what follows the last row."""

    def close(self) -> None:
        """Release what is held, whether or not the output is finished. The file is still open."""


class _ParquetSink(_Sink):
    """Row groups, whose bounds are not those of the parts."""

    def __init__(self, encoder: ArrowEncoder, vector_lengths: frozenset[int], file: IO[bytes]) -> None:
        import pyarrow as pa

        super().__init__(encoder.header, file)
        self._schema = encoder.schema  # of the parts
        self._vectors = encoder.vectors
        self._fixed: pa.Field | None = None
        schema = self._schema
        if self._vectors is not None and len(vector_lengths) == 1:
            index = schema.get_field_index(self._vectors)
            field = schema.field(index)
            self._fixed = field.with_type(pa.list_(field.type.value_type, *vector_lengths))
            schema = schema.set(index, self._fixed)
        self._writer = _parquet_writer(file, schema, encoder.numbers)
        self._collected: list[pa.RecordBatch] = []  # of the next row group
        self._rows = self._size = 0

    def add(self, part: Path) -> None:
        for batch in _batches(part):
            self._collected.append(batch)
            self._rows += batch.num_rows
            self._size += batch.nbytes
            if self._rows >= ROW_GROUP_ROWS or self._size >= _ROW_GROUP_BYTES:
                self._write_group()

    def finish(self) -> None:
        if self._collected:
            self._write_group()
        self._writer.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of an output that is given up, as on a full disk
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._collected, self._schema)
        self._collected, self._rows, self._size = [], 0, 0
        if self._fixed is not None:
            chunks = [_fixed(chunk, self._fixed.type) for chunk in table.column(self._vectors).chunks]
            index = self._schema.get_field_index(self._vectors)
            table = table.set_column(index, self._fixed, pa.chunked_array(chunks, self._fixed.type))
        self._writer.write_table(table)
        # Begin to write to the disk what the last `sync` would otherwise write at once.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _fixed(vectors: "pa.ListArray", kind: "pa.DataType") -> "pa.Array":
    """Lists of one length, or none. Arrow's own cast reads beyond the values of a block that was read without any."""
    import pyarrow as pa

    return pa.nulls(len(vectors), kind) if vectors.null_count == len(vectors) else vectors.cast(kind)


def _parquet_writer(file: IO[bytes], schema: "pa.Schema", numbers: Sequence[str]) -> "ParquetWriter":
    """A writer that neither compresses these columns nor looks for repeated numbers in them: they have next to none."""
    from pyarrow.parquet import ParquetFile, ParquetWriter

    if not numbers:
        return ParquetWriter(file, schema)
    empty = io.BytesIO()
    ParquetWriter(empty, schema).close()
    leaves = ParquetFile(empty).schema
    paths = [leaves.column(number).path for number in range(len(leaves))]
    others = [path for path in paths if path.split(".")[0] not in numbers]
    codecs = {path: "snappy" if path in others else "none" for path in paths}
    return ParquetWriter(file, schema, use_dictionary=others, compression=codecs)


def _batches(part: Path) -> Iterator["pa.RecordBatch"]:
    """The batches of the streams in a file, which is mapped into memory and not read into it."""
    import pyarrow as pa

    with pa.memory_map(str(part)) as source:
        while source.tell() < source.size():
            with pa.ipc.open_stream(source) as stream:
                yield from stream
