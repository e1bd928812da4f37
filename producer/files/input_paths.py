"""Inputs of a job: the tables that its paths, directories and patterns name. See `penstock.producer.files`."""

import glob
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from penstock.producer.files.delta_table import delta_files, is_delta_table
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.row_blocks import TableError
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import FORMATS

_HIDDEN = (".", "_")  # beginnings of names that Spark and others give to files, and directories, of no tables
_TABLE_LOGS = ("_delta_log/*.json", "metadata/*.metadata.json")  # of Delta in a store of objects, and of Iceberg


def input_paths(given: Iterable[Path], output: Path, versions: Mapping[str, int] | None = None) -> list[Path]:
    """The files that `given` names, in its order; those of a directory or a pattern are in order of their paths.

    The output, parts of bulk jobs, and what is in hidden directories are left out of directories and patterns.
    `versions`: of Delta tables, as `table_versions` gives them.

    Raises:
        TableError: a directory or a pattern has no table, or a directory is a table whose log is not read.
    """
    versions = versions or {}
    paths: list[Path] = []
    for path in given:
        if path == STANDARD or path.is_file():
            paths.append(path)
            continue
        if (version := versions.get(str(path.resolve()))) is not None:
            paths += delta_files(path, version)
            continue
        is_pattern = not path.is_dir() and glob.has_magic(str(path))
        if not is_pattern and not path.is_dir():
            paths.append(path)  # the reader says that it does not exist
            continue
        if any(next(path.glob(log), None) for log in _TABLE_LOGS):
            raise TableError(
                f"{path} is a table of Iceberg, or of Delta in a store of objects, whose log says which files are its "
                "rows. Name them."
            )
        root = _fixed_part(path) if is_pattern else path
        found = sorted(_tables(root, _candidates(path, root), output.resolve()))
        if not found:
            raise TableError(f"{path} {'matches' if is_pattern else 'holds'} no table ({', '.join(FORMATS)}).")
        _require_no_tables_of_delta(found, root)
        paths += found
    return paths


def _require_no_tables_of_delta(found: Iterable[Path], root: Path) -> None:
    """Raise TableError where files below `root` are those of such a table: some may hold rows that were deleted."""
    folders = {folder for path in found for folder in path.parents if root in folder.parents}
    if table := next(filter(is_delta_table, sorted(folders)), None):
        raise TableError(f"{table} is a Delta table, whose log says which files are its rows. Name it itself.")


def _fixed_part(pattern: Path) -> Path:
    """The directory above all that a pattern matches."""
    return type(pattern)(*itertools.takewhile(lambda name: not glob.has_magic(name), pattern.parts))


def _candidates(path: Path, root: Path) -> Iterable[Path]:
    """Everything in a directory, or that matches a pattern, whose fixed part is `root`."""
    if path == root:
        return path.below() if isinstance(path, ObjectPath) else path.rglob("*")
    if isinstance(path, ObjectPath):
        return root.glob("/".join(path.parts[len(root.parts) :]))
    return map(Path, glob.iglob(str(path), recursive=True))


def _tables(root: Path, candidates: Iterable[Path], output: Path) -> Iterator[Path]:
    """The tables among the candidates below `root`, without `output`, a resolved path, however they are spelled."""
    for path in candidates:
        names = path.parts[len(root.parts) :]
        is_hidden = any(map(_is_hidden, names)) or path.parent.name.endswith(".parts")
        if path.suffix.lower() in FORMATS and not is_hidden and path.is_file() and path.resolve() != output:
            yield path


def _is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN) and "=" not in name and name != ".."
