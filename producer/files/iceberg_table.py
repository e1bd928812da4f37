"""Iceberg tables, by pyiceberg and without a catalog. See `penstock.producer.files.versioned_tables`."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.producer.files.hive_partitions import Partition
from penstock.producer.files.object_path import ObjectPath, file_path
from penstock.producer.files.parquet_reader import read_parquet_schema
from penstock.producer.files.row_blocks import StoreError, TableError

_SUFFIX = ".metadata.json"
_ANY_METADATA = f"metadata/*{_SUFFIX}*"  # compressed ones have `.gz` before the suffix, and once had it behind
_HINT = "metadata/version-hint.text"
_NEWEST_FORMAT = 2  # the next one has vectors of deleted rows, and values of columns that files lack
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}  # of Hadoop, and what jobs call them

_Column = tuple[int, str, Any]  # id, name, and the type with its own fields


def is_iceberg_table(path: Path) -> bool:
    """Whether a path is an Iceberg table: its directory, or a file of its metadata."""
    if path.name.endswith(_SUFFIX):
        return True
    return (isinstance(path, ObjectPath) or path.is_dir()) and next(path.glob(_ANY_METADATA), None) is not None


class IcebergLog:
    """A `TableLog`."""

    def __init__(self, path: Path, version: int | None = None) -> None:
        """Read the table's metadata. Raises TableError."""
        if find_spec("pyiceberg") is None:
            raise TableError(f"{path} is an Iceberg table, which needs pyiceberg: pip install 'penstock[iceberg]'")
        self._path = path
        self._metadata = _metadata(path)
        self._snapshot = self._present() if version is None else self._metadata.snapshot_by_id(version)
        if self._snapshot is None:
            raise TableError(f"{path} has lost version {version}, as after an expiry. --restart reads the present one.")

    @property
    def version(self) -> int:
        """The id of the snapshot."""
        return int(self._snapshot.snapshot_id)

    def faults(self) -> list[str]:
        """A newer format, deletes, files that are no Parquet, and encryption."""
        if self._metadata.format_version > _NEWEST_FORMAT:
            return [f"format version {self._metadata.format_version}"]
        files = self._entries()
        deletes = {f"{one.content.name.lower().replace('_', ' ')} beside its files" for one in files if one.content}
        formats = {f"files of {one.file_format.value}" for one in files if one.file_format.value != "PARQUET"}
        encrypted = {"encryption" for one in files if one.key_metadata is not None}
        return sorted(deletes | formats | encrypted)

    def files(self) -> list[Path]:
        """The files of the snapshot."""
        return [_located(one.file_path) for one in self._entries()]

    def missing_columns(self, files: Sequence[Path]) -> dict[Path, Partition]:
        """Those that were added, behind the others, since a file was written.

        Raises TableError where a column was renamed, dropped, promoted or moved since, or added before another.
        """
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = self._schema()
        expected = _columns(schema)
        stored = {file: self._stored(file, expected) for file in dict.fromkeys(files)}
        types = {field.name: field.type for field in schema_to_pyarrow(schema)}
        types |= {field.name: field.type for one in stored.values() for field in one}  # those of files, where there are
        return {
            file: {name: pa.scalar(None, types[name]) for _, name, _ in expected[len(one.names) :]}
            for file, one in stored.items()
        }

    def _stored(self, file: Path, expected: list[_Column]) -> Any:
        """The Arrow schema of a file, whose columns are the first of those that are expected. Raises TableError."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        stored = read_parquet_schema(file)
        try:
            found = _columns(pyarrow_to_schema(stored))
        except Exception as error:  # of pyiceberg, of several kinds
            raise TableError(f"{file}: its columns are not known: {_first_line(error)}") from error
        lacks = {number for number, _, _ in expected[len(found) :]}
        if found != expected[: len(found)] or lacks & self._partition_columns():
            columns = ", ".join(name for _, name, _ in expected)
            raise TableError(
                f"{self._path}: {file.name} was written before columns changed: by name, id and type it has "
                f"{', '.join(stored.names)}, and the table {columns}. Rewrite the table."
            )
        return stored

    def _present(self) -> Any:
        snapshot = self._metadata.current_snapshot()
        if snapshot is None:
            raise TableError(f"{self._path} is an Iceberg table without a snapshot, and so without rows.")
        if snapshot.schema_id not in (None, self._metadata.current_schema_id):
            raise TableError(f"{self._path}: its columns have changed since rows were last written. Rewrite the table.")
        return snapshot

    def _schema(self) -> Any:
        schemas = {one.schema_id: one for one in self._metadata.schemas}
        return schemas.get(self._snapshot.schema_id, self._metadata.schema())

    def _partition_columns(self) -> set[int]:
        """Ids of columns whose values the manifests may have in place of the files."""
        fields = [field for spec in self._metadata.partition_specs for field in spec.fields]
        return {field.source_id for field in fields if str(field.transform) == "identity"}

    def _entries(self) -> list[Any]:
        """The live files of the snapshot, those of deletes among them: pyiceberg's `DataFile`."""
        store = _Files()
        try:
            manifests = self._snapshot.manifests(store)
            return [entry.data_file for one in manifests for entry in one.fetch_manifest_entry(store)]
        except (StoreError, TableError):
            raise
        except Exception as error:  # of several modules, and OSError
            what = f"the manifests of version {self.version}"
            raise TableError(f"{self._path}: {what} cannot be read: {_first_line(error)}") from error


