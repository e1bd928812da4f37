"""Join the parts of a job into its output."""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.producer.files.encoders import ArrowEncoder, Encoder

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

# Row groups of a size that suits readers of Parquet. Their bounds depend on the rows alone.
ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 64 << 20


def join_parts(parts: Sequence[Path], encoder: Encoder, vector_lengths: set[int], file: IO[bytes]) -> None:
    """Write the output of one encoder's parts, in bounded memory.

    Args:
        vector_lengths: those of all vectors. In Parquet, vectors of one length are lists of fixed size.
    """
    if isinstance(encoder, ArrowEncoder):
        _join_parquet(parts, encoder, vector_lengths, file)
        return
    file.write(encoder.header)
    for part in parts:
        with part.open("rb") as content:
            shutil.copyfileobj(content, file, 1 << 20)


def _join_parquet(parts: Sequence[Path], encoder: ArrowEncoder, vector_lengths: set[int], file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    fixed: pa.Field | None = None
    schema = encoder.schema
    if encoder.vectors is not None and len(vector_lengths) == 1:
        fixed = schema.field(encoder.vectors).with_type(pa.list_(pa.float32(), *vector_lengths))
        schema = schema.set(encoder.vectors, fixed)
    with ParquetWriter(file, schema) as writer:
        for batches in _row_groups(itertools.chain.from_iterable(map(_batches, parts))):
            table = pa.Table.from_batches(batches, encoder.schema)
            if fixed is not None:
                vectors = table.column(encoder.vectors).cast(fixed.type)
                table = table.set_column(encoder.vectors, fixed, vectors)
            writer.write_table(table)


def _batches(part: Path) -> Iterator["pa.RecordBatch"]:
    """The batches of the streams in a file, which is mapped into memory and not read into it."""
    import pyarrow as pa

    with pa.memory_map(str(part)) as source:
        while source.tell() < source.size():
            with pa.ipc.open_stream(source) as stream:
                yield from stream


def _row_groups(batches: Iterable["pa.RecordBatch"]) -> Iterator[list["pa.RecordBatch"]]:
    collected: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        collected.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield collected
            collected, rows, size = [], 0, 0
    if collected:
        yield collected
