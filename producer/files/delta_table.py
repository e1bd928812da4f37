"""Delta tables as inputs of jobs: the Parquet files that are the rows of one version."""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.row_blocks import TableError

_LOG = "_delta_log/[0-9]*"  # commits, or a checkpoint alone
# Features of a table whose files still hold its rows as they are. Others delete or rename without another file.
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_COLUMN_MAPPING = "delta.columnMapping.mode"


def is_delta_table(path: Path) -> bool:
    """Whether a local directory is a Delta table."""
    return not isinstance(path, ObjectPath) and path.is_dir() and next(path.glob(_LOG), None) is not None


def table_versions(given: Iterable[Path], read_kept: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """The version of each Delta table among the inputs of a job, by its resolved path.

    That of the job that is continued, so that it reads the same rows; else the present one. Raises TableError.
    read_kept: reads the first. It is called where there are tables.
    """
    tables = [str(path.resolve()) for path in given if is_delta_table(path)]
    kept = read_kept() if tables else {}
    return {table: kept[table] if table in kept else _opened(table).version() for table in tables}


def delta_files(path: Path, version: int) -> list[Path]:
    """The files of a version, in the order of their paths.

    Raises TableError where their rows are not the table's, as with deletion vectors, and where one is missing.
    """
    table = _opened(str(path), version)
    protocol, metadata = table.protocol(), table.metadata()
    faults = sorted({*(protocol.reader_features or ())} - _PLAIN_FEATURES)
    if metadata.configuration.get(_COLUMN_MAPPING, "none") != "none":
        faults.append(_COLUMN_MAPPING)
    if metadata.partition_columns:
        faults.append(f"partitions by {', '.join(metadata.partition_columns)}")
    if faults:
        raise TableError(
            f"{path} is a Delta table with {', '.join(faults)}: its files do not hold its rows as they are. Give the "
            "job a copy without it, or files."
        )
    folder = urlsplit(table.table_uri).path  # with escapes, which the files' own names are without
    files = sorted([path / uri.removeprefix(folder) for uri in table.file_uris()])
    if not files:
        raise TableError(f"{path} has no rows in version {version}.")
    if missing := next((file for file in files if not file.is_file()), None):
        raise TableError(
            f"{path}: version {version} has lost {missing.name}, as after a vacuum. --restart reads the present one."
        )
    _require_columns(path, files[0], {field.name for field in table.schema().fields})
    return files


def _require_columns(path: Path, file: Path, names: set[str]) -> None:
    """Raise TableError where a column was added since: files that lack it hold no nulls. The reader compares files."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    try:
        differing = sorted(names.symmetric_difference(read_schema(file).names))
    except (ArrowException, OSError) as error:
        raise TableError(f"{file} is not a Parquet file that can be read: {error}.") from error
    if differing:
        raise TableError(f"{path}: {file.name} was written before {', '.join(differing)} changed. Rewrite the table.")


def _opened(path: str, version: int | None = None) -> Any:
    """A `deltalake.DeltaTable`."""
    if find_spec("deltalake") is None:
        raise TableError(f"{path} is a Delta table, which needs deltalake: pip install 'penstock[delta]'")
    if "%" in path:
        raise TableError(f"{path}: deltalake takes % for an escape, and would read the log of another directory.")
    from deltalake import DeltaTable

    try:
        return DeltaTable(path, version=version)
    except Exception as error:  # of several modules, and OSError
        which = "" if version is None else f" of version {version}"
        raise TableError(f"{path}: the Delta log{which} cannot be read: {error}") from error