def _metadata(path: Path) -> Any:
    """pyiceberg's `TableMetadata` of a table that is where it was written."""
    from pyiceberg.serializers import FromInputFile

    file = path if path.name.endswith(_SUFFIX) else _metadata_file(path)
    source: Any = _File(file)
    try:
        metadata = FromInputFile.table_metadata(source)
    except (StoreError, TableError):
        raise
    except Exception as error:  # of several modules, and OSError
        raise TableError(f"{file}: the metadata of the Iceberg table cannot be read: {_first_line(error)}") from error
    folder = file.resolve().parent.parent
    if _located(metadata.location).resolve() != folder:
        raise TableError(
            f"{path}: its metadata is of a table at {metadata.location}, and names files there. A table that was moved "
            "or copied is not read."
        )
    return metadata


def _metadata_file(path: Path) -> Path:
    """The present metadata in a directory: the only one, or, in a directory that is its own catalog, the hinted one."""
    found = {one.name: one for one in path.glob(_ANY_METADATA) if not one.name.startswith(".")}
    hint = path / _HINT
    if hint.is_file():
        return _hinted(path, found, _content(hint).decode(errors="replace").strip())
    if len(found) != 1:
        raise TableError(
            f"{path} is an Iceberg table with {len(found)} files of metadata, of which its catalog knows the present "
            f"one. Name that file: {path}/metadata/…{_SUFFIX}"
        )
    return next(iter(found.values()))


def _hinted(path: Path, found: dict[str, Path], hint: str) -> Path:
    names = {hint, f"{hint}{_SUFFIX}", f"v{hint}{_SUFFIX}", f"v{hint}.gz{_SUFFIX}"} & found.keys()
    newest = max(found, key=_number, default=None)
    if len(names) != 1 or newest is None or _number(newest) != _number(next(iter(names))):
        raise TableError(
            f"{path} is an Iceberg table whose {_HINT} says {hint!r}, and the newest of its files of metadata is "
            f"{newest}. Name the present one: {path}/metadata/…{_SUFFIX}"
        )
    return found[names.pop()]


def _number(name: str) -> int:
    found = re.match(r"v?(\d+)", name)
    return int(found[1]) if found else -1


class _Files:
    """The `FileIO` that pyiceberg reads manifests by: paths of jobs, with their credentials."""

    def new_input(self, location: str) -> "_File":
        return _File(_located(location))


class _File:
    """An `InputFile` of pyiceberg."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self._path = path

    def open(self, seekable: bool = True) -> Any:
        return self._path.open("rb")


def _located(location: str) -> Path:
    """The path of a file by its name in the metadata, which escapes nothing. Raises TableError."""
    scheme, is_url, rest = location.partition(":")
    if not is_url or "/" in scheme:
        return Path(location)
    if scheme == "file":
        if rest.startswith("//") and not rest.startswith("///"):
            raise TableError(f"{location} is not a file of this machine.")
        return Path("/" + rest.lstrip("/"))
    path = file_path(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
    if not isinstance(path, ObjectPath):
        raise TableError(f"{location} is in a store that is not read.")
    return path


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _columns(schema: Any) -> list[_Column]:
    """Of pyiceberg's `Schema`. Whether a column may be null, and what it is for, changes no row."""
    return [(field.field_id, field.name, _shape(field.field_type)) for field in schema.fields]


def _shape(kind: Any) -> Any:
    """The type, with ids, names and types of its fields."""
    from pyiceberg.types import ListType, MapType, StructType

    match kind:
        case StructType():
            inner = list(kind.fields)
        case ListType():
            inner = [kind.element_field]
        case MapType():
            inner = [kind.key_field, kind.value_field]
        case _:
            return str(kind)
    return type(kind).__name__, [(field.field_id, field.name, _shape(field.field_type)) for field in inner]
