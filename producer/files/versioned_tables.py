"""Tables of Delta and Iceberg as inputs of jobs: their log says which Parquet files are the rows of a version."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.producer.files.delta_table import DeltaLog, is_delta_table
from penstock.producer.files.hive_partitions import Partition
from penstock.producer.files.iceberg_table import IcebergLog, is_iceberg_table
from penstock.producer.files.row_blocks import TableError
from penstock.producer.files.table_reader import FORMATS


class TableLog(Protocol):
    """The log of a table at one version. Its methods raise TableError where the log, or a file, cannot be read."""

    @property
    def version(self) -> int:
        """The version, of Iceberg the id of the snapshot."""
        ...

    def faults(self) -> list[str]:
        """Features of the table by which its files do not hold its rows as they are."""
        ...

    def files(self) -> list[Path]:
        """The files of the version, in any order. Called where there are no faults."""
        ...

    def missing_columns(self, files: Sequence[Path]) -> dict[Path, Partition]:
        """The columns, of nulls, that files are without. `files`: in order, all of them exist.

        Raises TableError where a file has other columns than the version, and these do not follow its own.
        """
        ...


class TableFiles(NamedTuple):
    """The files of a table at one version, in the order of their paths."""

    paths: list[Path]
    missing: dict[Path, Partition]  # the columns, of nulls, that a file is without


class _Kind(NamedTuple):
    name: str
    is_at: Callable[[Path], bool]
    log: Callable[[Path, int | None], TableLog]  # of a version, or, for None, of the present one


_KINDS = (
    _Kind("a Delta table", is_delta_table, DeltaLog),
    _Kind("an Iceberg table", is_iceberg_table, IcebergLog),
)


def table_kind(path: Path) -> str | None:
    """`a Delta table`, `an Iceberg table`, or None for a path that is neither."""
    kind = _kind_of(path)
    return kind and kind.name


def table_versions(given: Iterable[Path], read_kept: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """The version of each such table among the inputs of a job, by its resolved path.

    That of the job that is continued, so that it reads the same rows; else the present one. Raises TableError.
    read_kept: reads the first. It is called where there are tables.
    """
    logs = {str(path.resolve()): (path, kind.log) for path in given if (kind := _kind_of(path))}
    kept = read_kept() if logs else {}
    return {table: kept[table] if table in kept else log(path, None).version for table, (path, log) in logs.items()}


def table_files(given: Iterable[Path], versions: Mapping[str, int]) -> dict[str, TableFiles]:
    """The files of each table at its version. `versions`: as `table_versions` gives them.

    Raises TableError where their rows are not the table's, as with deletes beside them, and where one is missing.
    """
    found = {str(path.resolve()): path for path in given}
    return {table: _files(found[table], version) for table, version in versions.items()}


def _files(path: Path, version: int) -> TableFiles:
    kind = _kind_of(path)
    if kind is None:
        raise TableError(f"{path} is no table any more.")
    log = kind.log(path, version)
    if faults := log.faults():
        raise TableError(
            f"{path} is {kind.name} with {', '.join(faults)}: its files do not hold its rows as they are. Give the job "
            "a copy without it, or files."
        )
    files = sorted(log.files())
    if not files:
        raise TableError(f"{path} has no rows in version {version}.")
    if missing := next((file for file in files if not file.is_file()), None):
        raise TableError(
            f"{path}: version {version} has lost {missing.name}, as after a vacuum or an expiry. --restart reads the "
            "present one."
        )
    return TableFiles(files, log.missing_columns(files))


def _kind_of(path: Path) -> _Kind | None:
    if path.suffix.lower() in FORMATS and path.is_file():
        return None  # asked first: objects can often be read where they must not be listed
    return next((kind for kind in _KINDS if kind.is_at(path)), None)
