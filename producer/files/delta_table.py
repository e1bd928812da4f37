"""Delta tables, by deltalake. See `penstock.producer.files.versioned_tables`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.producer.files.hive_partitions import Partition
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.parquet_reader import read_parquet_schema
from penstock.producer.files.row_blocks import TableError

_LOG = "_delta_log/[0-9]*"  # commits, or a checkpoint alone
_LOG_OBJECTS = "_delta_log/*"
# Features of a table whose files still hold its rows as they are. Others delete or rename without another file.
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_COLUMN_MAPPING = "delta.columnMapping.mode"


def is_delta_table(path: Path) -> bool:
    """Whether a directory is a Delta table."""
    if isinstance(path, ObjectPath):
        return next(path.glob(_LOG_OBJECTS), None) is not None
    return path.is_dir() and next(path.glob(_LOG), None) is not None


class DeltaLog:
    """A `TableLog`."""

    def __init__(self, path: Path, version: int | None = None) -> None:
        """Open the log. Raises TableError."""
        self._path = path
        self._table = _opened(path, version)

    @property
    def version(self) -> int:
        """The version."""
        return int(self._table.version())

    def faults(self) -> list[str]:
        """Deletion vectors, column mapping, partitions, and features that are not known."""
        protocol, metadata = self._table.protocol(), self._table.metadata()
        faults = sorted({*(protocol.reader_features or ())} - _PLAIN_FEATURES)
        if metadata.configuration.get(_COLUMN_MAPPING, "none") != "none":
            faults.append(_COLUMN_MAPPING)
        if metadata.partition_columns:
            faults.append(f"partitions by {', '.join(metadata.partition_columns)}")
        return faults

    def files(self) -> list[Path]:
        """The files of the version."""
        folder = urlsplit(self._table.table_uri).path  # with escapes, which the files' own names are without
        return [self._path / uri.removeprefix(folder) for uri in self._table.file_uris()]

    def missing_columns(self, files: Sequence[Path]) -> dict[Path, Partition]:
        """None: raises TableError where a column was added since.

        The reader compares the files with the first.
        """
        names = {field.name for field in self._table.schema().fields}
        differing = sorted(names.symmetric_difference(read_parquet_schema(files[0]).names))
        if differing:
            changed = f"{files[0].name} was written before {', '.join(differing)} changed"
            raise TableError(f"{self._path}: {changed}. Rewrite the table.")
        return {}


def _opened(path: Path, version: int | None) -> Any:
    """A `deltalake.DeltaTable`."""
    if isinstance(path, ObjectPath):
        raise TableError(f"{path} is a Delta table in a store of objects, whose log is not read. Name its files.")
    if find_spec("deltalake") is None:
        raise TableError(f"{path} is a Delta table, which needs deltalake: pip install 'penstock[delta]'")
    if "%" in str(path.resolve()):
        raise TableError(f"{path}: deltalake takes % for an escape, and would read the log of another directory.")
    from deltalake import DeltaTable

    try:
        return DeltaTable(str(path), version=version)
    except Exception as error:  # of several modules, and OSError
        which = "" if version is None else f" of version {version}"
        raise TableError(f"{path}: the Delta log{which} cannot be read: {error}") from error
