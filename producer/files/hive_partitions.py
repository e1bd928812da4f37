"""Columns that directories give: data/lang=en/part.parquet has `lang`, as in pyarrow.dataset, Spark and Hive."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.producer.files.row_blocks import TableError

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

Partition = Mapping[str, "pa.Scalar"]  # value of each key


def read_partitions(paths: Sequence[Path]) -> dict[Path, Partition]:
    """The columns of each file; those of all files are of the same names and types.

    Keys are integers where all of their values are, else strings. Keys and values are decoded as those of URLs are, and
    `__HIVE_DEFAULT_PARTITION__` is null. A file without a key that others have has null too.

    Raises TableError where a key is null in all files, and so of no type, and where a value is not UTF-8.
    """
    folders = [name for path in paths for name in path.parent.parts if "=" in name]
    keys = list(dict.fromkeys(unquote(name.partition("=")[0]) for name in folders))
    if not keys:
        return {}
    import pyarrow as pa

    try:
        texts = _values(paths, pa.schema([(key, pa.string()) for key in keys]))
        schema = pa.schema([(key, _type_of(key, texts.values())) for key in keys])
        values = _values(paths, schema)
    except pa.ArrowException as error:
        raise TableError(f"The columns that directories give to {paths[0]} cannot be read: {error}.") from error
    return {
        path: {field.name: pa.scalar(given.get(field.name), field.type) for field in schema}
        for path, given in values.items()
    }


def _values(paths: Sequence[Path], schema: "pa.Schema") -> dict[Path, dict[str, Any]]:
    """The value of each key in each path, without those that are null."""
    from pyarrow import dataset

    form = dataset.HivePartitioning(schema)
    return {path: dataset.get_partition_keys(form.parse(str(path))) for path in paths}


def _type_of(key: str, texts: Iterable[Mapping[str, Any]]) -> "pa.DataType":
    """The type of a key, as pyarrow.dataset decides it."""
    import pyarrow as pa

    present = [given[key] for given in texts if given.get(key) is not None]
    if not present:
        raise TableError(f"The directories give the column {key!r} no type: it is null in all files.")
    try:
        pa.array(present, pa.string()).cast(pa.int32())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.int32()


def added_to(path: Path, schema: "pa.Schema", partition: Partition) -> Partition:
    """The columns of a partition that its file has not itself. Raises TableError if it has one of another type."""
    for name, value in partition.items():
        if name in schema.names and schema.field(name).type != value.type:
            raise TableError(
                f"The columns that directories give to {path} cannot be read: {name!r} is {value.type}, and "
                f"{schema.field(name).type} in the file."
            )
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
