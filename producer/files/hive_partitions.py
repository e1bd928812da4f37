"""Columns that directories give: data/lang=en/part.parquet has `lang`, as in pyarrow.dataset, Spark and Hive."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.producer.files.row_blocks import TableError

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

Partition = Mapping[str, "pa.Scalar"]  # value of each key


def read_partitions(paths: Sequence[Path]) -> dict[Path, Partition]:
    """The columns of each file; those of all files are of the same names and types.

    Keys are integers where all of their values are, else strings. Values are decoded as those of URLs are, and
    `__HIVE_DEFAULT_PARTITION__` is null. A file without a key that others have has null too.

    Raises TableError where the first file is damaged, or has a column of a key's name and of another type, and where a
    key is null in all files, and so of no type.
    """
    present = [str(path) for path in paths if path.is_file()]  # the reader names one that is missing
    if not present or not any("=" in name for path in paths for name in path.parent.parts):
        return {}
    import pyarrow as pa
    from pyarrow import dataset

    types = dataset.HivePartitioning.discover(infer_dictionary=False)
    try:
        known = dataset.dataset(present, format="parquet", partitioning=types).partitioning
    except pa.ArrowException as error:
        raise TableError(f"The columns that directories give to {paths[0]} cannot be read: {error}.") from error
    values = {path: dataset.get_partition_keys(known.parse(str(path))) for path in paths}
    return {
        path: {field.name: pa.scalar(keys.get(field.name), field.type) for field in known.schema}
        for path, keys in values.items()
    }


def added_to(schema: "pa.Schema", partition: Partition) -> Partition:
    """The columns of a partition that its file has not itself."""
    return {name: value for name, value in partition.items() if name not in schema.names}


def with_fields(schema: "pa.Schema", added: Partition) -> "pa.Schema":
    """The schema of `with_partition`."""
    import pyarrow as pa

    for name, value in added.items():
        schema = schema.append(pa.field(name, value.type))
    return schema


def with_partition(rows: "pa.RecordBatch", added: Partition) -> "pa.RecordBatch":
    """Rows with the columns of their partition behind their own."""
    import pyarrow as pa

    for name, value in added.items():
        rows = rows.append_column(pa.field(name, value.type), pa.repeat(value, rows.num_rows))
    return rows
