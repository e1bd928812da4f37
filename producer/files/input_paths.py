"""Inputs of a job: the tables that its paths, directories and patterns name. See `penstock.producer.files`."""

import glob
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.row_blocks import StoreError, TableError
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import FORMATS
from penstock.producer.files.versioned_tables import TableFiles, table_kind

_HIDDEN = (".", "_")  # beginnings of names that Spark and others give to files, and directories, of no tables
_LOGS = {"_delta_log", "metadata"}  # directories of tables that have a log


def input_paths(given: Iterable[Path], output: Path, tables: Mapping[str, TableFiles] | None = None) -> list[Path]:
    """The files that `given` names, in its order; those of a directory or a pattern are in order of their paths.

    The output, parts of bulk jobs, and what is in hidden directories are left out of directories and patterns.
    `tables`: the files of tables that have a log, as `table_files` gives them.

    Raises:
        TableError: a directory or a pattern has no table, or has files of a table whose log says which are its rows.
    """
    tables = tables or {}
    paths: list[Path] = []
    for path in given:
        if table := tables.get(str(path.resolve())):
            paths += table.paths
            continue
        if path == STANDARD or path.is_file():
            paths.append(path)
            continue
        is_pattern = not path.is_dir() and glob.has_magic(str(path))
        if not is_pattern and not path.is_dir():
            paths.append(path)  # the reader says that it does not exist
            continue
        root = _fixed_part(path) if is_pattern else path
        found = sorted(_tables(root, _candidates(path, root), output.resolve()))
        if not found:
            raise TableError(f"{path} {'matches' if is_pattern else 'holds'} no table ({', '.join(FORMATS)}).")
        _require_no_logs(found, root)
        paths += found
    return paths


def _require_no_logs(found: Iterable[Path], root: Path) -> None:
    """Raise TableError where files are those of a table with a log: some may hold rows that were deleted.

    The table may be below `root`, `root` itself, or above it.
    """
    folders = {path.parent for path in found}
    above = {one for folder in folders for start in (folder, folder.resolve()) for one in (start, *start.parents)}
    if isinstance(root, ObjectPath):  # one list, in place of a request for each folder
        logged = {path.parent.parent for path in root.below() if path.parent.name in _LOGS}
        top = 4 if root.parts[0] == "hf:" else 2  # parts of a repository, or bucket: nothing above it can be listed
        beyond = {one for one in (root, *root.parents) if len(one.parts) >= top}
        above &= logged | beyond
    for folder in sorted(above):
        if kind := _listed_kind(folder):
            raise TableError(f"{folder} is {kind}, whose log says which files are its rows. Name it itself.")


def _listed_kind(folder: Path) -> str | None:
    try:
        return table_kind(folder)
    except StoreError:
        raise
    except TableError:
        return None  # the store lists what is below `root`, and nothing above it


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
